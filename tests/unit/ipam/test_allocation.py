"""Which address a pod gets: the fast pool against sets that do the same slowly."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from limpet.base.errors import ExhaustedError, UnavailableError
from limpet.ipam.allocation import AddressChoice, Claim, Intervals, Pool, choose
from limpet.ipam.leases import (
    FREE,
    Binding,
    Entry,
    Holder,
    PodKey,
    Range,
    RangeSet,
    Usage,
    address_of,
    number_of,
)

NEW = Holder("new", "eth0")
OLD = Holder("old", "eth0")
KEY = PodKey("ns", "pod", "eth0")


def a_range(subnet: str, start: str = "", end: str = "", gateway: str = "") -> Range:
    prefix = ip_network(subnet)
    return Range(
        prefix,
        ip_address(start) if start else prefix[0],
        ip_address(end) if end else prefix[-1],
        ip_address(gateway) if gateway else prefix[1 % prefix.num_addresses],
    )


def a_pool(*members: Range, entries: dict[int, Entry] | None = None, mark: str = "") -> Pool:
    return Pool(
        members,
        [member.gateway for member in members],
        entries or {},
        number(mark) if mark else None,
    )


def number(text: str) -> int:
    return number_of(ip_address(text))


def given_by(pool: Pool, claim: Claim, entries: dict[int, Entry] | None = None) -> str:
    (choice,) = choose([pool], claim, entries or {})
    return str(address_of(choice.number))


def everything(pool: Pool) -> list[str]:
    return [str(address_of(n)) for n in pool.candidates()]


def held(holder: Holder, key: PodKey | None = None, *, sandbox: str = "") -> Entry:
    return Entry(holder, Binding(key, 1, sandbox or holder.container_id) if key else None)


# Which addresses there are.


@pytest.mark.parametrize(
    ("member", "usable"),
    [
        (a_range("10.0.0.0/29"), [f"10.0.0.{i}" for i in (2, 3, 4, 5, 6)]),
        (a_range("10.0.0.0/29", gateway="10.0.0.4"), [f"10.0.0.{i}" for i in (1, 2, 3, 5, 6)]),
        (a_range("10.0.0.0/24", "10.0.0.9", "10.0.0.11"), [f"10.0.0.{i}" for i in (9, 10, 11)]),
        (a_range("10.0.0.0/30"), ["10.0.0.2"]),
        (a_range("10.0.0.0/31"), ["10.0.0.0"]),
        (a_range("10.0.0.7/32", gateway="10.0.0.1"), ["10.0.0.7"]),
        (a_range("fd00::/126"), ["fd00::2", "fd00::3"]),
        (a_range("fd00::/127"), ["fd00::"]),
        (a_range("fd00::7/128", gateway="fd00::1"), ["fd00::7"]),
    ],
)
def test_network_broadcast_anycast_and_gateway_are_never_given(
    member: Range, usable: list[str]
) -> None:
    assert everything(a_pool(member)) == usable


def test_the_gateway_of_another_range_set_is_not_given_either() -> None:
    low = (a_range("10.0.0.0/29", "10.0.0.1", "10.0.0.3", "10.0.0.6"),)
    high = (a_range("10.0.0.0/29", "10.0.0.4", "10.0.0.6", "10.0.0.2"),)
    gateways = [low[0].gateway, high[0].gateway]
    assert everything(Pool(low, gateways, {})) == ["10.0.0.1", "10.0.0.3"]
    assert everything(Pool(high, gateways, {})) == ["10.0.0.4", "10.0.0.5"]


def test_a_range_that_is_nothing_but_its_gateway_is_exhausted() -> None:
    with pytest.raises(ExhaustedError, match="none of 0"):
        given_by(a_pool(a_range("10.0.0.7/32")), Claim("net", NEW))


def test_a_wide_ipv6_range_costs_no_more_than_a_narrow_one() -> None:
    pool = a_pool(a_range("fd00::/48"))
    taken: dict[int, Entry] = {}
    for i in range(2, 200):
        address = given_by(pool, Claim("net", NEW), taken)
        assert address == f"fd00::{i:x}"
        pool.mark = number(address)
        taken[pool.mark] = held(OLD)
        pool.place(pool.mark, taken[pool.mark], 0.0)
    assert pool.usage() == Usage(total=2**80 - 2, live=198, resting=0, bound=0)


# In which order.


def test_the_search_goes_on_behind_the_mark_and_wraps_over_all_ranges() -> None:
    members = (a_range("10.0.9.0/30"), a_range("10.0.3.0/29"))
    assert everything(a_pool(*members))[0] == "10.0.9.2"
    assert everything(a_pool(*members, mark="10.0.3.4")) == [
        *("10.0.3.5", "10.0.3.6", "10.0.9.2"),
        *("10.0.3.2", "10.0.3.3", "10.0.3.4"),
    ]


def test_a_mark_outside_the_ranges_does_no_harm() -> None:
    assert everything(a_pool(a_range("10.0.0.0/30"), mark="10.9.9.9")) == ["10.0.0.2"]


def test_free_comes_before_resting_before_absent_and_live_is_never_given() -> None:
    entries = {
        number("10.0.0.2"): held(OLD),
        number("10.0.0.3"): Entry(None, Binding(KEY, order=9)),
        number("10.0.0.4"): Entry(None, Binding(KEY, order=3)),
    }
    pool = a_pool(a_range("10.0.0.0/29"), entries=entries)
    pool.place(number("10.0.0.6"), FREE, 100.0)
    pool.place(number("10.0.0.5"), FREE, 101.0)
    assert everything(pool) == ["10.0.0.6", "10.0.0.5", "10.0.0.4", "10.0.0.3"]
    pool.wake(100.5)
    assert everything(pool) == ["10.0.0.6", "10.0.0.5", "10.0.0.4", "10.0.0.3"]
    pool.wake(101.0)
    assert everything(pool) == ["10.0.0.5", "10.0.0.6", "10.0.0.4", "10.0.0.3"]


# What a claim has a right to.


def test_a_pod_gets_what_is_kept_for_it() -> None:
    kept = number("10.0.0.5")
    entries = {kept: Entry(None, Binding(KEY, 1, "gone"))}
    pool = a_pool(a_range("10.0.0.0/29"), entries=entries)
    assert choose([pool], Claim("net", NEW, kept=[kept]), entries) == (
        AddressChoice(kept, fresh=False),
    )


def test_what_is_kept_outside_the_ranges_is_passed_over() -> None:
    kept = number("10.9.0.5")
    entries = {kept: Entry(None, Binding(KEY, 1, "gone"))}
    assert given_by(a_pool(a_range("10.0.0.0/29")), Claim("net", NEW, kept=[kept]), entries) == (
        "10.0.0.2"
    )


def test_what_is_kept_has_become_a_gateway_and_is_passed_over() -> None:
    kept = number("10.0.0.1")
    entries = {kept: Entry(None, Binding(KEY, 1, "gone"))}
    claim = Claim("net", NEW, kept=[kept])
    assert given_by(a_pool(a_range("10.0.0.0/29"), entries=entries), claim, entries) == "10.0.0.2"


def test_the_newest_sandbox_of_a_pod_takes_the_address_from_an_older_one() -> None:
    kept = number("10.0.0.5")
    entries = {kept: held(OLD, KEY)}
    pool = a_pool(a_range("10.0.0.0/29"), entries=entries)
    assert given_by(pool, Claim("net", NEW, kept=[kept]), entries) == "10.0.0.5"


@pytest.mark.parametrize("sandbox", ["another", ""])
def test_a_container_that_is_not_known_to_be_the_pod_keeps_the_address(sandbox: str) -> None:
    kept = number("10.0.0.5")
    entries = {kept: Entry(OLD, Binding(KEY, 1, sandbox))}
    pool = a_pool(a_range("10.0.0.0/29"), entries=entries)
    assert given_by(pool, Claim("net", NEW, kept=[kept]), entries) == "10.0.0.2"
    gone = Claim("net", NEW, kept=[kept], is_alive=lambda address, holder: False)
    assert given_by(pool, gone, entries) == "10.0.0.5"


def test_an_unknown_holder_is_not_taken_for_an_unknown_sandbox() -> None:
    kept = number("10.0.0.5")
    entries = {kept: Entry(Holder("", ""), Binding(KEY, 1, ""))}
    pool = a_pool(a_range("10.0.0.0/29"), entries=entries)
    assert given_by(pool, Claim("net", NEW, kept=[kept]), entries) == "10.0.0.2"


def test_an_address_that_the_node_uses_elsewhere_is_not_given() -> None:
    pool = a_pool(a_range("10.0.0.0/29"))
    kept = number("10.0.0.5")
    claim = Claim(
        "net",
        NEW,
        kept=[kept],
        taken_elsewhere={ip_address("10.0.0.2"), ip_address("10.0.0.5")}.__contains__,
    )
    assert given_by(pool, claim, {kept: Entry(None, Binding(KEY, 1))}) == "10.0.0.3"


# What is asked for.


def asking(*texts: str, **more: object) -> Claim:
    return Claim("net", NEW, requested=[ip_address(t) for t in texts], **more)  # type: ignore[arg-type]


def test_what_is_asked_for_is_given_even_if_kept_for_an_absent_pod() -> None:
    asked = number("10.0.0.5")
    entries = {asked: Entry(None, Binding(KEY, 1, "gone"))}
    pool = a_pool(a_range("10.0.0.0/29"), entries=entries)
    assert given_by(pool, asking("10.0.0.5"), entries) == "10.0.0.5"


def test_what_is_asked_for_goes_before_what_is_kept_and_held() -> None:
    mine = {number("10.0.0.3"): held(NEW, KEY)}
    pool = a_pool(a_range("10.0.0.0/29"), entries=mine)
    claim = asking("10.0.0.5", held=[number("10.0.0.3")], kept=[number("10.0.0.3")])
    assert given_by(pool, claim, mine) == "10.0.0.5"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (["10.0.0.0"], "network address of 10.0.0.0/29"),
        (["10.0.0.7"], "broadcast address of 10.0.0.0/29"),
        (["10.0.0.1"], "a gateway"),
        (["10.0.1.5"], r"outside 10.0.0.0/29 \(10.0.0.2 to 10.0.0.6\)"),
        (["fd00::5"], "outside"),
        (["10.0.0.3"], r"container old holds it \(kept for pod ns/pod\)"),
        (["10.0.0.4"], "container unknown holds it"),
        (["10.0.0.6"], "something else on this node"),
        (["10.0.0.5", "10.0.0.2"], "10.0.0.5 of the same range set is asked for too"),
    ],
)
def test_what_cannot_be_given_is_refused_with_the_reason(asked: list[str], reason: str) -> None:
    entries = {
        number("10.0.0.3"): held(OLD, KEY),
        number("10.0.0.4"): held(Holder("", "")),
    }
    claim = asking(*asked, taken_elsewhere=lambda address: str(address) == "10.0.0.6")
    with pytest.raises(UnavailableError, match=rf"{asked[-1]} in network net: .*{reason}"):
        given_by(a_pool(a_range("10.0.0.0/29"), entries=entries), claim, entries)


def test_the_same_address_asked_for_twice_is_asked_for_once() -> None:
    assert given_by(a_pool(a_range("10.0.0.0/29")), asking("10.0.0.5", "10.0.0.5")) == "10.0.0.5"


def test_each_range_set_gets_the_address_that_is_asked_of_it() -> None:
    pools = [a_pool(a_range("10.0.0.0/29")), a_pool(a_range("fd00::/64"))]
    choices = choose(pools, asking("fd00::9", "10.0.0.5"), {})
    assert [str(address_of(c.number)) for c in choices] == ["10.0.0.5", "fd00::9"]


def test_exhaustion_names_network_ranges_counts_and_what_to_do() -> None:
    entries = {number(f"10.0.0.{i}"): held(OLD, KEY) for i in (2, 3)}
    pool = a_pool(a_range("10.0.0.0/29", "10.0.0.2", "10.0.0.4"), entries=entries)
    claim = Claim("net", NEW, taken_elsewhere=lambda address: True)
    with pytest.raises(ExhaustedError) as caught:
        given_by(pool, claim, entries)
    for part in (
        "network net",
        "none of 3",
        "10.0.0.0/29 (10.0.0.2 to 10.0.0.4)",
        "2 live, 0 resting, 0 kept for absent pods, 1 used by others",
        "`segments`",
        "`limpet ipam repair`",
        "`limpet ipam release`",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("gateway", "words"),
    [
        ("10.0.0.1", "none of 5 is free in 10.0.0.0/29 (10.0.0.2 to 10.0.0.6): 5 live"),
        ("10.0.0.6", "none of 5 is free in 10.0.0.0/29 (10.0.0.1 to 10.0.0.5): 5 live"),
        ("10.0.0.3", "none of 5 is free in 10.0.0.0/29 (10.0.0.1 to 10.0.0.6 without 10.0.0.3): 5"),
    ],
)
def test_exhaustion_counts_and_names_the_addresses_that_pods_can_have(
    gateway: str, words: str
) -> None:
    entries = {number(f"10.0.0.{i}"): held(OLD, KEY) for i in range(1, 7)}
    pool = a_pool(a_range("10.0.0.0/29", "10.0.0.1", "10.0.0.6", gateway), entries=entries)
    with pytest.raises(ExhaustedError) as caught:
        given_by(pool, Claim("net", NEW), entries)
    assert words in str(caught.value)


# Fast equals naive.


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10), st.booleans())), st.integers())
def test_intervals_are_a_set_of_integers(steps: list[tuple[int, int, bool]], start: int) -> None:
    fast, naive = Intervals(), set[int]()
    for low, length, add in steps:
        if add:
            fast.add(low, low + length)
            naive |= set(range(low, low + length + 1))
        else:
            fast.remove(low)
            naive.discard(low)
    assert list(fast.around(start)) == [
        *sorted(n for n in naive if n >= start),
        *sorted(n for n in naive if n < start),
    ]
    assert fast.count() == len(naive)
    assert [n in fast for n in range(55)] == [n in naive for n in range(55)]


class PoolMachine(RuleBasedStateMachine):
    """A pool of two ranges against a table of states that is searched from end to end."""

    @initialize(mark=st.none() | st.integers(0, 40))
    def start(self, mark: int | None) -> None:
        base = number("10.0.0.0")
        members: RangeSet = (a_range("10.0.0.16/28"), a_range("10.0.0.0/29"))
        mark = None if mark is None else base + mark
        self.pool = Pool(members, [m.gateway for m in members], {}, mark)
        self.numbers = [base + i for i in (*range(2, 7), *range(18, 31))]
        self.start_at = base + 16 if mark is None else mark + 1
        self.state: dict[int, tuple[str, float]] = {}
        self.now_s = 0.0
        self.order = 0

    @rule(index=st.integers(0, 40), held_by=st.booleans(), bound=st.booleans())
    def change(self, index: int, held_by: bool, bound: bool) -> None:
        n = number("10.0.0.0") + index
        self.order += 1
        self.now_s += 1.0
        binding = Binding(KEY, self.order) if bound else None
        self.pool.place(n, Entry(NEW if held_by else None, binding), self.now_s)
        state = "live" if held_by else "bound" if bound else "resting"
        self.state[n] = (state, self.now_s)

    @rule(seconds=st.integers(0, 5))
    def wake(self, seconds: int) -> None:
        self.pool.wake(self.now_s - seconds)
        for n, (state, since_s) in list(self.state.items()):
            if state == "resting" and since_s <= self.now_s - seconds:
                del self.state[n]

    @invariant()
    def candidates_come_in_the_right_order(self) -> None:
        def of(state: str) -> list[int]:
            numbers = [n for n in self.numbers if self.state.get(n, ("", 0))[0] == state]
            return sorted(numbers, key=lambda n: self.state[n][1])

        free = sorted(n for n in self.numbers if n not in self.state)
        turned = [n for n in free if n >= self.start_at] + [n for n in free if n < self.start_at]
        assert list(self.pool.candidates()) == turned + of("resting") + of("bound")
        assert self.pool.usage() == Usage(
            len(self.numbers), len(of("live")), len(of("resting")), len(of("bound"))
        )


TestPool = PoolMachine.TestCase
