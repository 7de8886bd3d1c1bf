"""`limpet events` and what it goes on to show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from limpet.base.errors import AgentUnavailable
from limpet.cli.commands.diagnosis.events import show_events
from limpet.cli.output import Output
from limpet.picture.timeline import Clock, Happening, Timeline
from limpet.timeline.answer import TimelineQuery, answer
from limpet.timeline.clock import Moment
from limpet.timeline.log import Recorded

NOW_S = 1_795_000_000.0


class Kept:
    """What a node has kept; before each question that waits something more happens, at its age."""

    def __init__(self, ages_s: Iterable[float], later: Iterable[float]) -> None:
        self._kept: list[Recorded] = []
        self._later = list(later)
        for age_s in ages_s:
            self._happens(age_s)

    def _happens(self, age_s: float) -> None:
        number = len(self._kept) + 1
        moment = Moment("boot", 1000.0 - age_s, NOW_S - age_s, Clock.KEPT)
        self._kept.append(Recorded(number, moment, Happening(kind="x", words=f"event {number}")))

    def ask(self, **asked: Any) -> Timeline:
        """Raises: AgentUnavailable, when there is nothing left to follow."""
        if asked.get("wait_s"):
            if not self._later:
                raise AgentUnavailable("gone")
            self._happens(self._later.pop(0))
        return answer(self._kept, TimelineQuery(**{**asked, "about": tuple(asked["about"])}))


@pytest.mark.parametrize(
    ("ages_s", "shown"),
    [
        ([9000.0, 8000.0], ["nothing is kept", "event 3", "event 4"]),
        ([9000.0, 60.0], ["event 2", "event 3", "event 4"]),
    ],
    ids=["nothing since then", "one since then"],
)
def test_who_follows_from_a_time_on_is_not_shown_what_was_before(
    capsys: pytest.CaptureFixture[str],
    ages_s: list[float],
    shown: list[str],
) -> None:
    kept = Kept(ages_s, later=[1.0, 0.0])
    asked: dict[str, Any] = {"about": [], "limit": 200, "since_s": NOW_S - 300.0}

    with pytest.raises(AgentUnavailable):
        show_events(kept.ask, asked, Output.TABLE, follow=True)

    printed = capsys.readouterr()
    told = [each for each in (printed.err + printed.out).splitlines() if "TIME" not in each]
    assert len(told) == len(shown)
    for line, words in zip(told, shown, strict=True):
        assert words in line


def test_who_follows_is_shown_all_that_the_next_controller_has_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It counts from one, too."""
    before, follows = Kept([3.0, 2.0, 1.0], later=[]), Kept([0.5], later=[0.4, 0.3, 0.2])
    asked: dict[str, Any] = {"about": [], "limit": 2}
    answering = [before]

    def ask(**asked: Any) -> Timeline:
        found = answering[-1].ask(**asked)
        answering.append(follows)
        return found

    with pytest.raises(AgentUnavailable):
        show_events(ask, asked, Output.TABLE, follow=True)

    told = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "event" in line]
    assert told == ["2", "3", "1", "2", "3", "4"]
