"""The next key of the cluster has signed it, and the controller tells it before the network.

Where the store is Kubernetes each kind has a watch of its own, and one may be behind the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from limpet.cloud.join import _hear_for_all_nodes
from limpet.cluster.api import (
    HelloAnswer,
    PodAnswer,
    ShowAnswer,
    WatchKind,
    WatchLine,
    encode,
    encode_line,
)
from limpet.cluster.documents import Sealed
from limpet.cluster.identity import Identity
from limpet.cluster.keys import ClusterKey, endorse, public_key_of
from limpet.cluster.kinds import POLICY
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.cluster.seal import seal
from limpet.cluster.snapshot import completeness
from limpet.paths.report import PathReportAnswer
from tests.beds.member import membership_of
from tests.beds.rogue import STREAM, Authority, answer, chunk, serving, take_request
from tests.cloud.bed import Member, Running
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    known_of,
    network,
    node_key,
    seal_grant,
    seal_network,
    told,
)
from tests.waiting import until

NEXT_KEY = node_key(201)
ENDORSED = (ClusterKey(PINNED), endorse(public_key_of(NEXT_KEY), CLUSTER_KEY))
BEFORE = seal_network(network(), CLUSTER_KEY)
ROTATED = seal_network(network(2, keys=ENDORSED, revision=10, rotated_at=(10,)), NEXT_KEY)
OWN = seal_grant(grant(1, generation=2, revision=11, era=1), NEXT_KEY)
REMOVAL = seal_grant(
    grant(2, generation=2, revision=12, era=1, tombstone=True, segments=()), NEXT_KEY
)
WEB = seal(POLICY, SignedPolicy("NetworkPolicy/shop/web", 13, {"x": "y"}, 1), NEXT_KEY)
ANSWERS = {"hello": HelloAnswer(1, (), pods_sequence=0), "pods": PodAnswer(0)}
OTHERS = {"show": ShowAnswer(0), "paths": PathReportAnswer(0)}


def lines(*documents: Sealed, version: str = "") -> bytes:
    said = [WatchLine(WatchKind.DOCUMENT, document=each) for each in documents]
    if version:
        said.append(WatchLine(WatchKind.BOOKMARK, version))
    return b"".join(map(encode_line, said))


class Feed:
    """Tells the rest of its first watch, with the network in it, when it is asked to."""

    def __init__(self, *first: bytes, rest: bytes = b"") -> None:
        self._first, self._rest = first, rest
        self.begun: list[str] = []
        """Where each watch began; empty: with a list."""
        self.go_on = asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            url = urlsplit((await take_request(reader)).split(b" ")[1].decode())
            of = url.path.rpartition("/")[2]
            if of == "watch":
                await self._tell(parse_qs(url.query).get("since", [""])[0], writer)
                await reader.read()  # until the other goes
                return
            writer.write(answer(encode({**ANSWERS, **OTHERS}[of])))
            await writer.drain()

    async def _tell(self, since: str, writer: asyncio.StreamWriter) -> None:
        self.begun.append(since)
        writer.write(STREAM)
        if len(self.begun) > 1:
            writer.write(chunk(lines(ROTATED, OWN, REMOVAL, WEB.sealed, version="last")))
            return
        for each in self._first:
            writer.write(chunk(each))
            await writer.drain()
        await self.go_on.wait()
        writer.write(chunk(self._rest))


@contextlib.asynccontextmanager
async def hearing(folder: Path, feed: Feed) -> AsyncIterator[Running]:
    """A node that knows the key of before, and one other node."""
    rogue = Authority(folder / "rogue")
    async with serving(feed.talk, rogue.server_context()) as at:
        identity = rogue.identity(at, private_key=node_key(1), pinned_key=PINNED)
        membership_of(identity, BEFORE, *told(1), *told(2)).close()
        completeness.doubt(identity.folder)
        node = Member(folder / "n", "n")
        running = Running(node.folders, identity, lambda _grant: (), "boot")
        running.session.start()
        try:
            yield running
        finally:
            await running.session.stop()
            running.close()


@pytest.mark.parametrize("begin", ["", "first"])
def test_what_came_before_the_network_is_told_again_once_that_has_come(
    tmp_path: Path, begin: str
) -> None:
    async def scenario() -> None:
        early = lines(OWN, REMOVAL, WEB.sealed, version="behind")
        listed = [lines(version=begin)] if begin else []
        feed = Feed(*listed, early, rest=lines(ROTATED, version="further"))
        async with hearing(tmp_path, feed) as running:
            known = running.membership.replica
            await until(lambda: known.counters["cloud_bad"] == 3)
            feed.go_on.set()
            await until(lambda: known.known.find(WEB.key) is not None)
            assert known.known.find(WEB.key) == WEB
            assert running.membership.tombstone_of(grant(2).uid) == REMOVAL
            assert running.membership.signed_by_former_keys() == []
            assert feed.begun == ["", begin]

    asyncio.run(scenario())


def test_a_policy_that_came_before_the_network_is_missed_until_it_is_told_again(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        feed = Feed(lines(WEB.sealed, version="behind"), rest=lines(ROTATED, version="further"))
        async with hearing(tmp_path, feed) as running:
            known = running.membership.replica
            await until(lambda: known.counters["cloud_bad"] == 1)
            await until(lambda: running.session.state.connected)
            assert not known.has_heard_all
            feed.go_on.set()
            await until(lambda: known.has_heard_all)
            assert known.known.find(WEB.key) == WEB

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("first", "is_heard", "is_all"),
    [
        ([WEB.sealed], False, False),
        ([BEFORE, WEB.sealed, ROTATED, WEB.sealed], True, True),
        ([ROTATED, WEB.sealed], True, True),
    ],
)
def test_who_joins_while_the_key_is_rotated_hears_its_network_or_knows_that_policies_are_missing(
    tmp_path: Path, first: list[Sealed], is_heard: bool, is_all: bool
) -> None:
    async def scenario() -> None:
        rogue = Authority(tmp_path / "rogue")
        feed = Feed(lines(*first, version="first"))
        async with serving(feed.talk, rogue.server_context()) as at:
            identity: Identity = rogue.identity(at, private_key=node_key(1), pinned_key=PINNED)
            known, heard_all = await _hear_for_all_nodes(identity, known_of(generation=1))
        assert heard_all == is_all
        assert (known.find(WEB.key) is not None) == is_heard

    asyncio.run(scenario())
