"""Pairs of a relay: ports, quotas, lifetimes, and what moves an end."""

from __future__ import annotations

from ipaddress import ip_address

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from limpet.relay.messages import TOKEN_BYTES, Refusal
from limpet.relay.server.pairs import (
    LIFETIME_S,
    TOKEN_LIFETIME_S,
    Checked,
    ForwardingEntry,
    PairEnd,
    Relaying,
    UdpFlow,
    entries_of,
    sockets_of,
)
from tests.effort import examples

PORTS = (21000, 21007)
QUOTA = 3
V4, V6 = ip_address("198.51.100.1"), ip_address("2001:db8::1")
BOTH = frozenset({4, 6})
A, B = "node-a", "node-b"

uids = st.sampled_from([f"node-{letter}" for letter in "abcdef"])
ports = st.integers(*PORTS)
places = st.sampled_from(
    [
        *(UdpFlow((ip_address(f"192.0.2.{n}"), port), V4) for n in (1, 2) for port in (7, 8)),
        UdpFlow((ip_address("2001:db8:1::1"), 7), V6),
        UdpFlow((ip_address("192.0.2.1"), 7), ip_address("198.51.100.2")),
    ]
)
HOME, AWAY = (UdpFlow((ip_address(f"192.0.2.{n}"), 51820), V4) for n in (1, 2))
OTHER = UdpFlow((ip_address("203.0.113.9"), 40000), V4)
SIX = UdpFlow((ip_address("2001:db8:1::1"), 51820), V6)


def relaying(**changes: object) -> Relaying:
    values = {"ports": PORTS, "pairs_per_node": QUOTA, "secret": b"secret", **changes}
    return Relaying(**values)  # type: ignore[arg-type]


def asked(pairs: Relaying, uid: str = A, peer: str = B, now_s: float = 0.0) -> PairEnd:
    end = pairs.ask(uid, peer, now_s)
    assert isinstance(end, PairEnd)
    return end


def bind(pairs: Relaying, end: PairEnd, place: UdpFlow, now_s: float = 0.0) -> Checked:
    """As a node does that is there."""
    token = pairs.make_token(end.uid, end.port, place, now_s)
    assert token is not None
    return pairs.check(end.uid, end.port, place, token, now_s)


def place_of(pairs: Relaying, end: PairEnd) -> UdpFlow | None:
    now = pairs.at(end.port)
    assert now is not None
    return now.place


class RelayingMachine(RuleBasedStateMachine):
    """Nodes ask, check, free, come by streams and go, in any order; some of it is forged."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.pairs = relaying()
        self.tokens: list[tuple[bytes, str, int, UdpFlow, float]] = []
        """With whom and what they were made for, and when."""
        self.moved: dict[int, float] = {}
        """When the token was made that moved the end of this port last."""

    @rule(seconds=st.sampled_from([0.001, 1.0, TOKEN_LIFETIME_S, LIFETIME_S / 2, LIFETIME_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(uid=uids, peer=uids)
    def ask(self, uid: str, peer: str) -> None:
        if uid == peer:
            return
        before, left = self.pairs.end(uid, peer), self.pairs.pairs_left(uid)
        given = self.pairs.ask(uid, peer, self.now_s)
        if isinstance(given, Refusal):
            assert left == 0
            assert before is None or not before.asked
        else:
            assert (given.uid, given.peer) == (uid, peer)
            assert before is None or before.port == given.port
            assert self.pairs.ask(uid, peer, self.now_s) == given
            assert given.place == (before.place if before else None)

    @rule(uid=uids, port=ports, place=places)
    def get_token(self, uid: str, port: int, place: UdpFlow) -> None:
        token = self.pairs.make_token(uid, port, place, self.now_s)
        end = self.pairs.at(port)
        assert (token is not None) == (end is not None and end.uid == uid)
        if token is not None:
            self.tokens.append((token, uid, port, place, self.now_s))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def check(self, data: st.DataObject) -> None:
        made = data.draw(st.sampled_from(self.tokens))
        token, made_for = made[0], made[1:4]
        uid = data.draw(st.just(made[1]) | uids)
        port = data.draw(st.just(made[2]) | ports)
        place = data.draw(st.just(made[3]) | places)
        if data.draw(st.booleans()):
            token = data.draw(st.just(token) | st.binary(max_size=TOKEN_BYTES))
        before = self.pairs.at(port)
        outcome = self.pairs.check(uid, port, place, token, self.now_s)
        after = self.pairs.at(port)
        if outcome in (Checked.MOVED, Checked.SAME):
            assert made_for == (uid, port, place)
            assert self.now_s - made[4] <= TOKEN_LIFETIME_S + 0.001
            assert after is not None
            assert after.place == place
        if outcome is Checked.MOVED:
            assert made[4] > self.moved.get(port, -1.0)
            self.moved[port] = made[4]
        elif outcome is not Checked.SAME:
            assert after == before

    @rule(uid=uids, peer=uids)
    def free(self, uid: str, peer: str) -> None:
        end = self.pairs.end(uid, peer)
        if self.pairs.free(uid, peer):
            assert end is not None
            self._forget([end])

    @rule(port=ports)
    def attach(self, port: int) -> None:
        if self.pairs.at(port) is not None:
            self.pairs.attach(port)

    @rule(port=ports)
    def detach(self, port: int) -> None:
        self.pairs.detach(port, self.now_s)

    @rule()
    def expire(self) -> None:
        wanted = {
            end.port
            for end in map(self.pairs.at, range(PORTS[0], PORTS[1] + 1))
            if end is not None and end.wanted_until_s > self.now_s
        }
        gone = self.pairs.expire(self.now_s)
        assert not wanted & {port for end in gone for port in (end.port, end.other)}
        assert all(self.pairs.at(port) is not None for port in wanted)
        self._forget(gone)

    @rule(uid=uids)
    def remove_node(self, uid: str) -> None:
        gone = self.pairs.keep(lambda one, other: uid not in (one, other), self.pairs.of(uid))
        assert self.pairs.of(uid) == []
        self._forget(gone)

    def _forget(self, ends: list[PairEnd]) -> None:
        for end in ends:
            assert self.pairs.at(end.port) is None
            assert self.pairs.at(end.other) is None
            assert self.pairs.end(end.uid, end.peer) is None
            # Its tokens name the port, and it may be the same two's again.
            self.moved.pop(end.port, None)
            self.moved.pop(end.other, None)

    @invariant()
    def a_port_is_one_pairs(self) -> None:
        held = [end for each in self.pairs.pairs() for end in each]
        assert len({end.port for end in held}) == len(held) == 2 * len(self.pairs)
        for one, other in self.pairs.pairs():
            assert (one.port, one.uid, one.peer) == (other.other, other.peer, other.uid)
            assert (other.port, other.uid) == (one.other, one.peer)
            assert self.pairs.end(one.uid, one.peer) is one

    @invariant()
    def nobody_has_more_than_the_quota(self) -> None:
        for uid in [f"node-{letter}" for letter in "abcdef"]:
            mine = sum(end.asked for end in self.pairs.of(uid))
            free = (PORTS[1] - PORTS[0] + 1) // 2 - len(self.pairs)
            assert mine <= QUOTA
            assert self.pairs.pairs_left(uid) == min(QUOTA - mine, free)


RelayingMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestRelaying = RelayingMachine.TestCase


def test_either_end_asks_for_the_same_pair() -> None:
    pairs = relaying()
    end = asked(pairs, A, B)
    other = asked(pairs, B, A)
    assert (end.port, end.other) == (other.other, other.port)
    assert len(pairs) == 1


def test_a_node_that_was_only_asked_for_has_its_quota_left() -> None:
    pairs = relaying(ports=(21000, 21099))
    for number in range(QUOTA):
        asked(pairs, A, f"peer-{number}")
    assert pairs.ask(A, B, 0.0) is Refusal.QUOTA
    asked(pairs, B, A)
    assert pairs.pairs_left(A) == 0
    assert pairs.pairs_left("peer-0") == QUOTA


def test_ports_that_are_all_given_away_are_said_to_be() -> None:
    pairs = relaying(ports=(21000, 21002))
    asked(pairs, A, B)
    assert pairs.ask(A, "node-c", 0.0) is Refusal.FULL
    assert pairs.pairs_left(A) == 0


def test_ports_that_were_just_freed_are_given_last() -> None:
    pairs = relaying()
    first = asked(pairs, A, B)
    pairs.free(A, B)
    again = asked(pairs, A, B)
    assert {first.port, first.other}.isdisjoint({again.port, again.other})


def test_an_end_follows_a_node_that_moves_and_comes_back() -> None:
    pairs = relaying()
    end = asked(pairs)
    for second, place in enumerate([HOME, AWAY, HOME]):
        assert bind(pairs, end, place, second) is Checked.MOVED
        assert place_of(pairs, end) == place
    assert bind(pairs, end, HOME, 3) is Checked.SAME


def test_a_recorded_check_does_not_put_an_end_back() -> None:
    pairs = relaying()
    end = asked(pairs)
    token = pairs.make_token(A, end.port, HOME, 1.0)
    assert token is not None
    assert pairs.check(A, end.port, HOME, token, 1.1) is Checked.MOVED
    assert bind(pairs, end, AWAY, 2.0) is Checked.MOVED
    assert pairs.check(A, end.port, HOME, token, 2.1) is Checked.BAD_TOKEN
    assert place_of(pairs, end) == AWAY


def test_a_token_is_good_for_its_node_its_port_and_its_place_for_seconds() -> None:
    pairs = relaying()
    end = asked(pairs)
    token = pairs.make_token(A, end.port, HOME, 0.0)
    assert token is not None
    later_s = TOKEN_LIFETIME_S + 0.002
    assert pairs.check(A, end.port, AWAY, token, 1.0) is Checked.BAD_TOKEN
    assert pairs.check(A, end.port, HOME._replace(local=V6), token, 1.0) is Checked.BAD_TOKEN
    assert pairs.check(B, end.port, HOME, token, 1.0) is Checked.NO_PAIR
    assert pairs.check(B, end.other, HOME, token, 1.0) is Checked.BAD_TOKEN
    assert pairs.check(A, end.port, HOME, token, later_s) is Checked.BAD_TOKEN
    assert pairs.check(A, end.port, HOME, token, 1.0) is Checked.MOVED


def test_another_relays_tokens_are_worth_nothing() -> None:
    pairs, another = relaying(), relaying(secret=b"another")
    end = asked(pairs)
    asked(another)
    token = another.make_token(A, end.port, HOME, 0.0)
    assert token is not None
    assert pairs.check(A, end.port, HOME, token, 0.0) is Checked.BAD_TOKEN


def test_a_pair_that_is_checked_lives_and_one_that_is_not_dies() -> None:
    pairs = relaying()
    end, other = asked(pairs, A, B), asked(pairs, A, "node-c")
    assert bind(pairs, end, HOME, LIFETIME_S - 1) is Checked.MOVED
    assert [each.port for each in pairs.expire(LIFETIME_S)] == [min(other.port, other.other)]
    assert pairs.end(A, B) is not None
    assert len(pairs.expire(2 * LIFETIME_S)) == 1
    assert len(pairs) == 0


def test_a_pair_is_there_for_as_long_as_one_of_the_two_needs_it() -> None:
    pairs = relaying()
    asked(pairs)
    asked(pairs, B, A)
    assert not pairs.free(A, B)
    assert pairs.pairs_left(A) == QUOTA
    assert pairs.free(B, A)


def test_a_member_that_asks_and_gives_back_holds_no_more_ports_than_its_quota() -> None:
    pairs = relaying(ports=(21000, 21099))
    for number in range(10 * QUOTA):
        peer = f"peer-{number}"
        end = asked(pairs, A, peer, now_s=number)
        invited = pairs.at(end.other)
        assert invited is not None
        bind(pairs, invited, AWAY, number)  # as every honest node does that is told of a pair
        bind(pairs, end, HOME, number)
        pairs.free(A, peer)
        bind(pairs, end, HOME, number) if pairs.at(end.port) else None
    assert len(pairs) <= QUOTA


def test_checks_of_a_node_that_never_asked_keep_no_pair() -> None:
    pairs = relaying()
    end = asked(pairs)
    invited = pairs.at(end.other)
    assert invited is not None
    assert bind(pairs, invited, AWAY, LIFETIME_S - 1) is Checked.MOVED
    assert len(pairs.expire(LIFETIME_S)) == 1


def test_a_stream_keeps_its_pair_and_leaves_the_end_where_it_was() -> None:
    pairs = relaying()
    end = asked(pairs)
    bind(pairs, end, HOME)
    pairs.attach(end.port)
    assert pairs.expire(100 * LIFETIME_S) == []
    assert not pairs.free(A, B)
    pairs.detach(end.port, 100 * LIFETIME_S)
    assert pairs.expire(100.5 * LIFETIME_S) == []
    assert place_of(pairs, end) == HOME
    assert len(pairs.expire(101 * LIFETIME_S)) == 1


def test_a_node_is_awaited_where_it_is_not_and_for_good_where_a_stream_waits() -> None:
    pairs = relaying()
    end = asked(pairs, A, B)
    assert pairs.awaited(A) == [pairs.at(end.port)]
    bind(pairs, end, HOME)
    assert pairs.awaited(A) == []

    pairs.attach(end.other)

    assert pairs.awaited(A) == [pairs.at(end.port)]
    pairs.detach(end.other, 1.0)
    assert pairs.awaited(A) == []


def test_who_is_there_by_a_stream_is_not_asked_to_try_by_udp() -> None:
    pairs = relaying()
    end = asked(pairs, A, B)
    pairs.attach(end.port)
    pairs.attach(end.other)

    assert pairs.awaited(A) == pairs.awaited(B) == []

    bind(pairs, end, HOME)
    assert pairs.awaited(A) == [pairs.at(end.port)]


def test_a_check_by_udp_turns_the_end_away_from_its_stream() -> None:
    pairs = relaying()
    end = asked(pairs)
    pairs.attach(end.port)
    assert bind(pairs, end, HOME, 1.0) is Checked.MOVED
    now = pairs.at(end.port)
    assert now is not None
    assert now.streams
    assert not now.by_stream


def test_what_the_kernel_has_kept_is_taken_up() -> None:
    before = relaying()
    end = asked(before)
    bind(before, end, HOME)
    peer = before.at(end.other)
    assert peer is not None
    bind(before, peer, AWAY)
    ((one, other),) = before.pairs()

    after = relaying(secret=b"another")
    after.adopt([PairEnd(x.uid, x.peer, x.port, x.other, x.place) for x in (one, other)], 5.0)

    assert asked(after, A, B, 6.0).port == end.port
    assert place_of(after, end) == HOME
    assert place_of(after, peer) == AWAY
    assert after.expire(5.0) == []


@given(st.lists(st.builds(PairEnd, uids, uids, ports, ports, places), max_size=6))
def test_whatever_is_found_in_the_kernel_makes_whole_pairs_only(ends: list[PairEnd]) -> None:
    pairs = relaying()
    pairs.adopt(ends, 0.0)
    for one, other in pairs.pairs():
        assert (one.uid, one.port) == (other.peer, other.other)
        assert (other.uid, other.port) == (one.peer, one.other)
    assert all(isinstance(pairs.ask(f"n{n}", A, 0.0), PairEnd) for n in range(4 - len(pairs)))
    assert pairs.ask("n9", A, 0.0) is Refusal.FULL


# Who moves the packets


def halves(
    one: UdpFlow | None, other: UdpFlow | None, *, stream: bool = False, by_stream: bool = False
) -> tuple[PairEnd, PairEnd]:
    """`stream`, `by_stream`: of the first."""
    return (
        PairEnd(A, B, 1, 2, one, streams=stream, by_stream=by_stream),
        PairEnd(B, A, 2, 1, other),
    )


def test_the_kernel_hands_on_what_stays_within_one_ip_version() -> None:
    one, other = halves(HOME, AWAY)
    entries = entries_of(one, other, BOTH)
    assert entries == {1: ForwardingEntry(one, AWAY), 2: ForwardingEntry(other, HOME)}
    assert sockets_of(*halves(HOME, AWAY), BOTH) == {1: None, 2: None}


def test_what_changes_the_ip_version_goes_through_the_agent() -> None:
    one, other = halves(HOME, SIX)
    entries = entries_of(one, other, BOTH)
    assert entries == {1: ForwardingEntry(one, None), 2: ForwardingEntry(other, None)}
    assert sockets_of(*halves(HOME, SIX), BOTH) == {1: HOME, 2: SIX}


def test_what_the_node_does_not_forward_goes_through_the_agent() -> None:
    assert sockets_of(*halves(HOME, AWAY), frozenset({6})) == {1: HOME, 2: AWAY}


def test_what_has_no_other_end_yet_is_dropped() -> None:
    assert entries_of(*halves(HOME, None), BOTH) == {1: None, 2: None}
    assert sockets_of(*halves(HOME, None), BOTH) == {1: None, 2: None}


def test_a_stream_and_an_address_are_joined_by_a_socket_at_the_address_s_port() -> None:
    ends = halves(None, AWAY, stream=True, by_stream=True)
    assert entries_of(*ends, BOTH) == {1: None, 2: ForwardingEntry(ends[1], None)}
    assert sockets_of(*ends, BOTH) == {1: None, 2: AWAY}


def test_an_end_with_both_is_heard_by_both_and_spoken_to_by_one() -> None:
    by_stream = halves(HOME, OTHER, stream=True, by_stream=True)
    # What comes from its address the kernel hands on; what is for it the agent puts in the stream.
    assert entries_of(*by_stream, BOTH) == {
        1: ForwardingEntry(by_stream[0], OTHER),
        2: ForwardingEntry(by_stream[1], None),
    }
    assert sockets_of(*by_stream, BOTH) == {1: None, 2: OTHER}
    by_address = halves(HOME, OTHER, stream=True)
    assert entries_of(*by_address, BOTH) == {
        1: ForwardingEntry(by_address[0], OTHER),
        2: ForwardingEntry(by_address[1], HOME),
    }
    # What still comes by the stream leaves from the peer's port.
    assert sockets_of(*by_address, BOTH) == {1: None, 2: OTHER}
