"""NATs of all kinds in front of a node, as observers see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Endpoint
from limpet.nat.mapping import CLOSE_S, FRESH_S, RELAYS_S, STEADY_S, NatKind, NatView

OWN = ip_address("192.168.7.2")
OWN6 = ip_address("2001:db8::2")
OUTSIDE = ip_address("203.0.113.9")
A, B, C, D = ((ip_address(f"198.51.100.{n}"), 51820) for n in (1, 2, 3, 4))
A_PAIR = (A[0], 21000)
OBSERVERS = (A, B, C, D)


def view() -> NatView:
    made = NatView()
    made.network_changed([OWN, OWN6])
    return made


def name(observer: Endpoint) -> str:
    """Of the peer that is there."""
    return f"node at {observer[0]}"


def outside(port: int) -> Endpoint:
    return (OUTSIDE, port)


def test_two_that_see_one_endpoint_make_a_nat_that_can_be_punched() -> None:
    nat = view()
    nat.see(A, outside(4000), 0)
    assert nat.kind(4, 0) is NatKind.UNKNOWN
    assert nat.mapped(0) == (outside(4000),)

    nat.see(B, outside(4000), 1)

    assert nat.kind(4, 1) is NatKind.SAME
    assert nat.mapped(1) == (outside(4000),)


def test_two_ports_of_one_observer_prove_that_a_nat_is_symmetric_and_nothing_else() -> None:
    nat = view()
    nat.see(A, outside(4000), 0)
    nat.see(A_PAIR, outside(4000), 0)
    assert nat.kind(4, 0) is NatKind.UNKNOWN

    nat.see((A[0], 21001), outside(4001), 1)

    assert nat.kind(4, 1) is NatKind.SYMMETRIC


@given(
    st.lists(
        st.tuples(
            st.sampled_from([(A, True), (B, True), (C, False), (D, False)]),
            st.floats(0.1, 20.0),
            st.integers(1, 65535),
        ),
        max_size=20,
    )
)
def test_no_peer_that_lies_has_a_node_tell_anything_but_what_relays_see(
    events: list[tuple[tuple[Endpoint, bool], float, int]],
) -> None:
    nat, now_s = view(), 1.0
    nat.see(A, outside(4000), 0)
    nat.see(B, outside(4000), 0)
    for (observer, by_relay), wait_s, port in events:
        lie = (ip_address("192.0.2.66"), port)
        now_s += wait_s
        for relay in (A, B):  # the nearest ones are asked often
            nat.see(relay, outside(4000), now_s)
        moved = nat.see(
            observer,
            outside(4000) if by_relay else lie,
            now_s,
            peer="" if by_relay else name(observer),
        )
        assert not moved
        assert nat.kind(4, now_s) is NatKind.SAME
        assert nat.mapped(now_s) == (outside(4000),)


@given(
    st.lists(st.tuples(st.floats(0.1, STEADY_S - 0.1), st.integers(1, 65535)), max_size=60),
)
def test_a_peer_that_always_sees_something_else_does_not_make_a_nat_symmetric_for_one_honest_peer(
    lies: list[tuple[float, int]],
) -> None:
    nat, now_s = view(), 1.0
    nat.see(D, outside(4001), now_s, peer=name(D))
    nat.see(C, outside(4000), now_s, peer=name(C))
    for number, (wait_s, port) in enumerate(lies):
        now_s += wait_s
        # Never twice the same: what is said for long is another thing.
        lie = (ip_address(f"192.0.2.{number + 1}"), port)
        assert not nat.see(D, lie, now_s, peer=name(D)) or number == 0
        nat.see(C, outside(4000), now_s, peer=name(C))
        assert nat.kind(4, now_s) is not NatKind.SYMMETRIC
        assert nat.mapped(now_s) == (outside(4000),)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 40.0), st.sampled_from([B, C, D]), st.integers(1, 3)), max_size=60
    )
)
def test_whatever_one_peer_says_does_not_make_a_nat_symmetric_of_which_two_see_the_same(
    events: list[tuple[float, Endpoint, int]],
) -> None:
    nat, now_s = view(), 1.0
    for peer in (B, C):
        nat.see(peer, outside(4000), now_s, peer=name(peer))
    for wait_s, peer, lie in events:
        now_s += wait_s
        seen_as = outside(4000 + lie) if peer is D else outside(4000)
        nat.see(peer, seen_as, now_s, peer=name(peer))
        assert nat.kind(4, now_s) is not NatKind.SYMMETRIC
        assert peer is D or nat.mapped(now_s) == (outside(4000),)


HONEST, LIARS = ("one", "two", "three"), ("mallory", "trudy")


@given(
    st.lists(
        st.tuples(st.floats(0.0, 30.0), st.sampled_from(LIARS), st.integers(1, 64)), max_size=80
    )
)
def test_what_two_who_agree_say_from_many_addresses_does_not_count_against_three(
    lies: list[tuple[float, str, int]],
) -> None:
    nat, now_s = view(), 1.0

    def three_say() -> None:
        for number, peer in enumerate(HONEST):
            nat.see(OBSERVERS[number], outside(4000), now_s, peer=peer)

    three_say()
    for wait_s, liar, address in lies:
        now_s += wait_s
        three_say()
        nat.see((ip_address(f"192.0.2.{address}"), 1), outside(6666), now_s, peer=liar)
        assert nat.mapped(now_s) == (outside(4000),)
        assert nat.kind(4, now_s) is NatKind.SAME


def test_two_addresses_of_one_peer_do_not_agree_with_each_other() -> None:
    nat = view()
    for observer in (A, B, C):
        nat.see(observer, outside(6666), 0, peer="mallory")
    assert nat.kind(4, 0) is NatKind.UNKNOWN

    nat.see(D, outside(4000), 0, peer="one")

    assert nat.mapped(0) == (outside(4000),)


def test_two_peers_find_a_symmetric_nat_when_each_has_seen_the_same_for_a_while() -> None:
    nat = view()
    for at_s in (0.0, STEADY_S - 0.1):
        nat.see(C, outside(4000), at_s, peer=name(C))
        nat.see(D, outside(4001), at_s, peer=name(D))
        assert nat.kind(4, at_s) is NatKind.UNKNOWN

    nat.see(C, outside(4000), STEADY_S, peer=name(C))
    nat.see(D, outside(4001), STEADY_S, peer=name(D))

    assert nat.kind(4, STEADY_S) is NatKind.SYMMETRIC
    assert nat.mapped(STEADY_S) == ()


def test_a_third_peer_that_agrees_refutes_what_one_liar_has_said_for_long() -> None:
    nat, now_s = view(), 2 * STEADY_S
    for at_s in (0.0, now_s):
        nat.see(C, outside(4000), at_s, peer=name(C))
        nat.see(D, outside(4001), at_s, peer=name(D))
    assert nat.kind(4, now_s) is NatKind.SYMMETRIC

    nat.see(B, outside(4000), now_s + 1, peer=name(B))

    assert nat.kind(4, now_s + 1) is NatKind.SAME
    assert nat.mapped(now_s + 1) == (outside(4000),)


def test_a_lone_peer_that_sees_the_mapping_move_is_believed_at_once() -> None:
    nat = view()
    nat.see(C, outside(4000), 0, peer=name(C))

    assert nat.see(C, outside(5000), STEADY_S, peer=name(C))
    assert nat.mapped(STEADY_S) == (outside(5000),)

    # Sooner than that it is believed when it has said so for a while.
    again_s = STEADY_S + 1
    assert not nat.see(C, outside(6000), again_s, peer=name(C))
    assert nat.mapped(again_s) == ()
    assert nat.mapped(again_s + STEADY_S) == (outside(6000),)


def test_what_a_peer_sees_otherwise_than_relays_has_these_asked_again_and_counts_without_them() -> (
    None
):
    nat = view()
    nat.see(A, outside(4000), 0)
    assert nat.is_doubtful(name(C), C, outside(4001), 1)
    nat.see(C, outside(4001), 1, peer=name(C))
    assert not nat.is_doubtful(name(C), C, outside(4001), 2)
    assert nat.mapped(2) == (outside(4000),)

    assert nat.see(A, outside(4001), 3)
    assert nat.mapped(3) == (outside(4001),)

    long_after = 3 + RELAYS_S
    nat.see(C, outside(4002), long_after, peer=name(C))
    assert nat.mapped(long_after) == (outside(4002),)


def test_with_one_relay_a_gateway_at_a_new_address_is_not_taken_for_symmetric() -> None:
    nat, moved_to = view(), (ip_address("203.0.113.99"), 4000)
    nat.see(A, outside(4000), 0)
    nat.see(A_PAIR, outside(4000), 1)

    assert nat.see(A_PAIR, moved_to, 3)
    assert nat.kind(4, 3) is NatKind.UNKNOWN
    assert nat.mapped(3) == (moved_to,)
    assert nat.is_unclear(OBSERVERS, 3)

    nat.see(A, moved_to, 3.1)
    assert not nat.is_unclear(OBSERVERS, 3.1)
    assert nat.mapped(3.1) == (moved_to,)


def test_a_nat_that_is_not_symmetric_any_more_is_believed_when_two_agree() -> None:
    nat = view()
    nat.see(A, outside(4000), 0)
    nat.see(A_PAIR, outside(4001), 1)
    assert nat.kind(4, 1) is NatKind.SYMMETRIC

    nat.see(A, outside(5000), 100)
    assert nat.kind(4, 100) is NatKind.SYMMETRIC
    nat.see(A_PAIR, outside(5000), 101)

    assert nat.kind(4, 101) is NatKind.UNKNOWN
    assert nat.mapped(101) == (outside(5000),)


def test_ports_of_a_symmetric_nat_are_of_no_use() -> None:
    nat = view()
    nat.see(A, outside(4000), 0)
    nat.see(B, outside(4001), 0.1)

    assert nat.kind(4, 0.1) is NatKind.SYMMETRIC
    assert (nat.mapped(0.1), nat.symmetric(0.1)) == ((), (4,))
    # One that is seen alone later does not change that.
    nat.see(C, outside(4002), 30)
    assert nat.kind(4, 30) is NatKind.SYMMETRIC
    assert nat.mapped(30) == ()


def test_who_sees_the_own_address_sees_no_nat() -> None:
    nat = view()
    nat.see(A, (OWN6, 51820), 0)
    nat.see((ip_address("2001:db8:1::1"), 1), (OWN6, 51820), 0)

    assert nat.kind(6, 0) is NatKind.NONE
    assert nat.mapped(0) == ()


def test_a_relay_on_the_own_link_says_nothing_of_the_nat() -> None:
    nat = view()
    nat.see(A, (OWN, 51820), 0)
    assert nat.kind(4, 0) is NatKind.NONE

    nat.see(B, outside(4000), 0)
    assert nat.kind(4, 0) is NatKind.UNKNOWN
    nat.see(C, outside(4000), 0)

    assert nat.kind(4, 0) is NatKind.SAME


def test_a_mapping_that_has_moved_is_told_by_who_saw_both() -> None:
    nat = view()
    assert not nat.see(A, outside(4000), 0)
    assert not nat.see(B, outside(4000), 0)

    assert nat.see(A, outside(5000), 20)

    assert nat.mapped(20) == (outside(5000),)
    assert nat.is_unclear(OBSERVERS, 20)
    assert not nat.is_unclear([A, C], 20)
    assert nat.kind(4, 20) is NatKind.SAME
    nat.see(B, outside(5000), 21)
    assert not nat.is_unclear(OBSERVERS, 21)


def test_what_was_seen_before_the_network_changed_does_not_count() -> None:
    nat = view()
    nat.see(A, outside(4000), 0)
    nat.see(B, outside(4001), 0)

    nat.network_changed([OWN])

    assert nat.kind(4, 0) is NatKind.UNKNOWN
    assert nat.mapped(0) == ()


def test_what_nobody_has_confirmed_for_long_does_not_count() -> None:
    nat = view()
    nat.see(A, outside(4000), 0)
    nat.see(B, outside(4000), 0)

    assert nat.mapped(FRESH_S - 1) == (outside(4000),)
    assert nat.mapped(FRESH_S) == ()
    assert nat.kind(4, FRESH_S) is NatKind.UNKNOWN


@dataclass
class Nat:
    """A gateway as it is; nobody but the observers sees it."""

    kind: NatKind
    next_port: int = 40000
    ports: dict[Endpoint | None, int] = field(default_factory=dict)

    def seen_as(self, observer: Endpoint) -> Endpoint:
        if self.kind is NatKind.NONE:
            return (OWN, 51820)
        key = observer if self.kind is NatKind.SYMMETRIC else None
        if key not in self.ports:
            self.next_port += 1
            self.ports[key] = self.next_port
        return (OUTSIDE, self.ports[key])

    def reboot(self) -> None:
        self.ports.clear()


KINDS = st.sampled_from([NatKind.NONE, NatKind.SAME, NatKind.SYMMETRIC])
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.1, 3.0, 20.0, 180.0]),
        st.sampled_from([*range(len(OBSERVERS)), "reboot"]),
    ),
    max_size=30,
)


@given(KINDS, STEPS)
def test_whatever_was_seen_before_two_that_are_asked_twice_tell_the_kind(
    kind: NatKind, steps: list[tuple[float, int | str]]
) -> None:
    nat, gateway, now_s = view(), Nat(kind), 0.0
    for wait_s, what in steps:
        now_s += wait_s
        if isinstance(what, int):
            nat.see(OBSERVERS[what], gateway.seen_as(OBSERVERS[what]), now_s)
        else:
            gateway.reboot()

    now_s += CLOSE_S
    # Whoever sees something new puts the others in doubt, so they are asked once more.
    for observer in (A, B, A, B):
        nat.see(observer, gateway.seen_as(observer), now_s)

    assert nat.kind(4, now_s) is kind
    mapped = {gateway.seen_as(A)} if kind is NatKind.SAME else set()
    assert set(nat.mapped(now_s)) == mapped
    assert not nat.is_unclear(OBSERVERS, now_s) or kind is NatKind.SAME


@given(KINDS, STEPS)
def test_a_gateway_that_does_not_change_is_never_taken_for_another_kind(
    kind: NatKind, steps: list[tuple[float, int | str]]
) -> None:
    nat, gateway, now_s = view(), Nat(kind), 0.0
    for wait_s, what in steps:
        now_s += wait_s
        if isinstance(what, int):
            nat.see(OBSERVERS[what], gateway.seen_as(OBSERVERS[what]), now_s)
        assert nat.kind(4, now_s) in (kind, NatKind.UNKNOWN)
        assert OWN not in {address for address, _port in nat.mapped(now_s)}
