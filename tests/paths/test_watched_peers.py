"""Peers that somebody looks at are asked closely for as long as the lease lives, and no longer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

import pytest

from limpet.base.errors import LimpetError
from limpet.cluster.documents import Source
from limpet.paths.watched_peers import WatchedPeers
from tests.paths.probing_bed import Node, PathBed, introduce
from tests.unit.cluster_values import grant, told
from tests.waiting import until


@pytest.fixture(name="bed")
def _bed() -> Iterator[PathBed]:
    bed = PathBed()
    yield bed
    bed.close()


def is_watched(node: Node, peer: Node) -> bool:
    ladder = node.probing.ladder(peer.uid)
    return ladder is not None and ladder.watched and ladder.active


def test_a_peer_is_watched_while_somebody_looks_or_it_serves(bed: PathBed) -> None:
    one, other = nodes = bed.node(1), bed.node(2)
    switch = bed.switch("switch")
    for node in nodes:
        node.plug("eth0", switch, f"192.0.2.{node.number}/24")

    async def scenario() -> None:
        for node in nodes:
            node.start()
        introduce(*nodes)
        watched = WatchedPeers(one.membership, one.probing)
        await one.until(lambda: one.path(other) is not None)
        assert not is_watched(one, other)

        assert watched.watch([other.uid], 0.3) == (1, 1)
        assert is_watched(one, other)
        await until(lambda: not is_watched(one, other))  # by itself: nobody said so again

        watched.serve((other.identity.name,))
        assert is_watched(one, other)
        watched.watch((), 0.05)
        await until(lambda: watched._onlookers.ends_s(time.monotonic()) == math.inf)
        watched.look()  # as its timer does
        assert is_watched(one, other)
        watched.serve(())
        assert not is_watched(one, other)
        for too_long in (0.0, -1.0, 1e9, float("nan")):
            with pytest.raises(LimpetError, match="watch: for"):
                watched.watch((), too_long)
        watched.stop()
        for node in nodes:
            await node.stop()

    asyncio.run(scenario())


def test_of_two_nodes_of_one_name_the_one_that_was_not_removed_is_watched(bed: PathBed) -> None:
    one = bed.node(1)
    one.plug("eth0", bed.switch("switch"), "192.0.2.1/24")

    async def scenario() -> None:
        one.start()
        living = told(2, sequence=1, name="crane")
        removed = told(3, name="crane", segments=(), tombstone=True)
        for each in (living, removed):
            one.membership.offer(each, source=Source.NEIGHBOUR)
        watched = WatchedPeers(one.membership, one.probing)

        watched.serve(("crane",))

        ladder = one.probing.ladder(grant(2).uid)
        assert ladder is not None
        assert ladder.watched
        watched.stop()
        await one.stop()

    asyncio.run(scenario())


def test_watched_peers_are_asked_before_all_others_when_the_links_are_others(bed: PathBed) -> None:
    one = bed.node(1)
    one.plug("eth0", bed.switch("switch"), "192.0.2.1/24")

    def asked_at_once() -> set[str]:
        ladders = {uid: one.probing.ladder(uid) for uid in uids}
        return {uid for uid, each in ladders.items() if each and each.due_s(vital=True) < math.inf}

    uids = {grant(number).uid for number in range(2, 50)}

    async def scenario() -> None:
        one.start()
        for number in range(2, 50):
            one.membership.offer(told(number, sequence=1), source=Source.NEIGHBOUR)
        one.set_addresses("eth0", "192.0.2.101/24")
        one.read_links()
        others = uids - asked_at_once()
        assert others

        watched = frozenset(sorted(others)[:10])
        one.probing.set_watched(watched)
        one.set_addresses("eth0", "192.0.2.102/24")
        one.read_links()

        assert watched < asked_at_once()
        await one.stop()

    asyncio.run(scenario())
