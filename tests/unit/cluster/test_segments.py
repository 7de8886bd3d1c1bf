"""Which segment is granted next."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.errors import ExhaustedError
from limpet.cluster.segments import AddressSpace, Holding, network_problems, overlaps_with
from tests.unit.cluster_values import network

QUARANTINE_S = 10.0


def small_space() -> AddressSpace:
    """Four segments of IPv4."""
    return AddressSpace(
        network(pod_cidrs=(ip_network("10.0.0.0/22"),), segment_lengths={4: 24, 6: 64}),
        QUARANTINE_S,
    )


@given(st.integers(0, 2**16 - 1))
def test_a_segment_and_its_number_are_the_same_thing(number: int) -> None:
    space = AddressSpace(
        network(pod_cidrs=(ip_network("10.0.0.0/8"), ip_network("fd00::/48"))), QUARANTINE_S
    )
    for version in (4, 6):
        segment = space.segment(version, number)
        assert segment.version == version
        assert space.number(segment) == number


def test_the_first_segments_of_an_ipv6_cidr_are_ipv6() -> None:
    space = AddressSpace(network(pod_cidrs=(ip_network("fd00::/48"),)), QUARANTINE_S)
    assert space.next_free(6, -1, 0.0) == ip_network("fd00::/64")


@pytest.mark.parametrize("prefix", ["10.0.4.0/24", "9.255.255.0/24", "10.0.0.0/25", "fd00::/64"])
def test_what_is_no_segment_of_the_cluster_has_no_number(prefix: str) -> None:
    assert small_space().number(ip_network(prefix)) is None


@given(st.lists(st.sampled_from(["grant", "remove", "wait"]), max_size=40), st.data())
def test_nothing_is_granted_that_is_held_or_rests_and_something_is_when_there_is_any(
    steps: list[str], data: Any
) -> None:
    space, mark, now_s = small_space(), -1, 0.0
    held: set[Any] = set()
    resting: dict[Any, float] = {}
    for step in steps:
        free = {
            segment
            for segment in (space.segment(4, number) for number in range(4))
            if segment not in held and now_s - resting.get(segment, -QUARANTINE_S) >= QUARANTINE_S
        }
        if step == "wait":
            now_s += QUARANTINE_S / 2
        elif step == "grant" and not free:
            with pytest.raises(ExhaustedError, match="limpet node remove"):
                space.next_free(4, mark, now_s)
        elif step == "grant":
            segment = space.next_free(4, mark, now_s)
            assert segment in free
            number = space.number(segment)
            assert number is not None
            unused = free - set(resting)
            assert segment in unused or not unused
            mark = max(mark, number)
            space.put(segment, Holding(segment, "a"))
            held.add(segment)
            resting.pop(segment, None)
        elif held:
            segment = data.draw(st.sampled_from(sorted(held)))
            space.put(segment, Holding(segment, "a", now_s))
            held.discard(segment)
            resting[segment] = now_s


@pytest.mark.parametrize("own", ["10.0.0.0/24", "10.0.2.0/23", "10.0.0.0/22"])
def test_segments_are_granted_of_the_own_part_only(own: str) -> None:
    others = {ip_network("10.0.3.0/24")}
    part = ip_network(own)
    space = AddressSpace(
        network(pod_cidrs=(ip_network("10.0.0.0/22"),), segment_lengths={4: 24, 6: 64}),
        QUARANTINE_S,
        [part],
    )
    space.put(ip_network("10.0.1.0/24"), Holding(ip_network("10.0.1.0/24"), "a", -QUARANTINE_S))
    wanted = {each for each in part.subnets(new_prefix=24) if each not in others}
    assert space.free(4) == len(list(part.subnets(new_prefix=24))) - part.overlaps(
        ip_network("10.0.1.0/24")
    )
    mark = -1
    for _ in range(len(wanted)):
        segment = space.next_free(4, mark, 0.0, avoid=others)
        wanted.remove(segment)
        space.put(segment, Holding(segment, "b"))
        number = space.number(segment)
        assert number is not None
        mark = max(mark, number)
    with pytest.raises(ExhaustedError):
        space.next_free(4, mark, 0.0, avoid=others)


def test_a_space_of_more_segments_than_a_machine_word_counts_says_how_many_are_free() -> None:
    space = AddressSpace(
        network(pod_cidrs=(ip_network("fd00::/32"),), segment_lengths={4: 24, 6: 126}), 0.0
    )
    assert space.free(6) == 1 << 94
    assert space.next_free(6, -1, 0.0) == ip_network("fd00::/126")


def test_after_a_restore_only_space_above_the_mark_is_granted() -> None:
    space = small_space()
    assert space.next_free(4, 2, 0.0, only_unused=True) == ip_network("10.0.3.0/24")
    with pytest.raises(ExhaustedError, match="limpet controller recovery"):
        space.next_free(4, 3, 0.0, only_unused=True)
    assert space.next_free(4, 3, 0.0) == ip_network("10.0.0.0/24")


def test_the_longest_rested_goes_first() -> None:
    space = small_space()
    for number, since_s in enumerate((3.0, 1.0, 2.0, 4.0)):
        segment = space.segment(4, number)
        space.put(segment, Holding(segment, "a", since_s))
    assert space.next_free(4, 3, 50.0) == ip_network("10.0.1.0/24")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pod_cidrs": ()}, "at least one prefix"),
        ({"pod_cidrs": (ip_network("10.0.0.0/25"),)}, "no /24 fits"),
        ({"segment_lengths": {4: 31, 6: 64}}, "a gateway and a pod"),
        ({"service_cidrs": (ip_network("10.244.8.0/24"),)}, "overlaps 10.244.0.0/16"),
        ({"pod_cidrs": (ip_network("224.0.0.0/8"),)}, "no pod may use"),
        ({"pod_cidrs": (ip_network("fd00::/48"), ip_network("fd01::/48"))}, "more than one"),
    ],
)
def test_a_network_that_makes_no_cluster_is_found_out(changes: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in network_problems(network(**changes)))
    assert network_problems(network()) == []


def test_the_lan_of_a_node_that_meets_the_pods_is_found_out() -> None:
    lan, other = ip_network("10.244.9.0/24"), ip_network("192.0.2.0/24")
    assert overlaps_with(network(), [lan, other]) == [(ip_network("10.244.0.0/16"), lan)]
