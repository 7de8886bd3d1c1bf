"""Probes of what administrators ask for."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterable
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from msgspec.structs import replace

from limpet.base.bounds import administrators
from limpet.base.bounds.strangers import (
    ACCOUNT_REVIEWS,
    ACCOUNT_REVIEWS_OF_ONE,
    ACCOUNT_REVIEWS_OF_ONE_PER_S,
    ACCOUNT_REVIEWS_PER_S,
    ACCOUNT_TOKEN,
    REVIEW_SOURCES,
    REVIEWS,
    REVIEWS_OF_ONE,
    REVIEWS_OF_ONE_PER_S,
    REVIEWS_PER_S,
)
from limpet.base.errors import LimpetError
from limpet.base.http.connection import LinkError
from limpet.base.rate_limit import SourceRates
from limpet.cluster.api import InterfaceAddresses, JoinRequest
from limpet.controller.admin.commands import Admin
from limpet.controller.admin.pods import PodListing
from limpet.controller.admin.policies import PolicyAdmin
from limpet.controller.admin.rights import Rights
from limpet.controller.admin.tokens import TokenAdmin, Who
from limpet.controller.communities.membership import communities_of
from limpet.controller.communities.selectors import parse_selector
from limpet.controller.figures.metrics import Metrics
from limpet.controller.orchestrator.account import question_about
from limpet.controller.orchestrator.account_check import AccountCheck
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.settings import ControllerSettings
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.nodes import Altered, set_node
from limpet.controller.state.reports import ReportedByNode
from limpet.controller.store.sqlite import SqliteStore
from limpet.kubernetes.access.access import plain_access
from limpet.kubernetes.client import Client
from limpet.paths.watching import Onlookers
from limpet.timeline.answer import TimelineQuery
from limpet.web.access.tokens import TokenFile
from tests.unit.base.bounds.probes import probe
from tests.unit.controller.state.cluster_tables import join, new_tables

T = TypeVar("T")


def _is_done(work: Callable[[], object]) -> bool:
    try:
        work()
    except (LimpetError, ValueError):
        return False
    return True


def _administered(work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    """What comes of it at a controller that has just made its cluster."""

    async def run(folder: Path) -> T:
        store = SqliteStore(folder / "controller.db")
        cluster = Cluster(store, ControllerSettings())
        try:
            await cluster.start()
            try:
                return await work(cluster)
            finally:
                await cluster.stop()
        finally:
            await store.close()

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder)))


@probe(administrators.SELECTOR)
def _(amount: int) -> bool:
    return _is_done(lambda: parse_selector("site=" + "x" * (amount - len("site="))))


@probe(administrators.COMMUNITIES)
def _(amount: int) -> bool:
    names = [f"c{number}" for number in range(amount)]
    return _is_done(lambda: communities_of(new_tables(), "", "n1", names, {}))


@probe(administrators.BEHIND)
def _(amount: int) -> bool:
    tables = new_tables()
    join(tables, 1, "n1")
    behind = frozenset(ip_network(f"172.16.{number}.0/24") for number in range(amount))
    return _is_done(lambda: set_node(tables, "n1", Altered(), Altered(behind)))


@probe(administrators.POLICY_BODY)
def _(amount: int) -> bool:
    policy: dict[str, Any] = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "web", "namespace": "shop", "annotations": {"a": ""}},
        "spec": {"podSelector": {}},
    }
    filled = "x" * (amount - len(msgspec.json.encode(policy)))
    policy["metadata"]["annotations"]["a"] = filled
    return _is_done(lambda: _administered(lambda cluster: PolicyAdmin(cluster)._apply([policy])))


@probe(administrators.JOIN_TOKEN_S)
def _(amount: int) -> bool:
    def create(cluster: Cluster) -> Coroutine[Any, Any, object]:
        return TokenAdmin(cluster)._create(Who("ann"), float(amount))

    return _is_done(lambda: _administered(create))


def _create_page_tokens(count: int, for_s: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = TokenFile(Path(folder, "tokens.json"))
        for number in range(count):
            file.create(f"t{number}", f"secret {number}", may_write=False, for_s=for_s)


@probe(administrators.PAGE_TOKENS)
def _(amount: int) -> bool:
    return _is_done(lambda: _create_page_tokens(amount, 3600))


@probe(administrators.PAGE_TOKEN_S)
def _(amount: int) -> bool:
    return _is_done(lambda: _create_page_tokens(1, amount))


@probe(administrators.EVENTS_ASKED)
def _(amount: int) -> bool:
    return _is_done(lambda: TimelineQuery(limit=amount))


@probe(administrators.LISTED_PODS)
def _(amount: int) -> bool:
    page, pod = PodListing(), InterfaceAddresses("", "", "", "", ())
    assert page.add("a", "u", ReportedByNode(1, 1.5, (pod,)))
    filled = replace(pod, pod="p" * (amount - 2 * page.size_bytes))
    return page.add("b", "u", ReportedByNode(1, 1.5, (filled,)))


@probe(administrators.LOOKED_AT)
def _(amount: int) -> bool:
    onlookers, uids = Onlookers(), [f"{number}" for number in range(amount)]
    onlookers.look(uids, 10.0)
    return len(onlookers.looked_at(uids, 1.0)) == amount


# As whom they come by Kubernetes


def _rights() -> Rights:
    """Of a controller whose API server is nowhere: whoever is asked about, is asked in vain."""
    return Rights(Client(plain_access("http://127.0.0.1:9")))


@probe(ACCOUNT_TOKEN)
def _(amount: int) -> bool:
    """Of a person, and of an agent's pod."""
    token = "a.b." + "x" * (amount - len("a.b."))
    try:
        asyncio.run(_rights().check(token, b"here"))
    except (LinkError, RefusedError) as error:
        is_asked_about = isinstance(error, LinkError)
    request = JoinRequest(token, "n1", b"", b"")
    taken = {is_asked_about, _is_done(lambda: question_about(request))}
    assert len(taken) == 1
    return taken.pop()


def _account_check() -> AccountCheck:
    return AccountCheck(Client(plain_access("http://127.0.0.1:9")), "limpet-system")


def _are_asked_about(rates: SourceRates, amount: int, now_s: float, sources: Iterable[int]) -> bool:
    """Of an address that somebody was let in from, and of others, each as many as it may."""
    rates.know(b"known")
    by_others = [rates.take(b"%d" % source, now_s) for source in sources]
    assert len(by_others) == amount
    by_known = [rates.take(b"known", now_s) for _ in range(amount)]
    assert by_known == by_others
    return all(by_known)


@probe(REVIEWS)
def _(amount: int) -> bool:
    return _are_asked_about(_rights().rates, amount, 0.0, range(amount))


@probe(ACCOUNT_REVIEWS)
def _(amount: int) -> bool:
    return _are_asked_about(_account_check().rates, amount, 0.0, range(amount))


def _are_later(rates: SourceRates, at_once: int, amount: int) -> bool:
    assert _are_asked_about(rates, at_once, 0.0, range(at_once))
    return _are_asked_about(rates, amount, 1.0001, range(amount))


@probe(REVIEWS_PER_S)
def _(amount: int) -> bool:
    return _are_later(_rights().rates, REVIEWS.most, amount)


@probe(ACCOUNT_REVIEWS_PER_S)
def _(amount: int) -> bool:
    return _are_later(_account_check().rates, ACCOUNT_REVIEWS.most, amount)


def _of_one(rates: SourceRates, amount: int, now_s: float = 0.0) -> bool:
    return all(rates.take(b"one", now_s) for _ in range(amount))


@probe(REVIEWS_OF_ONE)
def _(amount: int) -> bool:
    return _of_one(_rights().rates, amount)


@probe(ACCOUNT_REVIEWS_OF_ONE)
def _(amount: int) -> bool:
    return _of_one(_account_check().rates, amount)


@probe(REVIEWS_OF_ONE_PER_S)
def _(amount: int) -> bool:
    rates = _rights().rates
    assert _of_one(rates, REVIEWS_OF_ONE.most)
    return _of_one(rates, amount, 1.0001)


@probe(ACCOUNT_REVIEWS_OF_ONE_PER_S)
def _(amount: int) -> bool:
    rates = _account_check().rates
    assert _of_one(rates, ACCOUNT_REVIEWS_OF_ONE.most)
    return _of_one(rates, amount, 1.0001)


@probe(REVIEW_SOURCES)
def _(amount: int) -> bool:
    """Whether the first is known still, of so many; by both."""
    known = []
    for rates in (_rights().rates, _account_check().rates):
        for source in range(amount):
            rates.know(source)
        known.append(rates.knows(0))
    assert len(set(known)) == 1
    return known[0]


@probe(administrators.ADMIN_BODY)
def _(amount: int) -> bool:
    """It is refused in words that say the bound."""

    async def ask(cluster: Cluster) -> bytes:
        admin = Admin(cluster, Metrics({}), restore_margin=0)
        runner = web.AppRunner(admin.application())
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            reader, writer = await asyncio.open_connection(*runner.addresses[0])
            writer.write(b"POST /node.list HTTP/1.1\r\nHost: controller\r\nConnection: close\r\n")
            writer.write(f"Content-Length: {amount}\r\n\r\n".encode())
            writer.write(b"{" + b" " * (amount - 1))
            answer = await reader.read()
            writer.close()
        finally:
            await runner.cleanup()
        return answer

    answer = _administered(ask)
    assert b" 400 " in answer, answer  # the object in it has no end
    return f"more than {administrators.ADMIN_BODY.most:,} bytes".encode() not in answer
