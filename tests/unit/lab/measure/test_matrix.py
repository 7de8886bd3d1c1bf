"""How a matrix is read."""

from __future__ import annotations

from ipaddress import ip_address

from limpet.lab.measure.matrix import Matrix, MeasuredEnd

BOTH = MeasuredEnd("pod-a", "ns-a", (ip_address("10.0.0.2"), ip_address("fd00::2")))
OTHER = MeasuredEnd("b", "ns-b", (ip_address("10.0.0.3"), ip_address("fd00::3")))
MUTE = MeasuredEnd("mute", "ns-c", ())


def test_a_cell_shows_the_versions_that_were_answered() -> None:
    matrix = Matrix(
        (BOTH, OTHER, MUTE),
        frozenset({("pod-a", "10.0.0.2"), ("pod-a", "fd00::2"), ("b", "fd00::2")}),
        0.1,
    )

    assert matrix.lines() == [
        "         1  2  3",
        "1 pod-a 46 --   ",
        "2 b     -6 --   ",
        "3 mute  -- --   ",
    ]


def test_failures_are_all_that_was_not_answered() -> None:
    answered = {
        (source.name, str(address))
        for source in (BOTH, OTHER)
        for target in (BOTH, OTHER)
        for address in target.addresses
    }

    assert Matrix((BOTH, OTHER), frozenset(answered), 0.1).failures == []
    assert Matrix((BOTH, OTHER), frozenset(answered - {("b", "10.0.0.2")}), 0.1).failures == [
        ("b", "pod-a", "10.0.0.2")
    ]


def test_pings_are_counted_for_every_address_from_every_place() -> None:
    assert Matrix((BOTH, OTHER, MUTE), frozenset(), 0.1).count == 12


def test_who_is_to_be_apart_fails_by_being_answered_and_not_by_silence() -> None:
    apart = frozenset({("pod-a", "b"), ("b", "pod-a")})
    answered = {
        (place.name, str(address)) for place in (BOTH, OTHER) for address in place.addresses
    }
    stray = {("b", "10.0.0.2")}

    kept = Matrix((BOTH, OTHER), frozenset(answered), 0.1, apart)
    broken = Matrix((BOTH, OTHER), frozenset(answered | stray), 0.1, apart)

    assert (kept.failures, kept.trespasses, kept.count) == ([], [], 4)
    assert kept.lines()[1:] == ["1 pod-a 46 ..", "2 b     .. 46"]
    assert broken.trespasses == [("b", "pod-a", "10.0.0.2")]
    assert broken.failures == []
