"""The ladders of a thousand peers: asked evenly, from the start of the node on."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from ipaddress import IPv4Address

import pytest

from limpet.base.addresses import Endpoint
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.paths.ladder.candidates import CandidateFacts
from limpet.paths.ladder.path_mtu import SIZES_BYTES
from limpet.paths.ladder.peer_ladders import Peer, PeerLadders
from limpet.paths.ladder.probe_scheduler import OTHER_PER_S
from limpet.paths.ladder.probe_state import Question
from limpet.paths.probe.messages import AnsweredBy

PEERS = 1000
MINUTES = 30
PLANNED_PER_S = 5.7
"""A thousand tunnelled peers without traffic: each every 200 s, and every 6,000 s what it carries
(the size that is known, and three times the next one)."""
ROUND_TRIP_S = 0.02
PATH_BYTES = 1400
OURS: Endpoint = (IPv4Address("192.0.2.1"), 51820)


def end_of(number: int) -> Endpoint:
    return IPv4Address("10.1.0.0") + number, 51820


def asked_per_minute(chance: random.Random, *, kept: bool) -> tuple[Counter[int], Counter[int]]:
    """Probes that a node sends that has just started, by the minute, and the moments at which it
    has sent some of them; all peers answer, and ask as often themselves.

    `kept`: it knows from its last run how it reaches them."""
    ladders = PeerLadders("a" * 24, chance.random, UnprovenBudget())
    asked: Counter[int] = Counter()
    moments: Counter[int] = Counter()
    coming: list[tuple[float, int, str, Question | None]] = []
    order = itertools.count()
    for number in range(PEERS):
        uid = f"{number:024}"
        way = PeerPath(transports.TUNNEL, PATH_BYTES, endpoint=end_of(number))
        peer: Peer | None = ladders.add(uid, way if kept else None)
        assert peer is not None
        peer.facts = CandidateFacts(tunnel=True, endpoints=(end_of(number),))
        ladders.know(peer, (), at_s=number / OTHER_PER_S, urgent=False)
        ladders.settle(peer)
        heapq.heappush(coming, (chance.uniform(0, 200), next(order), uid, None))
    now_s = 0.0
    while now_s < MINUTES * 60:
        now_s = max(now_s, min(ladders.next_s(now_s), coming[0][0] if coming else math.inf))
        while coming and coming[0][0] <= now_s:
            _, _, uid, question = heapq.heappop(coming)
            peer = ladders.get(uid)
            assert peer is not None
            if question is None:
                end = peer.facts.endpoints[0]
                peer.ladder.heard(end, now_s, relayed=False, in_use=True, punch=False)
                again_s = now_s + chance.uniform(180, 220)
                heapq.heappush(coming, (again_s, next(order), uid, None))
            else:
                ladders.answered(peer, question, now_s, ROUND_TRIP_S, AnsweredBy("eth0"))
                peer.ladder.told(PeerPath(transports.TUNNEL, PATH_BYTES, endpoint=OURS))
            ladders.settle(peer)
        before = asked.total()
        while (found := ladders.take(now_s)) is not None:
            peer, vital = found
            questions, held_back = ladders.questions(peer, now_s, vital=vital)
            assert not held_back
            for question in questions:
                asked[int(now_s // 60)] += 1
                if question.packet_bytes <= PATH_BYTES:
                    answer = (now_s + ROUND_TRIP_S, next(order), peer.uid, question)
                    heapq.heappush(coming, answer)
            ladders.settle(peer)
        moments[int(now_s // 60)] += asked.total() > before
    return asked, moments


@pytest.mark.parametrize("kept", [True, False])
def test_a_thousand_idle_peers_are_asked_evenly_from_the_start_on(
    kept: bool, chance: random.Random
) -> None:
    """Neither those that answer first are asked again sooner than is planned for so many, nor are
    all asked again at once because they were asked together at the start."""
    asked, moments = asked_per_minute(chance, kept=kept)
    # At first each is asked, and where nothing is known also for all sizes, three times at most.
    at_first = 1 if kept else 2 + 3 * len(SIZES_BYTES)
    assert PEERS <= asked[0] + asked[1] <= PEERS * at_first + 120 * 1.4 * PLANNED_PER_S
    later = [asked[minute] / 60 for minute in range(1 if kept else 2, MINUTES)]
    assert max(later) <= 1.4 * PLANNED_PER_S
    assert sum(later) / len(later) == pytest.approx(PLANNED_PER_S, rel=0.15)
    # One moment each four seconds, and three for each peer that is asked for its size: each about
    # once an hour. Each by itself they would be nearly 300.
    settled = range(10, MINUTES)
    assert sum(moments[minute] for minute in settled) / len(settled) <= 60 / 4 + 60 * 0.9
