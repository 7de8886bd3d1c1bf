"""The ladder against a world where things answer or do not, and nothing else is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.base.addresses import Address, UnderlayLink
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind
from limpet.paths.ladder.candidates import CandidateFacts
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.probe_state import MISSES, QUICK_S
from limpet.paths.probe.messages import AnsweredBy, Candidate

PORT = 7471
A, A6, B = (ip_address(text) for text in ("192.0.2.9", "2001:db8::9", "10.9.0.9"))
OTHER = ip_address("192.0.2.77")
ETH0 = UnderlayLink(
    "eth0",
    2,
    "02:00:00:00:00:01",
    1500,
    (
        ip_interface("192.0.2.1/24"),
        ip_interface("2001:db8::1/64"),
        ip_interface("10.1.0.1/24"),
    ),
)
LAN, LAN6, MORE = (own.network for own in ETH0.addresses)
WWAN0 = UnderlayLink("wwan0", 3, "", 1400, (ip_interface("203.0.113.5/32"),))
FACTS = CandidateFacts(
    (A, A6, B), PORT, overlay=(4, 6), devices=frozenset({("vxlan", 4), ("vxlan", 6)})
)
RTT_S = 0.004


def both() -> PeerPath:
    return PeerPath(transports.ROUTE, 1500, "eth0", (A, A6), A, prefixes=(LAN, LAN6))


def vxlan(address: Address) -> PeerPath:
    prefixes = {A: (LAN,), A6: (LAN6,), B: (LAN,)}[address]
    return PeerPath(transports.VXLAN, 1500, underlay=address, prefixes=prefixes)


def link(address: Address) -> Candidate:
    return Candidate(ProbeKind.LINK, address, PORT, "eth0")


def site(address: Address) -> Candidate:
    return Candidate(ProbeKind.SITE, address, PORT)


def overlay(address: Address, version: int | None = None) -> Candidate:
    return Candidate(ProbeKind.OVERLAY, address, PORT, "eth0", version or address.version)


ALL = frozenset(
    {link(A), link(A6), site(A), site(A6), site(B), overlay(A), overlay(A6), overlay(A6, 4)}
)


@dataclass
class World:
    """Time passes as fast as the ladder asks; `answers` says what is answered."""

    ladder: Ladder = field(default_factory=Ladder)
    answers: Callable[[Candidate], bool] = ALL.__contains__
    facts: CandidateFacts = FACTS
    links: tuple[UnderlayLink, ...] = (ETH0,)
    now_s: float = 0.0
    sent: list[tuple[float, Candidate]] = field(default_factory=list)
    changes: list[tuple[float, PeerPath | None]] = field(default_factory=list)
    missed: dict[Candidate, int] = field(default_factory=dict)
    """In a row, as the world knows it."""
    heard: dict[Candidate, int] = field(default_factory=dict)
    lost: set[Candidate] = field(default_factory=set)
    """Missed three times in a row, and not heard sixteen times in a row since."""
    on_change: Callable[[PeerPath | None, PeerPath | None], None] = lambda old, new: None

    def __post_init__(self) -> None:
        self.settle()

    def settle(self, *, at_s: float | None = None, urgent: bool = True) -> None:
        with_path = self.ladder.path
        at_s = self.now_s if at_s is None else at_s
        self.ladder.settle(self.facts, self.links, at_s=at_s, urgent=urgent)
        self._note(with_path)

    def run(self, seconds: float) -> World:
        end_s = self.now_s + seconds
        while True:
            due_s = min(self.ladder.due_s(vital=True), self.ladder.due_s(vital=False))
            if due_s > end_s:
                self.now_s = end_s
                return self
            self.now_s = max(self.now_s, due_s)
            for vital in (True, False):
                self._send(vital=vital)

    def _send(self, *, vital: bool) -> None:
        before = self.ladder.path
        questions = self.ladder.take_due(self.now_s, vital=vital)
        self._note(before)
        for candidate in (question.candidate for question in questions):
            self.sent.append((self.now_s, candidate))
            self.missed[candidate] = self.missed.get(candidate, 0) + 1
            if not self.answers(candidate):
                self.heard[candidate] = 0
                if self.missed[candidate] >= MISSES:
                    self.lost.add(candidate)
                continue
            before = self.ladder.path
            self.missed[candidate] = 0
            self.heard[candidate] = self.heard.get(candidate, 0) + 1
            if self.heard[candidate] >= 16:
                self.lost.discard(candidate)
            at_s = self.now_s + RTT_S
            self.ladder.answered(candidate, at_s, rtt_s=RTT_S, via=self._answered_by(candidate))
            self._note(before)

    def _answered_by(self, candidate: Candidate) -> AnsweredBy:
        """By the first link that there is for it."""
        for link in self.links:
            for own in link.addresses:
                if (
                    candidate.device in ("", link.ifname)
                    and own.version == candidate.address.version
                ):
                    return AnsweredBy(link.ifname, own.ip)
        return AnsweredBy()

    def _note(self, before: PeerPath | None) -> None:
        if self.ladder.path != before:
            self.changes.append((self.now_s, self.ladder.path))
            self.on_change(before, self.ladder.path)

    @property
    def path(self) -> PeerPath | None:
        return self.ladder.path


def only(*candidates: Candidate) -> Callable[[Candidate], bool]:
    return frozenset(candidates).__contains__


def without(*candidates: Candidate) -> Callable[[Candidate], bool]:
    return (ALL - frozenset(candidates)).__contains__


# What is proven by what


def test_an_answered_link_and_an_answered_overlay_probe_make_a_route() -> None:
    assert World().run(1).path == both()


def test_a_switch_that_drops_unknown_sources_leaves_vxlan() -> None:
    world = World(answers=without(overlay(A), overlay(A6), overlay(A6, 4))).run(10)
    assert world.path == vxlan(A)


def test_an_equal_subnet_without_an_answer_proves_nothing() -> None:
    assert World(answers=only()).run(600).path is None


def test_the_overlay_is_not_asked_over_a_link_that_has_not_answered() -> None:
    world = World(answers=only(site(A), overlay(A), overlay(A6))).run(600)
    assert world.path == vxlan(A)
    assert all(candidate.kind is not ProbeKind.OVERLAY for _at_s, candidate in world.sent)


def test_behind_a_router_the_site_probe_leaves_vxlan() -> None:
    assert World(facts=replace(FACTS, addresses=(B,))).run(1).path == vxlan(B)


def test_a_version_that_does_not_get_through_goes_by_vxlan() -> None:
    world = World(answers=without(overlay(A6))).run(5)
    assert world.path == PeerPath(transports.ROUTE, 1500, "eth0", (A,), A, prefixes=(LAN,))


def test_a_route_for_ipv6_alone_is_none_since_ipv4_would_follow_it() -> None:
    assert World(answers=without(overlay(A))).run(5).path == vxlan(A)


def test_ipv4_goes_by_a_next_hop_of_ipv6_where_that_is_proven() -> None:
    facts = replace(FACTS, addresses=(A6,))
    world = World(facts=facts).run(5)
    assert world.path == PeerPath(transports.ROUTE, 1500, "eth0", (A6,), A6, prefixes=(LAN6,))
    assert World(facts=facts, answers=without(overlay(A6, 4))).run(5).path == vxlan(A6)


def test_a_link_that_is_not_ethernet_gets_no_route() -> None:
    tun = replace(ETH0, mac="")
    world = World(links=(tun,)).run(5)
    assert world.path == vxlan(A)
    assert {candidate.kind for _at_s, candidate in world.sent} == {ProbeKind.SITE}


def test_our_own_address_is_never_asked() -> None:
    ours = ETH0.addresses[0].ip
    world = World(facts=replace(FACTS, addresses=(ours, B))).run(5)
    assert {candidate.address for _at_s, candidate in world.sent} == {B}


def test_a_family_without_vxlan_devices_is_no_underlay() -> None:
    facts = replace(FACTS, overlay=(), devices=frozenset({("vxlan", 6)}))
    assert World(facts=facts).run(5).path == vxlan(A6)


# Falling and climbing


def test_the_last_path_is_kept_when_nobody_answers() -> None:
    world = World().run(20)
    world.answers = only()
    assert world.run(3600).path == both()
    assert world.changes[-1][0] < 1


def test_an_absent_peer_is_asked_less_and_less() -> None:
    world = World().run(20)
    world.answers = only()
    world.run(600)
    world.sent.clear()
    world.run(600)
    assert len(world.sent) <= 10 * len(world.ladder.candidates)
    assert world.ladder.due_s(vital=True) == math.inf


def test_a_route_that_falls_silent_gives_way_after_three_quick_misses() -> None:
    world = World().run(20)
    world.answers = without(overlay(A), overlay(A6))
    since_s = world.now_s
    world.run(30)
    assert world.path == vxlan(A)
    asked = [at_s for at_s, candidate in world.sent if candidate == overlay(A) and at_s >= since_s]
    fell_s = world.changes[-1][0]
    assert fell_s == pytest.approx(asked[0] + MISSES * QUICK_S, abs=0.01)


def test_a_way_that_went_silent_with_the_rest_is_not_taken_for_what_it_was() -> None:
    world = World().run(60)
    before = list(world.changes)
    world.answers = only()
    world.run(60)
    assert world.changes == before


def test_what_comes_back_is_taken_when_it_has_answered_twice() -> None:
    world = World().run(20)
    world.answers = without(overlay(A), overlay(A6))
    world.run(30)
    world.answers = ALL.__contains__
    world.heard.clear()
    seen: list[int] = []
    world.on_change = lambda _old, _new: seen.append(world.heard[overlay(A)])
    world.run(120)
    assert world.path == both()
    assert seen[0] == 2


def test_a_route_that_flaps_is_taken_less_and_less() -> None:
    world = World()
    world.answers = lambda candidate: (
        candidate in ALL and (candidate.kind is not ProbeKind.OVERLAY or world.now_s % 8 < 4)
    )
    world.run(600)
    assert len([at_s for at_s, _path in world.changes if at_s > 60]) <= 4
    assert world.path == vxlan(A)


def test_a_link_that_is_lost_leaves_vxlan_by_whatever_link_there_will_be() -> None:
    world = World(facts=replace(FACTS, addresses=(A, A6))).run(5)
    world.links = ()
    world.settle()
    assert world.path == vxlan(A)
    world.links = (ETH0,)
    world.settle()
    assert world.run(0.1).path == both()


def test_another_link_on_which_the_peer_is_proven_takes_over_at_once() -> None:
    eth1 = replace(ETH0, ifname="eth1", ifindex=4)
    on_both = ALL | {candidate._replace(device="eth1") for candidate in ALL if candidate.device}
    world = World(links=(ETH0, eth1), answers=on_both.__contains__).run(5)
    assert world.path == both()
    world.links = (eth1,)
    world.settle()
    assert world.path == replace(both(), device="eth1")


# Addresses that change


def test_the_old_path_is_kept_until_the_new_address_answers_and_left_at_once_then() -> None:
    world = World(facts=replace(FACTS, addresses=(A,), overlay=(4,))).run(5)
    old = world.path
    assert old == PeerPath(transports.ROUTE, 1500, "eth0", (A,), A, prefixes=(LAN,))
    world.facts = replace(world.facts, addresses=(OTHER,))
    world.settle()
    assert world.run(30).path == old
    new = {link(OTHER), overlay(OTHER)}
    world.answers = (ALL | new).__contains__
    world.settle()
    assert world.run(0.1).path == replace(old, next_hops=(OTHER,), underlay=OTHER)


def test_an_address_that_the_peer_only_writes_from_serves_where_those_it_names_do_not() -> None:
    world = World(facts=replace(FACTS, addresses=(A,), overlay=())).run(5)
    elsewhere = Candidate(ProbeKind.SITE, B, 999)
    world.answers = only(elsewhere)
    world.facts = replace(world.facts, heard=(B, 999))
    world.settle()
    assert world.run(5).path == vxlan(B)


def test_a_peer_that_is_heard_again_is_asked_at_once() -> None:
    world = World(answers=only()).run(3600)
    world.answers = ALL.__contains__
    world.ladder.nudge(A, world.now_s)
    world.run(0.1)
    assert world.path == both()


def test_a_peer_that_is_heard_very_often_is_not_asked_more_often_for_it() -> None:
    world = World(answers=only()).run(3600)
    world.sent.clear()
    for _ in range(1000):
        world.ladder.nudge(A, world.now_s)
        world.run(0.001)
    assert len(world.sent) <= 2 * (1 / QUICK_S + 1)


def test_a_peer_that_is_heard_on_and_on_and_never_answers_is_asked_ever_more_rarely() -> None:
    """As two ends with a NAT between them hear each other, and prove nothing."""
    world = World(answers=only())
    for _ in range(3000):
        world.ladder.nudge(A, world.now_s)
        world.run(0.1)
    last_minute = [each for at_s, each in world.sent if at_s >= world.now_s - 60]
    assert last_minute.count(site(A)) <= 20
    world.answers = ALL.__contains__
    for _ in range(300):
        world.ladder.nudge(A, world.now_s)
        world.run(0.1)
    assert world.path == both()


# From the disk


def test_a_kept_path_holds_without_a_change_when_all_is_as_it_was() -> None:
    world = World(Ladder(both()))
    assert world.run(60).changes == []


def test_a_kept_path_keeps_its_mtu_until_an_answer_tells_the_link() -> None:
    small = replace(ETH0, mtu_bytes=1400)
    kept = replace(vxlan(B), mtu_bytes=1400)
    world = World(Ladder(kept), facts=replace(FACTS, addresses=(B,)), links=(small,))
    assert world.run(60).changes == []


def test_a_kept_path_that_is_wrong_by_now_is_left() -> None:
    world = World(Ladder(both()), answers=without(overlay(A), overlay(A6)))
    assert world.run(5).path == vxlan(A)


def test_a_kept_path_of_a_peer_that_says_nothing_of_itself_holds() -> None:
    world = World(Ladder(both()), facts=replace(FACTS, addresses=()), answers=only())
    assert world.run(600).path == both()


def test_at_first_nothing_is_asked_before_its_time() -> None:
    ladder = Ladder()
    ladder.settle(FACTS, (ETH0,), at_s=7, urgent=False)
    assert ladder.due_s(vital=False) == 7
    assert ladder.due_s(vital=True) == math.inf


def test_the_path_is_asked_every_five_seconds_and_what_is_beside_it_rarely() -> None:
    world = World().run(10)
    world.sent.clear()
    world.run(100)
    counts = {
        candidate: sum(1 for _s, each in world.sent if each == candidate) for candidate in ALL
    }
    assert counts[overlay(A)] == counts[overlay(A6)] == 20
    assert counts[link(A)] == counts[link(A6)] == counts[site(B)] == 5
    assert counts[site(A)] == counts[site(A6)] == 0


# Whatever happens


@dataclass(frozen=True)
class Phase:
    """How far each address is reached, and which overlay packets get through."""

    reach: dict[Address, ProbeKind | None]
    through: frozenset[tuple[Address, int]]
    lasts_s: float

    def answers(self, candidate: Candidate) -> bool:
        reach = self.reach[candidate.address]
        if candidate.kind is ProbeKind.SITE:
            return reach is not None
        on_link = reach is ProbeKind.LINK
        return on_link and (
            candidate.kind is ProbeKind.LINK
            or (candidate.address, candidate.version) in self.through
        )

    def best(self) -> transports.Transport | None:
        v4, v6 = (self.answers(overlay(address)) for address in (A, A6))
        if v4:
            return transports.ROUTE
        del v6  # alone it makes no route
        return transports.VXLAN if any(self.reach.values()) else None


reaches = st.sampled_from([None, ProbeKind.SITE, ProbeKind.LINK])
phases = st.builds(
    Phase,
    st.fixed_dictionaries({A: reaches, A6: reaches, B: st.sampled_from([None, ProbeKind.SITE])}),
    st.frozensets(st.sampled_from([(A, 4), (A6, 6)])),
    st.sampled_from([0.2, 1.0, 7.0, 400.0]),
)


@settings(deadline=None, max_examples=25)
@given(st.lists(phases, min_size=1, max_size=6))
def test_the_best_way_that_works_is_found_and_then_nothing_changes(
    found: list[Phase],
) -> None:
    world = World(answers=only())
    for phase in [*found, replace(found[-1], lasts_s=400.0)]:
        world.answers = phase.answers
        had_one = world.path is not None
        world.run(phase.lasts_s / 2)
        half_s = world.now_s
        world.run(phase.lasts_s / 2)
        assert not had_one or world.path is not None
        if phase.lasts_s < 400:
            continue
        assert not [at_s for at_s, _path in world.changes if at_s > half_s]
        best = phase.best()
        if best is not None:
            assert world.path is not None
            assert world.path.rung is best
            if best is transports.VXLAN:
                assert world.path.underlay is not None
                assert phase.reach[world.path.underlay] is not None
            else:
                assert world.path.next_hops == ((A, A6) if phase.answers(overlay(A6)) else (A,))


def _stands_on(path: PeerPath) -> list[set[Candidate]]:
    if path.rung is transports.VXLAN and path.underlay is not None:
        return [{link(path.underlay), site(path.underlay)}]
    return [{candidate} for hop in path.next_hops for candidate in (link(hop), overlay(hop))]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.2, 0.5, 0.8]))
def test_whatever_is_lost_a_path_that_answers_now_and_then_is_not_left(
    seed: int, loss: float
) -> None:
    chance = random.Random(seed)
    world = World(answers=lambda candidate: candidate in ALL and chance.random() >= loss)

    def check(old: PeerPath | None, new: PeerPath | None) -> None:
        assert new is not None
        if old is None:
            return
        lost = [
            group
            for group in _stands_on(old)
            if group & world.lost and not any(world.heard.get(candidate) for candidate in group)
        ]
        better = new.rung is transports.ROUTE and (
            old.rung is transports.VXLAN or len(new.next_hops) > len(old.next_hops)
        )
        aside = replace(old, underlay=new.underlay, mtu_bytes=new.mtu_bytes) == new
        assert lost or better or aside, f"{old} was left for {new}"

    world.on_change = check
    world.run(600)
    assert len(world.changes) < 40
