"""When a recovery begins and ends, and whose report counts for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from limpet.cluster.api import Code, HelloRequest
from limpet.cluster.documents import Document, Key, Sealed
from limpet.cluster.kinds import GRANT, NETWORK, POLICY
from limpet.cluster.kinds.network import Encryption
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.controller.api.node_requests import NodeRequests
from limpet.controller.registry.records import STATE
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state import nodes, recovery
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.grants import change_grant, put_network
from tests.unit.cluster_values import grant
from tests.unit.controller.state.cluster_tables import copy, join, new_tables
from tests.unit.controller.state.test_cut_off import OneByOneStore, two_nodes, with_cluster

N1, N2 = grant(1).uid, grant(2).uid
KEY = "NetworkPolicy/shop/web"


def found(tables: Tables, *keys: Key) -> list[Document]:
    return [document for key in keys if (document := tables.find(key)) is not None]


async def say_hello(cluster: Cluster, known: Iterable[Document]) -> None:
    """As an agent does that knows no more: what is wanted is shown once, then it asks again."""
    requests = NodeRequests(cluster)
    revision = max(each.revision for each in known)
    shown: tuple[Sealed, ...] = tuple(each.sealed for each in known)
    own = tuple(each.sealed for each in known if each.key == (GRANT.name, N1))
    try:
        await requests.hello(N1, HelloRequest(revision, own))
    except RefusedError as error:
        if error.refused.code is not Code.SHOW:
            raise
        await requests.show(N1, shown)
        await requests.hello(N1, HelloRequest(revision, own))


def apply_policy(tables: Tables) -> None:
    tables.sign(POLICY, SignedPolicy(KEY, tables.next_revision(), {"spec": {}}))


def encrypt(tables: Tables) -> None:
    put_network(tables, replace(tables.network, encryption=Encryption.ALL))


def encrypt_again(tables: Tables) -> None:
    encrypt(tables)
    put_network(tables, replace(tables.network, encryption=Encryption.BETWEEN_SITES))
    encrypt(tables)


def remove(tables: Tables) -> None:
    nodes.remove(tables, "n2", 0.0)


@pytest.mark.parametrize(
    ("key", "lose", "do_again"),
    [
        ((POLICY.name, KEY), apply_policy, apply_policy),
        ((NETWORK.name, NETWORK.name), encrypt, encrypt_again),
        ((GRANT.name, N2), remove, remove),
    ],
    ids=["policy", "network", "removal"],
)
def test_a_node_whose_news_a_person_has_made_again_after_the_restore_is_let_in(
    tmp_path: Path,
    key: Key,
    lose: Callable[[Tables], None],
    do_again: Callable[[Tables], None],
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        later = await cluster.change(copy)
        lose(later)
        await cluster.change(lambda tables: recovery.begin(tables, 4, 0.0, paused=False))
        await cluster.change(do_again)

        await say_hello(cluster, found(later, (GRANT.name, N1), key))

        assert await cluster.change(lambda tables: recovery.awaits(tables, N1)) is False

    with_cluster(tmp_path, body)


def test_a_back_up_of_amid_a_recovery_is_restored_and_its_nodes_are_let_in(tmp_path: Path) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        await cluster.change(lambda tables: recovery.begin(tables, 4, 0.0, paused=False))
        await cluster.change(lambda tables: recovery.note_report(tables, N1, 4))
        await cluster.change(
            lambda tables: change_grant(tables, tables.grants[N1], labels={"a": ""})
        )
        await cluster.change(lambda tables: recovery.begin(tables, 4, 1.0, paused=False))
        known = await cluster.change(lambda tables: found(tables, (GRANT.name, N1)))

        await say_hello(cluster, known)

        waits = await cluster.change(recovery.waiting_for)
        assert [each.uid for each in waits] == [N2]

    with_cluster(tmp_path, body)


def test_what_nobody_has_shown_is_asked_for_though_something_older_was_no_news(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        later = await cluster.change(copy)
        apply_policy(later)
        join(later, 3, "n3")
        await cluster.change(lambda tables: recovery.begin(tables, 4, 0.0, paused=False))
        await cluster.change(apply_policy)
        (policy, newcomer) = found(later, (POLICY.name, KEY), (GRANT.name, grant(3).uid))
        requests = NodeRequests(cluster)
        await requests.show(N1, (policy.sealed,))

        with pytest.raises(RefusedError) as caught:
            await requests.hello(N1, HelloRequest(newcomer.revision, ()))

        assert caught.value.refused.code is Code.SHOW
        assert await cluster.change(lambda tables: recovery.awaits(tables, N1))

    with_cluster(tmp_path, body)


def test_reports_of_one_recovery_do_not_count_for_the_next_where_the_state_was_lost_twice() -> None:
    """The epoch is lost with the state; the nodes' records tell what it was."""
    tables = new_tables()
    uids = [join(tables, number, f"n{number}").uid for number in (1, 2)]

    for _ in range(2):
        tables.put(STATE, STATE, None)
        tables = copy(tables)
        recovery.remake_state(tables)
        recovery.begin(tables, 4, 0.0, paused=True)

        assert {each.uid for each in recovery.waiting_for(tables)} == set(uids)
        recovery.note_report(tables, uids[0], 4)
        assert tables.state.recovery is not None
        recovery.note_report(tables, uids[1], 4)
        assert tables.state.recovery is None


def test_a_recovery_ends_when_the_last_that_was_awaited_is_removed(tmp_path: Path) -> None:
    """No other node says hello for weeks: whose session goes on has reported for good."""

    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        await cluster.change(lambda tables: recovery.begin(tables, 4, 0.0, paused=True))
        await cluster.change(lambda tables: recovery.note_report(tables, N1, 4))
        assert await cluster.change(lambda tables: tables.state.recovery) is not None

        await cluster.remove("n2")

        assert await cluster.change(lambda tables: tables.state.recovery) is None

    with_cluster(tmp_path, body)


def test_a_recovery_of_which_no_node_has_reported_goes_on_when_all_are_removed(
    tmp_path: Path,
) -> None:
    async def body(store: OneByOneStore, cluster: Cluster) -> None:
        await cluster.change(two_nodes)
        await cluster.change(lambda tables: recovery.begin(tables, 4, 0.0, paused=True))

        await cluster.remove("n1")
        await cluster.remove("n2")

        assert await cluster.change(lambda tables: tables.state.recovery) is not None

    with_cluster(tmp_path, body)
