"""Peers that somebody looks at: who they are, for how long, and what asking them costs."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Collection
from ipaddress import IPv4Address, ip_interface

import pytest

from limpet.base.addresses import Endpoint, UnderlayLink
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.paths.ladder.candidates import CandidateFacts
from limpet.paths.ladder.peer_ladders import Peer, PeerLadders
from limpet.paths.ladder.probe_scheduler import RATE_PER_S
from limpet.paths.ladder.probe_state import Question
from limpet.paths.probe.messages import AnsweredBy
from limpet.paths.watching import (
    DOUBT_S,
    MOST_IN_DOUBT,
    MOST_LOOKED_AT,
    MOST_SERVING,
    Onlookers,
    serving,
)

RTT_S = 0.02
LINK = UnderlayLink("eth0", 2, "02:00:00:00:00:01", 1500, (ip_interface("10.1.0.1/16"),))
PEERS = {f"{number:024}" for number in range(1000)}
FEW = set(sorted(PEERS)[:10])
NAMED = sorted(PEERS)[-3:]


def test_nobody_is_looked_at_before_and_after() -> None:
    onlookers = Onlookers()
    assert onlookers.looked_at(FEW, 0.0) == set()
    assert onlookers.ends_s(0.0) == math.inf

    onlookers.look((), 10.0)

    assert onlookers.looked_at(FEW, 9.9) == FEW
    assert onlookers.ends_s(9.9) == 10.0
    assert onlookers.looked_at(FEW, 10.0) == set()
    assert onlookers.ends_s(10.0) == math.inf


def test_whoever_looks_for_longer_is_not_cut_short() -> None:
    onlookers = Onlookers()
    onlookers.look(NAMED, 30.0)
    onlookers.look(NAMED, 10.0)

    assert onlookers.looked_at(PEERS, 20.0) >= set(NAMED)
    assert onlookers.ends_s(20.0) == 30.0


def test_of_a_thousand_peers_few_are_watched_and_what_is_shown_comes_first() -> None:
    onlookers = Onlookers()
    onlookers.look((), 10.0)
    first = onlookers.looked_at(PEERS, 1.0)
    onlookers.look([*NAMED, "of no peer"], 10.0)
    then = onlookers.looked_at(PEERS, 1.0)

    assert len(first) == len(then) == MOST_LOOKED_AT
    assert set(NAMED) <= then
    assert len(first & then) == MOST_LOOKED_AT - len(NAMED)


def test_those_shown_last_stay_of_many_that_are_shown() -> None:
    onlookers = Onlookers()
    for uid in sorted(PEERS):
        onlookers.look([uid], 10.0)

    assert onlookers.looked_at(PEERS, 1.0) == set(sorted(PEERS)[-MOST_LOOKED_AT:])


def test_nodes_that_serve_are_watched_and_those_that_fell_silent_until_they_answer() -> None:
    uids = [(f"node-{number}", f"{number:024}") for number in range(100)]
    names = [name for name, _ in reversed(uids)]

    first = uids[0][1]
    assert serving((), uids, (), ()) == set()
    assert serving((), uids, [first], [first, "removed"]) == {first}
    assert serving(names, uids, (), ()) == {uid for _, uid in uids[-MOST_SERVING:]}
    # Who is silent takes nobody's place, also where it is in rotation still: all others are, too.
    silent = {uid for _, uid in uids[-10:]}
    watched = {uid for _, uid in uids[-MOST_SERVING - 10 :]}
    assert serving(names, uids, silent, ()) == serving(names, uids, silent, silent) == watched
    assert len(serving(names, uids, (), (), in_doubt=True)) == min(len(uids), MOST_IN_DOUBT)


class Asked:
    """A node with peers that all answer, but for those that are dead."""

    def __init__(self, count: int, chance: random.Random, *, routed: bool = False) -> None:
        """By tunnels, or `routed`: on the same link."""
        self.ladders = PeerLadders("a" * 24, chance.random, UnprovenBudget())
        self.uids = sorted(PEERS)[:count]
        self.now_s = 0.0
        self.dead: set[str] = set()
        self.silent_s: dict[str, float] = {}
        """When it was found out that they are."""
        self._serves = False
        self.serving: frozenset[str] = frozenset()
        self._looks_s = math.inf
        self._coming: list[tuple[float, int, str, Question]] = []
        self._order = itertools.count()
        for number, uid in enumerate(self.uids):
            address = IPv4Address("10.1.0.0") + number + 2
            if routed:
                peer = self.ladders.add(uid, PeerPath(transports.ROUTE, 1500, "eth0", (address,)))
                peer.facts = CandidateFacts((address,), 7471, overlay=(4,))
                links: tuple[UnderlayLink, ...] = (LINK,)
            else:
                end: Endpoint = (address, 51820)
                peer = self.ladders.add(uid, PeerPath(transports.TUNNEL, 1400, endpoint=end))
                peer.facts, links = CandidateFacts(tunnel=True, endpoints=(end,)), ()
            self.ladders.know(peer, links, at_s=chance.random(), urgent=False)
            self.ladders.settle(peer)

    def watch(self, uids: Collection[str]) -> None:
        for peer in self.ladders.set_watched(frozenset(uids), self.now_s):
            self._settle(peer)

    def serve(self) -> None:
        """All of them have endpoints, the first of the most Services. Those stay in rotation even
        when they are silent, as where all of a Service's are in doubt."""
        self._serves = True
        self._look()

    def _look(self) -> None:
        reach = self.ladders.reach
        reach.take()
        doubt_ends_s = reach.doubted_s + DOUBT_S
        in_doubt = self.now_s < doubt_ends_s
        self._looks_s = doubt_ends_s if in_doubt else math.inf
        before = self.serving & reach.silent
        names = zip(self.uids, self.uids, strict=True)
        self.serving = frozenset(serving(self.uids, names, reach.silent, before, in_doubt=in_doubt))
        self.watch(self.serving)

    def _settle(self, peer: Peer) -> None:
        self.ladders.settle(peer)
        if self.ladders.reach.note(peer.uid, peer.ladder, self.now_s) and self._serves:
            self._looks_s = self.now_s

    def run(self, seconds: float) -> float:
        """Probes a second."""
        end_s, sent = self.now_s + seconds, 0
        while True:
            coming_s = self._coming[0][0] if self._coming else math.inf
            next_s = min(self.ladders.next_s(self.now_s), coming_s, self._looks_s)
            self.now_s = max(self.now_s, next_s)
            if self.now_s >= end_s:
                self.now_s = end_s
                return sent / seconds
            while self._coming and self._coming[0][0] <= self.now_s:
                _, _, uid, question = heapq.heappop(self._coming)
                peer = self.ladders.get(uid)
                assert peer is not None
                self.ladders.answered(peer, question, self.now_s, RTT_S, AnsweredBy("eth0"))
                self._settle(peer)
            while (found := self.ladders.take(self.now_s)) is not None:
                peer, vital = found
                for question in self.ladders.questions(peer, self.now_s, vital=vital)[0]:
                    sent += 1
                    if peer.uid not in self.dead:
                        at_s = self.now_s + RTT_S
                        heapq.heappush(self._coming, (at_s, next(self._order), peer.uid, question))
                self._settle(peer)
            for uid in self.ladders.reach.silent - self.silent_s.keys():
                self.silent_s[uid] = self.now_s
            if self._serves and self._looks_s <= self.now_s:
                self._look()


def test_a_peer_that_is_looked_at_is_asked_each_second_and_one_that_is_not_as_rarely_as_ever(
    chance: random.Random,
) -> None:
    node = Asked(100, chance)
    node.run(300)
    idle_per_s = node.run(300)
    watched = Onlookers()
    watched.look((), node.now_s + 60)
    chosen = watched.looked_at(set(node.uids), node.now_s)

    node.watch(chosen)
    looked_at_per_s = node.run(59)
    node.watch(watched.looked_at(set(node.uids), node.now_s + 1))
    node.run(30)  # what was asked last is done with
    after_per_s = node.run(300)

    assert idle_per_s < 100 / 15
    assert MOST_LOOKED_AT * 0.9 < looked_at_per_s < MOST_LOOKED_AT * 1.1 + idle_per_s
    assert looked_at_per_s < RATE_PER_S / 2
    assert abs(after_per_s - idle_per_s) < idle_per_s * 0.15


@pytest.mark.parametrize("routed", [False, True], ids=["tunnels", "routes"])
@pytest.mark.parametrize(
    ("count", "dead", "within_s"),
    [
        (33, slice(33), (3.0, 3.0)),
        (100, slice(100), (4.0, 5.0)),
        (100, slice(40, 90), (6.0, 4.5)),  # none of those that are watched at first
        (300, slice(100), (4.5, 6.5)),
        pytest.param(1000, slice(1000), (20.0, 45.0), marks=pytest.mark.soak),
    ],
)
def test_many_nodes_that_serve_and_fall_silent_at_once_are_found_out_soon_the_important_first(
    chance: random.Random, count: int, dead: slice, within_s: tuple[float, float], routed: bool
) -> None:
    node = Asked(count, chance, routed=routed)
    node.run(120)
    node.serve()
    node.run(30 + chance.random())
    assert not node.silent_s
    began_s, node.dead = node.now_s, set(node.uids[dead])

    node.run(within_s[routed])

    took_s = {uid: at_s - began_s for uid, at_s in node.silent_s.items()}
    assert took_s.keys() == node.dead
    watched = [uid for uid in node.uids[:MOST_SERVING] if uid in node.dead]
    assert max((took_s[uid] for uid in watched), default=0.0) < (3.5 if routed else 3.0)

    node.dead = set()
    node.run(30 * max(1, count // 100))
    assert not node.ladders.reach.silent


def test_more_are_watched_while_somebody_is_in_doubt_and_no_longer(chance: random.Random) -> None:
    node = Asked(200, chance)
    node.run(120)
    node.serve()
    node.run(30)
    assert len(node.serving) == MOST_SERVING

    node.dead = {node.uids[0]}
    while len(node.serving) == MOST_SERVING:
        node.run(0.05)
    assert len(node.serving) == MOST_IN_DOUBT
    assert node.silent_s == {}
    node.dead.clear()
    node.run(DOUBT_S + 2)

    assert node.silent_s == {}
    assert len(node.serving) == MOST_SERVING
