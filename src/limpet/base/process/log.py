"""What a process of ours says: one line each on stderr, as key=value."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog


def configure_log(level: str) -> None:
    """One line each on stderr, as key=value."""
    levels = {"debug": 10, "info": 20, "warning": 30, "error": 40}
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _plain,
            structlog.processors.LogfmtRenderer(
                key_order=["timestamp", "level", "event"], bool_as_flag=False
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(levels[level]),
        logger_factory=structlog.WriteLoggerFactory(_Stderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )


def _plain(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """What others chose, such as a pod's name, moves no cursor and ends no line."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = "".join(
                c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode()
                for c in value
            )
    return event


class _Stderr:
    """Where a full disk, or a log service that has gone, costs the line and nothing else."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        pass
