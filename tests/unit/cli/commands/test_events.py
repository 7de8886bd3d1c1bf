"""`limpet events` and what it goes on to show."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest
import typer

from limpet.agent.settings import Settings
from limpet.base.errors import AgentUnavailable
from limpet.cli.commands.diagnosis import events as command
from limpet.cli.main import app
from limpet.picture.timeline import Clock, Happening, Timeline
from limpet.timeline.answer import TimelineQuery, answer
from limpet.timeline.clock import Moment
from limpet.timeline.log import Recorded

NOW_S = 1_795_000_000.0


class Agent:
    """Answers from `kept`; before each question that waits something more happens, at its age."""

    def __init__(self, ages_s: Iterable[float], later: Iterable[float]) -> None:
        self._kept: list[Recorded] = []
        self._later = list(later)
        for age_s in ages_s:
            self._happens(age_s)

    def _happens(self, age_s: float) -> None:
        number = len(self._kept) + 1
        moment = Moment("boot", 1000.0 - age_s, NOW_S - age_s, Clock.KEPT)
        self._kept.append(Recorded(number, moment, Happening(kind="x", words=f"event {number}")))

    def events(self, _folders: object, _tell: object, **asked: Any) -> Timeline:
        """As `events_of_node`. Raises: AgentUnavailable, when there is nothing left to follow."""
        if asked.get("wait_s"):
            if not self._later:
                raise AgentUnavailable("gone")
            self._happens(self._later.pop(0))
        return answer(self._kept, TimelineQuery(**{**asked, "about": tuple(asked["about"])}))


def run_events(*arguments: str) -> None:
    """As the command line, which lets errors pass."""
    typer.main.get_command(app)(["events", *arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("ages_s", "shown"),
    [
        ([9000.0, 8000.0], ["nothing is kept", "event 3", "event 4"]),
        ([9000.0, 60.0], ["event 2", "event 3", "event 4"]),
    ],
    ids=["nothing since then", "one since then"],
)
def test_who_follows_from_a_time_on_is_not_shown_what_was_before(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ages_s: list[float],
    shown: list[str],
) -> None:
    agent = Agent(ages_s, later=[1.0, 0.0])
    monkeypatch.setattr(command, "events_of_node", agent.events)
    monkeypatch.setattr(command, "load_settings", lambda _config: Settings())
    monkeypatch.setattr(time, "time", lambda: NOW_S)

    with pytest.raises(AgentUnavailable):
        run_events("--since", "5m", "--follow")

    printed = capsys.readouterr()
    told = [each for each in (printed.err + printed.out).splitlines() if "TIME" not in each]
    assert len(told) == len(shown)
    for line, words in zip(told, shown, strict=True):
        assert words in line
