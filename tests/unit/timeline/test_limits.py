"""What is recorded is bounded, however much flaps, and how it stands in the end is always told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.picture.said import Level
from limpet.picture.timeline import Happening
from limpet.timeline.limits import ALL_AT_ONCE, ALL_PER_HOUR, EACH_AT_ONCE, EACH_PER_HOUR, Limits

HOUR_S = 3600


def of_path(peer: str, was: str, became: str) -> Happening:
    return Happening(
        kind="path",
        node="here",
        peer=peer,
        names=("edge-1", peer),
        was=was,
        became=became,
        words=f"{peer}: {became}, was {was}",
    )


def flaps(limits: Limits, peers: int, seconds: int) -> list[Happening]:
    """Each second all of them go there, or back; then an hour of quiet."""
    told = []
    for now_s in range(seconds):
        rungs = ("route", "vxlan") if now_s % 2 else ("vxlan", "route")
        told += limits.take([of_path(f"p{n}", *rungs) for n in range(peers)], now_s)
    for now_s in range(seconds, seconds + HOUR_S, 60):
        told += limits.take([], now_s)
    return told


def test_a_pair_that_flaps_all_day_is_told_a_few_times_an_hour_and_its_last_state_at_the_end() -> (
    None
):
    hours = 6
    told = flaps(Limits(0), peers=1, seconds=hours * HOUR_S)

    assert len(told) <= EACH_AT_ONCE + EACH_PER_HOUR * (hours + 1) + 1
    assert told[-1].became == "vxlan"
    assert "changes since the entry before" in told[-1].words


def test_many_pairs_that_flap_are_bounded_together() -> None:
    limits = Limits(0)
    told = []
    for now_s in range(HOUR_S):
        each = [of_path(f"p{(now_s * 8 + n) % 800}", "route", "vxlan") for n in range(8)]
        told += limits.take(each, now_s)

    assert len(told) <= ALL_AT_ONCE + ALL_PER_HOUR + 1


def test_a_thousand_peers_that_change_alike_at_once_are_one_entry() -> None:
    told = Limits(0).take([of_path(f"p{n}", "route", "vxlan") for n in range(1000)], 0.0)

    assert len(told) == 1
    assert told[0].words.startswith("1000 peers: vxlan, was route (p0, p1, ")
    assert "and 988 more" in told[0].words
    assert told[0].names[:3] == ("edge-1", "p0", "p1")


def test_each_of_thirty_peers_that_change_alike_at_once_finds_the_entry_by_its_name() -> None:
    (told,) = Limits(0).take([of_path(f"p{n}", "route", "vxlan") for n in range(30)], 0.0)

    assert {f"p{n}" for n in range(30)} < set(told.names)


def test_what_differs_is_told_apart_although_there_is_much_at_once() -> None:
    many = [of_path(f"p{n}", "route", "vxlan") for n in range(20)]
    other = Happening(kind="controller", words="lost", level=Level.WARN)

    assert Limits(0).take([*many, other], 0.0)[1:] == [other]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 600)), max_size=80))
def test_how_a_pair_stands_is_told_whatever_came_before(steps: list[tuple[int, int]]) -> None:
    limits, now_s = Limits(0), 0
    told: list[Happening] = []
    last: dict[str, str] = {}
    for number, (peer, pause_s) in enumerate(steps):
        now_s += pause_s
        before = last.get(f"p{peer}", "none")
        last[f"p{peer}"] = f"rung{number}"
        told += limits.take([of_path(f"p{peer}", before, f"rung{number}")], now_s)
    told += limits.take([], now_s + 2 * HOUR_S)

    assert {each.peer: each.became for each in told} == last
    assert not limits.holds


def test_each_act_of_a_person_and_each_node_by_name_is_told() -> None:
    acts = [Happening(kind="person", words=f"community add: {at}", who="ann") for at in range(12)]
    nodes = [Happening(kind="membership", words="joined", names=(f"n{at}",)) for at in range(12)]
    limits = Limits(0.0)

    told = [each for happening in (*acts, *nodes) for each in limits.take([happening], 1.0)]

    assert told == [*acts, *nodes]
