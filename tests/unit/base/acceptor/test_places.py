"""Who loses its place to whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.acceptor.places import Places, PlacesByAddress, source_of

_MOST, _MOST_OF_ONE = 6, 3


def test_of_its_own_source_the_oldest_makes_room() -> None:
    places: Places[int] = Places(_MOST, _MOST_OF_ONE)
    assert [places.put(number, b"a") for number in range(4)] == [None, None, None, 0]
    assert list(places) == [1, 2, 3]


def test_where_all_is_taken_the_fullest_source_makes_room() -> None:
    places: Places[int] = Places(_MOST, _MOST_OF_ONE)
    for number, source in enumerate((b"b", b"a", b"a", b"c", b"a", b"d")):
        assert places.put(number, source) is None
    assert places.put(6, b"e") == 1
    assert list(places) == [0, 2, 3, 4, 5, 6]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from([b"a", b"b", b"c"]))))
def test_it_does_as_one_does_that_counts_each_time(
    steps: list[tuple[bool, int, bytes]],
) -> None:
    places: Places[int] = Places(_MOST, _MOST_OF_ONE)
    held: dict[int, bytes] = {}
    for serial, (puts, which, source) in enumerate(steps):
        if puts:
            of = [one for one, its in held.items() if its == source]
            counts = {its: list(held.values()).count(its) for its in held.values()}
            left = places.put(serial, source)
            if len(of) >= _MOST_OF_ONE:
                assert left == of[0]
            elif len(held) >= _MOST:
                assert left is not None
                assert counts[held[left]] == max(counts.values())
                assert left == next(one for one, its in held.items() if its == held[left])
            else:
                assert left is None
            if left is not None:
                del held[left]
            held[serial] = source
        elif held:
            one = list(held)[which % len(held)]
            del held[one]
            assert places.drop(one)
            assert not places.drop(one)
        assert list(places) == list(held)
        assert all(places.of(each) == list(held.values()).count(each) for each in (b"a", b"b"))


def test_of_a_sources_places_one_of_its_addresses_takes_none_of_anothers() -> None:
    """Pods of one node stand in one /64: one with 32 connections ended all others'."""
    places: PlacesByAddress[int] = PlacesByAddress(_MOST, _MOST_OF_ONE)
    assert places.put(0, "fd00::5") is None
    by_another = [places.put(number, "fd00::66") for number in range(1, 6)]
    assert by_another == [None, None, 1, 2, 3]
    assert 0 in places
    assert places.put(6, "fd00::7") == 4
    assert list(places) == [0, 5, 6]


_ADDRESSES = ["fd00::5", "fd00::66", "fd00:0:0:1::5", "10.1.0.2", "10.1.0.3"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from(_ADDRESSES))))
def test_with_its_addresses_a_source_has_no_more_places_and_each_is_told_once(
    steps: list[tuple[bool, int, str]],
) -> None:
    places: PlacesByAddress[int] = PlacesByAddress(_MOST, _MOST_OF_ONE)
    held: dict[int, str] = {}
    for serial, (puts, which, address) in enumerate(steps):
        if puts:
            of = [one for one, its in held.items() if source_of(its) == source_of(address)]
            left = places.put(serial, address)
            assert (left is None) is (len(of) < _MOST_OF_ONE and len(held) < _MOST)
            if left is not None:
                its = held.pop(left)
                if len(of) >= _MOST_OF_ONE:
                    addresses = [held.get(one, its) for one in of]
                    assert left in of
                    assert addresses.count(its) == max(map(addresses.count, addresses))
            held[serial] = address
        elif held:
            one = list(held)[which % len(held)]
            del held[one]
            assert places.drop(one)
            assert not places.drop(one)
        assert list(places) == list(held)
        assert len(places) == len(held)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%3", "fe80::2%3", True),
    ],
)
def test_a_source_is_an_address_or_what_one_site_has_of_ipv6(
    one: str, other: str, same: bool
) -> None:
    assert (source_of(one) == source_of(other)) is same
