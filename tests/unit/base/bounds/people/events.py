"""Probes of what is written down of what others did: in logs, as events, in Kubernetes."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Any

from limpet.base.bounds import administrators, words
from limpet.base.process.log_limits import LogLimits
from limpet.base.process.programs import cut_log
from limpet.controller.orchestrator.event_backlog import Backlog, Key, node
from limpet.picture.timeline import Clock, Happening, Timeline
from limpet.timeline.answer import TimelineQuery
from limpet.timeline.clock import Moment
from limpet.timeline.limits import Limits
from limpet.timeline.log import Recorded
from limpet.timeline.recorder import Recorder
from limpet.timeline.writer import Writer
from tests.unit.base.bounds.probes import is_remembered, probe
from tests.waiting import PATIENCE_S, until

_HOUR_S, _MINUTE_S = 3600.001, 60.001


class _Refusals:
    """What each member has in the log."""

    def __init__(self) -> None:
        self._limits = LogLimits()

    def take(self, key: int, now_s: float, /) -> bool:
        return self._limits.take("it", now_s, by_others=True, who=str(key)) is not None


class _Held(Recorder):
    """Reads the disk once it may."""

    def __init__(self, folder: Path, moment: Moment) -> None:
        super().__init__(folder, lambda: moment)
        self.begun = 0
        self.may = threading.Event()

    def answer_from(self, *asked: Any) -> Timeline:
        self.begun += 1
        assert self.may.wait(PATIENCE_S)
        return super().answer_from(*asked)


@probe(administrators.EVENTS_READ)
def _(amount: int) -> bool:
    """Whether the disk is read for all of so many before one of them is answered."""

    async def scenario(folder: Path) -> bool:
        moment = Moment("boot", 1.0, 1.0, Clock.KEPT)
        recorder = _Held(folder, moment)
        recorder._known.append(Recorded(2, moment, Happening(kind="node", words="it joined")))
        questions = [
            asyncio.create_task(recorder.answer(TimelineQuery(before=2))) for _ in range(amount)
        ]
        await until(lambda: recorder.begun == min(amount, administrators.EVENTS_READ.most))
        for _ in range(20):
            await asyncio.sleep(0)
        all_begun = recorder.begun == amount
        recorder.may.set()
        await asyncio.gather(*questions)
        assert recorder.begun == amount
        return all_begun

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(scenario(Path(folder)))


@probe(words.LOG_KINDS)
def _(amount: int) -> bool:
    return is_remembered(amount, _Refusals())


def _lines_later(amount: int, later_s: float, *, by_others: bool) -> bool:
    limits = LogLimits()
    while limits.take("it", 0.0, by_others=by_others) is not None:
        pass
    told = (limits.take("it", later_s, by_others=by_others) for _ in range(amount))
    return all(each is not None for each in told)


@probe(words.LOG_LINES_PER_S)
def _(amount: int) -> bool:
    return _lines_later(amount, 1.0001, by_others=False)


@probe(words.LOG_REFUSALS_PER_MINUTE)
def _(amount: int) -> bool:
    return _lines_later(amount, _MINUTE_S, by_others=True)


@probe(words.PROGRAM_LOG)
def _(amount: int) -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(amount)
        cut_log(Path(file.name))
        return Path(file.name).stat().st_size == amount


# Events of a node


def _happening(about: int) -> Happening:
    return Happening(kind="path", node="here", peer=f"p{about}", words=f"p{about}: it is away")


def _are_told(limits: Limits, abouts: range | list[int], now_s: float) -> bool:
    """Each by itself, as it happens."""
    return all(limits.take([_happening(about)], now_s) for about in abouts)


@probe(words.EVENTS)
def _(amount: int) -> bool:
    return _are_told(Limits(0.0), range(amount), 0.0)


@probe(words.EVENTS_PER_HOUR)
def _(amount: int) -> bool:
    limits, most = Limits(0.0), words.EVENTS.most
    assert _are_told(limits, range(most), 0.0)
    return _are_told(limits, range(most, most + amount), _HOUR_S)


@probe(words.EVENTS_OF_ONE)
def _(amount: int) -> bool:
    return _are_told(Limits(0.0), [7] * amount, 0.0)


@probe(words.EVENTS_OF_ONE_PER_HOUR)
def _(amount: int) -> bool:
    limits = Limits(0.0)
    assert _are_told(limits, [7] * words.EVENTS_OF_ONE.most, 0.0)
    return _are_told(limits, [7] * amount, _HOUR_S)


@probe(words.EVENT_SUBJECTS)
def _(amount: int) -> bool:
    limits = Limits(0.0)
    for about in range(words.EVENTS.most + amount):
        limits.take([_happening(about)], 0.0)
    return not limits.lost


@probe(words.EVENT_SUBJECTS)
def _(amount: int) -> bool:
    """Of each of so many it is known how much was told."""
    limits = Limits(0.0)
    for about in range(amount):
        limits.take([_happening(about)], 0.0)
    return len(limits._each) == amount


@probe(words.EVENTS_WAITING)
def _(amount: int) -> bool:
    """The first of so many is still there."""
    writer = Writer(Path("/nowhere"), lambda _: None)
    for sequence in range(amount):
        moment = Moment("boot1", float(sequence), 0.0, Clock.KEPT)
        writer.put(Recorded(sequence, moment, _happening(sequence)))
    return writer._waiting[0].sequence == 0


# Events in Kubernetes


def _key(message: str, name: str) -> Key:
    return (node(name), "Normal", "Joined", message)


def _are_kept(backlog: Backlog, keys: list[Key], now_s: float) -> bool:
    for key in keys:
        backlog.add(key, now_s, 0.0)
    return not backlog.dropped


@probe(words.KUBE_EVENTS)
def _(amount: int) -> bool:
    return _are_kept(Backlog(), [_key("joined", f"n{number}") for number in range(amount)], 0.0)


@probe(words.KUBE_EVENTS_OF_ONE)
def _(amount: int) -> bool:
    return _are_kept(Backlog(), [_key(f"{number}", "n1") for number in range(amount)], 0.0)


@probe(words.KUBE_EVENTS_OF_ONE_PER_MINUTE)
def _(amount: int) -> bool:
    backlog, most = Backlog(), words.KUBE_EVENTS_OF_ONE.most
    assert _are_kept(backlog, [_key(f"{number}", "n1") for number in range(most)], 0.0)
    later = [_key(f"later {number}", "n1") for number in range(amount)]
    return _are_kept(backlog, later, _MINUTE_S)
