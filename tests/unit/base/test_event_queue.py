"""The order in which events are heard, whoever tells them when."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base import faults
from limpet.base.event_queue import EventQueue, tell_each

Told = dict[int, list["Happening"]]


@dataclass(eq=False)
class Happening:
    """What hearers tell while they hear of it, by the number of the hearer; who fails then."""

    told: Told = field(default_factory=dict)
    failing: frozenset[int] = frozenset()


HEARERS = 3
HAPPENINGS = st.recursive(
    st.builds(Happening),
    lambda inner: st.builds(
        Happening,
        st.dictionaries(st.integers(0, HEARERS - 1), st.lists(inner, max_size=3)),
        st.frozensets(st.integers(0, HEARERS - 1)),
    ),
    max_leaves=12,
)


@given(st.lists(HAPPENINGS, max_size=4))
def test_all_hear_all_events_in_the_order_in_which_they_were_told(
    happenings: list[Happening],
) -> None:
    told: list[Happening] = []
    heard: list[tuple[Happening, int]] = []

    def tell(happening: Happening) -> None:
        told.append(happening)
        queue.tell(happening)

    def hear(happening: Happening, hearer: int) -> None:
        heard.append((happening, hearer))
        for each in happening.told.get(hearer, ()):
            tell(each)
        if hearer in happening.failing:
            raise ValueError("of this hearer alone")

    def pass_on(happening: Happening) -> None:
        for hearer in range(HEARERS):
            with faults.noted("a hearer"):
                hear(happening, hearer)

    queue = EventQueue(pass_on)
    for each in happenings:
        tell(each)
        assert len(heard) == HEARERS * len(told)

    assert heard == [(each, hearer) for each in told for hearer in range(HEARERS)]


def test_what_fails_is_noted_and_ends_neither_who_tells_nor_what_comes_after() -> None:
    heard: list[str] = []

    def pass_on(event: str) -> None:
        heard.append(event)
        if event == "first":
            queue.tell("second")
            raise ValueError

    queue = EventQueue(pass_on)
    before = faults.counts["str"]
    queue.tell("first")
    queue.tell("third")

    assert heard == ["first", "second", "third"]
    assert faults.counts["str"] == before + 1


def test_what_was_told_before_the_process_was_interrupted_is_heard_first() -> None:
    heard: list[str] = []

    def pass_on(event: str) -> None:
        heard.append(event)
        if event == "first":
            queue.tell("second")
            raise KeyboardInterrupt

    queue = EventQueue(pass_on)
    with pytest.raises(KeyboardInterrupt):
        queue.tell("first")
    queue.tell("third")

    assert heard == ["first", "second", "third"]


def test_each_hears_also_after_one_that_has_failed() -> None:
    class Hearer:
        def __init__(self, number: int) -> None:
            self.number = number

        def hear(self, event: str) -> None:
            heard.append((event, self.number))
            if self.number == 1:
                raise ValueError("of this hearer alone")

    heard: list[tuple[str, int]] = []
    before = faults.counts["str"]
    tell_each("news", Hearer(0), Hearer(1), None, Hearer(2))
    assert heard == [("news", 0), ("news", 1), ("news", 2)]
    assert faults.counts["str"] == before + 1
