"""What a long-running process of ours does alike: log, limits, lock, readiness, signals."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import fcntl
import os
import resource
import signal
import socket
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import structlog

from limpet.base.disk import cause, refusals
from limpet.base.errors import StorageError

_OPEN_FILES = 65536
"""One for each connection."""
_END_S = 10.0


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


def allow_many_files() -> None:
    """As many descriptors as the machine lets us have, up to 65536."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most_files, _OPEN_FILES), most_files))


@contextlib.contextmanager
def only_one(path: Path, *, folder_mode: int, taken: str, hint: str) -> Iterator[None]:
    """One process holds the lock file `path` at a time; `taken` and `hint` are for the second.

    Raises: StorageError.
    """
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
            file = held.enter_context(open(path, "w", encoding="utf-8"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StorageError("lock", str(path), taken, hint=hint) from error
        except OSError as error:
            raise StorageError("lock", str(path), cause(error)) from error
        yield


def listen_on_socket(path: Path, backlog: int) -> socket.socket:
    """A Unix socket for the owner alone; whoever waits for it finds one that answers.

    Raises: StorageError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    temporary = Path(f"{path}.new")
    try:
        with refusals("listen on", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            listener.bind(str(temporary))
            temporary.chmod(0o600)
            listener.listen(backlog)
            temporary.rename(path)
    except StorageError:
        listener.close()
        raise
    return listener


def notify_service_manager(state: str) -> None:
    """Source: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


async def until_stopped(end_s: float = _END_S) -> None:
    """Returns at SIGTERM or SIGINT; the process has `end_s` to end from then on.

    What hangs (a disk, another program) must not keep its successor out: a process that is still
    there says on stderr where each of its threads stands, and ends with code 1.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    faulthandler.dump_traceback_later(end_s, exit=True)
