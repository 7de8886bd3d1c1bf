"""What is done about a peer's SAs: two ends against each other, whatever happened before."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from limpet.base.addresses import Endpoint, Prefix
from limpet.cluster.topology.tunnel_end import IPSEC_MTU_BYTES, ipsec_mtu_bytes
from limpet.datapath.tunnel.ipsec.plan import (
    FOREIGN_ENDS_AFTER_S,
    MOST_ROUNDS,
    SECOND_WAITS_S,
    begins,
    cared_for,
    ipsec_state,
    missing,
    next_look_s,
    tend,
)
from limpet.datapath.tunnel.ipsec.state import (
    Care,
    ChildSa,
    EndChild,
    EndIke,
    IkeSa,
    Initiate,
    IpsecPeer,
)
from limpet.datapath.tunnel.state import TunnelDevice, TunnelPeer, TunnelState

KEYS = (bytes(31) + b"\x01", bytes(31) + b"\x02")
OWN = tuple(
    (
        ip_network(f"10.0.{end}.0/24"),
        ip_network(f"10.1.{end}.0/24"),
        ip_network(f"fd00:0:0:{end}::/64"),
    )
    for end in (0, 1)
)
"""Prefixes of the two ends."""
PLACES: tuple[Endpoint, ...] = tuple((ip_address(f"192.0.2.{n}"), 4500) for n in (1, 2, 3))


@dataclass
class Child:
    uniqueid: int
    prefixes: tuple[frozenset[Prefix], frozenset[Prefix]]
    """Of each end."""


@dataclass
class Ike:
    uniqueid: int
    initiator: int
    generations: tuple[int, int]
    remotes: tuple[Endpoint, Endpoint]
    """As each end sees the other."""
    made_s: float
    children: list[Child] = field(default_factory=list)


class Pair:
    """Two ends whose daemons do what they are told at once, and tell both of it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ikes: list[Ike] = []
        self._ids = 0
        self.known = [True, True]
        self._told = [True, True]
        self.look_s = [0.0, 0.0]
        self.cares: list[Care] = [
            cared_for(None, self._peer(end, OWN[1 - end]), first=end == 0, now_s=self.now_s)
            for end in (0, 1)
        ]

    def _peer(self, end: int, allowed: tuple[Prefix, ...]) -> IpsecPeer:
        return IpsecPeer(KEYS[1 - end], b"", frozenset(allowed), PLACES[0])

    def change(self, end: int, **changes: object) -> None:
        peer = replace(self.cares[end].peer, **changes)  # type: ignore[arg-type]
        self.cares[end] = cared_for(self.cares[end], peer, first=end == 0, now_s=self.now_s)
        self._told[end] = True

    def give_endpoint(self, end: int, place: Endpoint) -> None:
        self.change(end, endpoint=place, generation=self.cares[end].peer.generation + 1)

    def sas(self, end: int) -> list[IkeSa]:
        return [
            IkeSa(
                ike.uniqueid,
                KEYS[1 - end],
                ike.generations[end],
                True,
                ike.initiator == end,
                ike.remotes[end],
                f"{ike.uniqueid * 7919 % 1000:04}",
                int(self.now_s - ike.made_s),
                tuple(
                    ChildSa(each.uniqueid, each.prefixes[end], each.prefixes[1 - end])
                    for each in ike.children
                ),
            )
            for ike in self.ikes
        ]

    def step(self, end: int) -> bool:
        """Whether the end had to do anything."""
        self.cares[end], actions = tend(self.cares[end], self.sas(end), self.now_s)
        for action in actions:
            match action:
                case Initiate(prefixes=prefixes):
                    self._initiate(end, prefixes)
                case EndIke(uniqueid):
                    self.ikes = [ike for ike in self.ikes if ike.uniqueid != uniqueid]
                case EndChild(uniqueid):
                    for ike in self.ikes:
                        ike.children = [
                            child for child in ike.children if child.uniqueid != uniqueid
                        ]
        return bool(actions)

    def _initiate(self, end: int, prefixes: frozenset[Prefix]) -> None:
        mine, theirs = self.cares[end].peer, self.cares[1 - end].peer
        if not self.known[1 - end]:
            return
        ike = next((ike for ike in self.ikes if ike.generations[end] == mine.generation), None)
        if ike is None:
            assert mine.endpoint is not None
            generations, remotes = [0, 0], [PLACES[0], PLACES[0]]
            generations[end], generations[1 - end] = mine.generation, theirs.generation
            remotes[end] = mine.endpoint
            remotes[1 - end] = theirs.endpoint or PLACES[0]
            self._ids += 1
            ike = Ike(
                self._ids,
                end,
                (generations[0], generations[1]),
                (remotes[0], remotes[1]),
                self.now_s,
            )
            self.ikes.append(ike)
        remote = prefixes or mine.allowed
        if not remote <= frozenset(OWN[1 - end]):
            return  # a daemon refuses the whole for one prefix that it has no address in
        self._ids += 1
        pair = (theirs.allowed, remote) if end == 0 else (remote, theirs.allowed)
        ike.children.append(Child(self._ids, pair))

    def run(self, seconds: float) -> int:
        """How often something was done. An end looks when it is told of something, and when it
        said that it would."""
        done = 0
        end_s = self.now_s + seconds
        while self.now_s + 0.25 <= end_s:
            self.now_s += 0.25
            for end in (0, 1):
                if self._told[end] or self.look_s[end] <= self.now_s:
                    self._told[end] = False
                    acted = self.step(end)
                    look_s = next_look_s(self.cares[end], self.sas(end), self.now_s)
                    self.look_s[end] = math.inf if look_s is None else look_s
                    self._told = [each or acted for each in self._told]
                    done += acted
            if not any(self._told) and min(self.look_s) > end_s:
                self.now_s = end_s
        return done

    def lose(self, number: int) -> None:
        self.ikes = self.ikes[:number] + self.ikes[number + 1 :]
        self._told = [True, True]

    def carries(self, mine: Prefix, theirs: Prefix) -> bool:
        return any(
            mine in child.prefixes[0] and theirs in child.prefixes[1]
            for ike in self.ikes
            for child in ike.children
        )


ENDS = st.sampled_from((0, 1))
EVENTS = st.one_of(
    st.tuples(st.just("allow"), ENDS, st.sets(st.sampled_from((0, 1, 2)), min_size=1)),
    st.tuples(st.just("endpoint"), ENDS, st.sampled_from(PLACES)),
    st.tuples(st.just("lose"), st.integers(0, 3)),
    st.tuples(st.just("forget"), ENDS),
    st.tuples(st.just("wait"), st.floats(0, 5)),
    st.tuples(st.just("step"), ENDS),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_whatever_happened_the_pair_ends_with_one_ike_sa_that_carries_everything(
    events: list[tuple[object, ...]],
) -> None:
    pair = Pair()
    for event in events:
        match event:
            case ("allow", int(end), set(chosen)):
                pair.change(end, allowed=frozenset(OWN[1 - end][each] for each in chosen))
            case ("endpoint", int(end), tuple(place)):
                pair.give_endpoint(end, place)
            case ("lose", int(number)):
                pair.lose(number)
            case ("forget", int(end)):
                pair.known[end] = not pair.known[end]
            case ("wait", float(seconds)):
                pair.run(seconds)
            case ("step", int(end)):
                pair.step(end)
    pair.known = [True, True]
    for end in (0, 1):
        pair.change(end, allowed=frozenset(OWN[1 - end]))
        pair.give_endpoint(end, PLACES[2])

    pair.run(60)

    assert len(pair.ikes) == 1
    assert all(
        pair.carries(mine, theirs)
        for mine in OWN[0]
        for theirs in OWN[1]
        if mine.version == theirs.version
    )
    assert [care.target for care in pair.cares] == [None, None]
    assert pair.run(120) == 0
    assert pair.look_s == [math.inf, math.inf]


@settings(max_examples=examples(100), deadline=None)
@given(st.sets(st.sampled_from((0, 1, 2)), min_size=1), ENDS)
def test_prefixes_that_come_are_covered_and_no_child_that_was_there_is_ended(
    had: set[int], end: int
) -> None:
    pair = Pair()
    pair.change(end, allowed=frozenset(OWN[1 - end][each] for each in had))
    pair.run(5)
    before = {child.uniqueid for ike in pair.ikes for child in ike.children}

    pair.change(end, allowed=frozenset(OWN[1 - end]))
    pair.run(5)

    after = {child.uniqueid for ike in pair.ikes for child in ike.children}
    assert before <= after
    assert missing(frozenset(OWN[1 - end]), selectors(pair, end)) == frozenset()


def selectors(pair: Pair, end: int) -> list[tuple[frozenset[Prefix], frozenset[Prefix]]]:
    return [(child.local, child.remote) for sa in pair.sas(end) for child in sa.children]


def test_a_prefix_that_goes_is_carried_by_nothing_and_all_others_are_all_the_time() -> None:
    pair = Pair()
    pair.run(2)
    gone, *others = OWN[1]

    pair.change(0, allowed=frozenset(others))
    while any(pair.carries(mine, gone) for mine in OWN[0]):
        assert all(pair.carries(OWN[0][0], each) for each in others if each.version == 4)
        pair.run(0.25)

    assert pair.now_s < 105
    assert all(pair.carries(OWN[0][0], each) for each in others if each.version == 4)


@pytest.mark.parametrize("refused", [frozenset(), frozenset({ip_network("10.9.9.0/24")})])
def test_a_prefix_that_goes_is_not_carried_on_because_the_peer_agrees_on_nothing_else(
    refused: frozenset[Prefix],
) -> None:
    """A member from whom something was taken, or one that does not know of another prefix yet."""
    pair = Pair()
    pair.run(2)
    gone, *others = OWN[1]
    pair.known[1] = bool(refused)

    pair.change(0, allowed=refused.union(others))
    pair.run(FOREIGN_ENDS_AFTER_S + 1)

    assert not any(pair.carries(mine, gone) for mine in OWN[0])


def test_the_second_end_begins_when_the_first_does_not() -> None:
    pair = Pair()

    assert not pair.step(1)
    pair.now_s += SECOND_WAITS_S + 0.1
    assert pair.step(1)

    assert len(pair.ikes) == 1
    assert pair.run(5) == 0


def test_an_old_sa_stays_until_a_new_endpoint_is_reached() -> None:
    pair = Pair()
    pair.run(2)
    (old,) = pair.ikes
    pair.known = [True, False]  # nothing answers at the new one

    pair.give_endpoint(0, PLACES[1])
    pair.run(20)
    assert pair.ikes == [old]

    pair.known = [True, True]
    pair.run(15)
    assert [ike.remotes[0] for ike in pair.ikes] == [PLACES[1]]


def test_a_peer_without_an_endpoint_is_waited_for() -> None:
    peer = IpsecPeer(KEYS[1], b"", frozenset(OWN[1]))
    care = cared_for(None, peer, first=True, now_s=0.0)

    care, actions = tend(care, [], 100.0)

    assert actions == []
    assert next_look_s(care, [], 100.0) is None


def test_a_prefix_that_the_peer_refuses_is_not_tried_for_ever() -> None:
    pair = Pair()
    pair.run(2)
    refused = ip_network("10.9.9.0/24")
    pair.change(0, allowed=frozenset({*OWN[1], refused}))
    care, tries = pair.cares[0], 0
    for _ in range(4000):
        pair.now_s += 0.25
        care, actions = tend(care, pair.sas(0), pair.now_s)
        tries += len(actions)

    assert tries == MOST_ROUNDS * 2
    assert next_look_s(care, pair.sas(0), pair.now_s) is None


@pytest.mark.parametrize("end", [0, 1])
def test_all_other_prefixes_are_carried_when_the_peer_refuses_one(end: int) -> None:
    refused = ip_network("10.9.9.0/24")
    pair = Pair()
    pair.change(end, allowed=frozenset({*OWN[1 - end], refused}))

    pair.run(30)

    assert missing(frozenset(OWN[1 - end]), selectors(pair, end)) == frozenset()
    assert missing(frozenset(OWN[end]), selectors(pair, 1 - end)) == frozenset()


def test_an_attempt_at_an_older_endpoint_is_given_up_for_the_newer() -> None:
    peer = IpsecPeer(KEYS[1], b"", frozenset(OWN[1]), PLACES[1], 3)
    care = replace(cared_for(None, peer, first=True, now_s=0.0), target=PLACES[1])
    connecting = IkeSa(9, KEYS[1], 2, False, True, PLACES[0], "aa")

    _, actions = tend(care, [connecting], 1.0)

    assert actions == [EndIke(9), Initiate(KEYS[1])]


def test_an_attempt_under_way_is_waited_for_without_looking_all_the_time() -> None:
    peer = IpsecPeer(KEYS[1], b"", frozenset(OWN[1]), PLACES[1])
    care = cared_for(None, peer, first=True, now_s=0.0)
    connecting = IkeSa(9, KEYS[1], 0, False, True, PLACES[1], "aa")

    care, actions = tend(care, [connecting], 1.0)

    assert actions == []
    assert (next_look_s(care, [connecting], 1.0) or 0) > 1.0


def test_exactly_one_end_begins() -> None:
    assert begins(*KEYS) is not begins(*reversed(KEYS))


@pytest.mark.parametrize(
    ("wireguards", "ours"),
    [(1376, 1374), (1345, 1342), (1280, 1278), (1440, IPSEC_MTU_BYTES), (0, 0)],
)
def test_inner_packets_leave_room_for_the_trailer(wireguards: int, ours: int) -> None:
    assert ipsec_mtu_bytes(wireguards) == ours


def test_the_plan_is_the_same_but_for_the_mtu_and_keepalives() -> None:
    peer = TunnelPeer(KEYS[1], frozenset(OWN[1]), PLACES[0], 25)
    device = TunnelDevice("limwg0", 1376, b"secret", 4500)

    state = ipsec_state(TunnelState(device, {KEYS[1]: peer}), [4, 6])

    assert state.device == TunnelDevice("limwg0", 1374, b"secret", 4500)
    assert state.peers == {KEYS[1]: replace(peer, keepalive_s=0)}


def test_prefixes_of_a_version_that_the_node_has_not_are_left_out_of_the_plan() -> None:
    both, six = TunnelPeer(KEYS[0], frozenset(OWN[0])), TunnelPeer(KEYS[1], frozenset(OWN[1][2:]))

    state = ipsec_state(TunnelState(None, {KEYS[0]: both, KEYS[1]: six}), [4])

    assert state.peers == {KEYS[0]: replace(both, allowed=frozenset(OWN[0][:2]))}


def test_a_prefix_is_carried_only_beside_one_of_its_own_version() -> None:
    (v4, _, v6), (their_v4, _, their_v6) = OWN
    child = (frozenset({v6}), frozenset({their_v4, their_v6}))

    assert missing(frozenset({their_v4, their_v6}), [child]) == {their_v4}
    assert (
        missing(frozenset({their_v4, their_v6}), [child, (frozenset({v4}), frozenset(OWN[1]))])
        == set()
    )
