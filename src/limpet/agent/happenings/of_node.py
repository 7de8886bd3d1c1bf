"""The timeline of a node, and what goes into it whether the node is in a cluster or not."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from pathlib import Path

from limpet import __version__
from limpet.agent.happenings.segments import segment_states
from limpet.agent.happenings.words import Fact, Who, by_name, differences
from limpet.agent.status.node import Room, room_of
from limpet.base import faults
from limpet.cni.verbs import Node
from limpet.picture.said import Level
from limpet.picture.timeline import Happening
from limpet.timeline.file import FOLDER
from limpet.timeline.log import Recorded
from limpet.timeline.recorder import Recorder, moment_now, read_boot

_LOOK_EVERY_S = 10.0


class NodeHappenings:
    """For one event loop."""

    def __init__(self, state_dir: Path) -> None:
        self._boot = read_boot()
        self.recorder = Recorder(state_dir / FOLDER, partial(moment_now, self._boot))
        self.here = Who(name=socket.gethostname())
        """The machine by its host name; the cluster knows better who it is."""
        self._before: dict[str, Fact] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self, node: Node) -> None:
        """What was kept is read, and the start is told."""
        last = self.recorder.start()
        self.recorder.note(self._started(last))
        self._looking = asyncio.create_task(self._look_for_ever(node))

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        self.recorder.note(self._of_agent("stopped", was="runs", became="stopped"))
        await self.recorder.stop()

    def _started(self, last: Recorded | None) -> Happening:
        words, level = f"started, version {__version__}", Level.NOTE
        if last is not None and last.moment.boot != self._boot:
            words += "; the machine was booted since the entry before"
        elif last is not None and last.happening.became != "stopped":
            words += "; the one before had ended without a word: killed, or it crashed"
            level = Level.WARN
        return self._of_agent(words, level=level, was="", became="runs")

    def _of_agent(
        self, words: str, *, was: str, became: str, level: Level = Level.NOTE
    ) -> Happening:
        here = self.here
        return Happening(
            kind="agent",
            words=f"the agent {words}",
            level=level,
            node=here.uid,
            names=(here.name,),
            was=was,
            became=became,
        )

    async def _look_for_ever(self, node: Node) -> None:
        while True:
            with faults.noted("timeline"):
                self._look(node)
            await asyncio.sleep(_LOOK_EVERY_S)

    def _look(self, node: Node) -> None:
        room, words = room_of(segment_states(node))
        fact = Fact(
            "addresses",
            "addresses for pods",
            words,
            level=Level.FAIL if room is Room.FULL else Level.WARN,
            well="have room again",
            mark=room.value if words else "",
        )
        facts = [fact]
        self.recorder.note(*differences(self.here, self._before, facts))
        self._before = by_name(facts)
