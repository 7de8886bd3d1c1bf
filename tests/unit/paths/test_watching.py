"""Peers that somebody looks at: who they are, for how long, and what asking them costs."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from ipaddress import IPv4Address

from limpet.base.addresses import Endpoint
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.paths.ladder.candidates import CandidateFacts
from limpet.paths.ladder.peer_ladders import PeerLadders
from limpet.paths.ladder.probe_scheduler import RATE_PER_S
from limpet.paths.ladder.probe_state import Question
from limpet.paths.watching import MOST_LOOKED_AT, MOST_SERVING, Onlookers, serving

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

    assert serving((), uids, ()) == set()
    assert serving((), uids, [uids[0][1]]) == {uids[0][1]}
    assert serving(names, uids, ()) == {uid for _, uid in uids[-MOST_SERVING:]}


class Asked:
    """A node with tunnelled peers that all answer."""

    def __init__(self, count: int, chance: random.Random) -> None:
        self.ladders = PeerLadders("a" * 24, chance.random, UnprovenBudget())
        self.uids = sorted(PEERS)[:count]
        self.now_s = 0.0
        self._coming: list[tuple[float, int, str, Question]] = []
        self._order = itertools.count()
        for number, uid in enumerate(self.uids):
            end: Endpoint = (IPv4Address("10.1.0.0") + number, 51820)
            peer = self.ladders.add(uid, PeerPath(transports.TUNNEL, 1400, endpoint=end))
            peer.facts = CandidateFacts(tunnel=True, endpoints=(end,))
            self.ladders.know(peer, (), at_s=chance.random(), urgent=False)
            self.ladders.settle(peer)

    def watch(self, uids: set[str]) -> None:
        for peer in self.ladders.set_watched(frozenset(uids), self.now_s):
            self.ladders.settle(peer)

    def run(self, seconds: float) -> float:
        """Probes a second."""
        end_s, sent = self.now_s + seconds, 0
        while True:
            coming_s = self._coming[0][0] if self._coming else math.inf
            self.now_s = max(self.now_s, min(self.ladders.next_s(self.now_s), coming_s))
            if self.now_s >= end_s:
                self.now_s = end_s
                return sent / seconds
            while self._coming and self._coming[0][0] <= self.now_s:
                _, _, uid, question = heapq.heappop(self._coming)
                peer = self.ladders.get(uid)
                assert peer is not None
                self.ladders.answered(peer, question, self.now_s, 0.02, "eth0")
                self.ladders.settle(peer)
            while (found := self.ladders.take(self.now_s)) is not None:
                peer, vital = found
                for question in self.ladders.questions(peer, self.now_s, vital=vital)[0]:
                    sent += 1
                    at_s = self.now_s + 0.02
                    heapq.heappush(self._coming, (at_s, next(self._order), peer.uid, question))
                self.ladders.settle(peer)


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
