"""What a process of ours says: one line each on stderr, as key=value.

Here, and nowhere else, is seen to it that what others chose (a pod's name, a stranger's request, an
error of a server) neither forges a line nor fills the disk: each value is escaped and cut, and of
lines that say the same there are only so many. A line that anybody can cause by asking again, such
as a refusal, is logged with `by_others=True` and has a much lower limit; what a member brings
about, with its uid in place of True, so that it uses up nobody else's lines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from limpet.base.bounds.words import LOG_FIELDS, LOG_TRACEBACK, LOG_VALUE
from limpet.base.process.log_limits import LogLimits
from limpet.base.text.escaping import escaped, shortened, shortened_within

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_OWN = ("timestamp", "level", "event")
_log = structlog.get_logger("log")


def configure_log(level: str) -> None:
    """One line each on stderr, as key=value; those of libraries and of crashes too."""
    structlog.configure(
        processors=[
            _Limiter(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            in_bounds,
            structlog.processors.LogfmtRenderer(key_order=list(_OWN), bool_as_flag=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(_Stderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_OfLibraries(logging.WARNING)], force=True)
    sys.excepthook = _crashed
    threading.excepthook = _thread_crashed


def complain(text: str) -> None:
    """A line on stderr of a process that has no log yet."""
    _Stderr().write(shortened(escaped(text), LOG_VALUE.most) + "\n")


def in_bounds(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """What others chose moves no cursor, ends no line and is not longer than a person reads."""
    keys = [key for key in _OWN if key in event]
    keys += [key for key in event if key not in _OWN][: LOG_FIELDS.most]
    bounded = {_key(key): _value(key, event[key]) for key in keys}
    if len(event) > len(keys):
        bounded["values_left_out"] = len(event) - len(keys)
    return bounded


def _key(key: str) -> str:
    if key.isidentifier() and len(key) <= 100:
        return key
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in key[:100]) or "_"


def _value(key: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < 256 else shortened(hex(value), LOG_VALUE.most)
    if key == "exception":  # its lines are ours; the renderer writes their ends as \n
        return escaped(shortened_within(str(value), LOG_TRACEBACK.most), keep="\n")
    return escaped(shortened(str(value), LOG_VALUE.most))


class _Limiter:
    """Lets so many lines of a kind through, and has the rest counted in those that follow."""

    def __init__(self) -> None:
        self._limits = LogLimits()
        self._lock = threading.Lock()

    def __call__(
        self, _logger: Any, _name: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        kind, others = str(event.get("event", "")), event.pop("by_others", False)
        who = others if isinstance(others, str) else ""
        with self._lock:
            now_s = time.monotonic()
            left_out = self._limits.take(kind, now_s, by_others=bool(others), who=who)
            silent = {} if left_out is None else self._limits.take_silent(now_s)
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event["left_out"] = left_out
        for other, count in silent.items():
            _log.warning("lines were left out", of=other, left_out=count)
        return event


class _OfLibraries(logging.Handler):
    """What libraries say by Python's own logging."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        _log.warning(
            "a library says",
            library=record.name,
            words=record.getMessage(),
            exc_info=error,
            by_others=True,
        )


def _crashed(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        _log.error("ended by an unexpected error, a defect of limpet", exc_info=error)


def _thread_crashed(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None:
        name = ended.thread.name if ended.thread is not None else ""
        _log.error("a thread was ended by an error", thread=name, exc_info=ended.exc_value)


class _Stderr:
    """Where a full disk, or a log service that has gone, costs the line and nothing else."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        pass
