"""Times are right as far as they can be, and doubtful ones say so."""

from __future__ import annotations

from limpet.picture.timeline import Clock, Happening
from limpet.timeline.clock import Moment, doubted, was_set_s
from limpet.timeline.log import Recorded, entries_of

YEAR_2026 = 1_795_000_000.0
FIRST = Moment("boot1", 10.0, 100.0, Clock.FREE)


def recorded(sequence: int, moment: Moment) -> Recorded:
    return Recorded(sequence, moment, Happening(kind="agent", words="started"))


def test_what_came_before_the_time_server_is_put_right_by_what_it_said() -> None:
    later = Moment("boot1", 70.0, YEAR_2026, Clock.KEPT)

    first, second = entries_of([recorded(1, FIRST), recorded(2, later)])

    assert (first.at_s, first.clock) == (YEAR_2026 - 60.0, Clock.MENDED)
    assert (second.at_s, second.clock) == (YEAR_2026, Clock.KEPT)


def test_another_boot_says_nothing_of_this_one() -> None:
    later = Moment("boot2", 70.0, YEAR_2026, Clock.KEPT)

    first, _ = entries_of([recorded(1, FIRST), recorded(2, later)])

    assert (first.at_s, first.clock) == (100.0, Clock.FREE)


def test_a_clock_that_was_right_although_nobody_kept_it_is_taken_for_right_afterwards() -> None:
    early = Moment("boot1", 10.0, YEAR_2026 - 61.0, Clock.FREE)
    later = Moment("boot1", 70.0, YEAR_2026, Clock.KEPT)

    first, _ = entries_of([recorded(1, early), recorded(2, later)])

    assert (first.at_s, first.clock) == (YEAR_2026 - 61.0, Clock.KEPT)


def test_a_clock_that_is_before_the_entry_before_is_not_believed() -> None:
    assert doubted(FIRST, newest_s=YEAR_2026).clock is Clock.BEHIND
    assert doubted(FIRST, newest_s=50.0).clock is Clock.FREE


def test_a_clock_that_was_set_is_told_from_one_that_is_steered_and_from_a_boot() -> None:
    def later(wall_s: float, boot: str = "boot1") -> Moment:
        return Moment(boot, 20.0, wall_s, Clock.KEPT)

    assert was_set_s(FIRST, later(110.5)) == 0.0
    assert was_set_s(FIRST, later(3710.0)) == 3600.0
    assert was_set_s(FIRST, later(3710.0, "boot2")) == 0.0
