"""Errors that nobody has foreseen: got over, counted, and told once for each kind."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from typing import Any

import structlog

_log = structlog.get_logger("faults")

_MOST_KINDS = 1000
"""Kinds that are known by name; more are counted, not told."""

counts: Counter[str] = Counter()
"""Errors in this process, by the part of the agent where they came up."""
_kinds: Counter[tuple[str, str, str, int]] = Counter()


def note(part: str, error: BaseException) -> None:
    """`error` came up in `part` of the agent, which goes on.

    The first of a kind (part, type and line of code) is logged with its traceback, later ones in
    one line each time that they are ten times as many.
    """
    counts[part] += 1
    last = traceback.extract_tb(error.__traceback__)[-1:]
    line = (last[0].filename, last[0].lineno or 0) if last else ("", 0)
    kind = (part, type(error).__name__, *line)
    if kind not in _kinds and len(_kinds) >= _MOST_KINDS:
        return
    _kinds[kind] += 1
    times = _kinds[kind]
    words = f"{type(error).__name__}: {error}"
    if times == 1:
        _log.error(
            "an unexpected error, a defect of limpet; it goes on",
            part=part,
            error=words,
            what_to_do="report it with these lines; later ones of its kind are only counted",
            exc_info=error,
        )
    elif str(times).strip("0") == "1":
        _log.error("the same unexpected error again", part=part, error=words, times=times)


class noted:
    """What fails within is noted, and what follows is done all the same.

    A class, since each change passes through ten of them: a generator costs thrice as much.
    """

    __slots__ = ("_part",)

    def __init__(self, part: str) -> None:
        self._part = part

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        note(self._part, error)
        return True


def note_of_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """For `loop.set_exception_handler`: callbacks and tasks that nobody looks after."""
    error = context.get("exception")
    if error is None:
        loop.default_exception_handler(context)
    else:
        note("event loop", error)
