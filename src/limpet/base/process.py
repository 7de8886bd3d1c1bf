"""What long-running processes do alike: ours (log, limits, lock, readiness, signals, servers,
calls that may hang), and
the programs beside the agent, which are started and ended by one at a time, in a session of their
own, so that they outlive it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import os
import resource
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import structlog

from limpet.base.addresses import Listen
from limpet.base.disk import cause, refusals
from limpet.base.errors import KernelError, StorageError

T = TypeVar("T")

_OPEN_FILES = 65536
"""One for each connection."""
_END_S = 10.0
_IP_FREEBIND = 15
"""Source: ip(7), include/uapi/linux/in.h."""
_M_ARENA_MAX = -8  # Source: mallopt(3).


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


def open_listener(at: Listen, *, may_come_later: bool = False) -> socket.socket:
    """A bound TCP socket that does not block; `::` is every address of both families.

    `may_come_later`: the address need not be the machine's yet. Raises: OSError.
    """
    family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, may_come_later)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(at)
    except OSError:
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


async def until_stopped() -> None:
    """Returns at SIGTERM or SIGINT; the process has 10 s to end from then on.

    What hangs (a disk, another program) must not keep its successor out: a process that is still
    there says on stderr where each of its threads stands, and ends with code 1.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    faulthandler.dump_traceback_later(_END_S, exit=True)


_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0
_LOOK_AGAIN_MS = 2
_LOG_SHOWN = 300
"""Characters, the last ones: enough for what it failed with."""
_LARGEST_LOG_BYTES = 256 << 10


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else starts or stops what runs there meanwhile. Raises: OSError."""
    # The folder itself is locked: a lock file would stay.
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    answers: Callable[[], bool],
    what: str,
    hint: str = "",
    begun: Callable[[int], None] | None = None,
) -> None:
    """Returns when the program answers; all that it says is in `log`, which begins anew.

    `environment` is all that it gets, and `begun` hears its pid at once. Raises: OSError;
    KernelError with what it said, and `hint`, when it ends or is silent.
    """
    with open(log, "wb") as fresh, open(log, "ab") as output:
        fresh.truncate()
        child = subprocess.Popen(
            command,
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    descriptor = os.pidfd_open(child.pid)
    try:
        try:
            if begun is not None:
                begun(child.pid)  # while the number is its: it is not waited for yet
        finally:
            # Nobody else waits for it, and it would stay a zombie.
            threading.Thread(target=child.wait, name=f"reap {what}", daemon=True).start()
        trouble = _await_answer(descriptor, answers)
        if trouble is not None:
            said = log.read_text(encoding="utf-8", errors="replace")[-_LOG_SHOWN:]
            words = " ".join(said.split()) or "it said nothing"
            raise KernelError("start", what, trouble[0], f"{trouble[1]}: {words}{hint}")
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        raise
    finally:
        os.close(descriptor)


def _await_answer(descriptor: int, answers: Callable[[], bool]) -> tuple[int, str] | None:
    ended = select.poll()
    ended.register(descriptor, select.POLLIN)
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not answers():
        if ended.poll(_LOOK_AGAIN_MS):
            return errno.ECHILD, "it ended at once"
        if time.monotonic() > deadline_s:
            return errno.ETIMEDOUT, f"no answer in {_START_TIMEOUT_S:g} s"
    return None


def end_process(
    pid_of: Callable[[], int | None],
    where: Path,
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL),
    *,
    within_s: float = _STOP_TIMEOUT_S,
) -> None:
    """Ends the process that is told of at `where`; each signal has a time of its own to do it.

    `pid_of`: that process now; None: none does. Raises: KernelError when it is still there.
    """
    pid = pid_of()
    if pid is None:
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if pid_of() != pid:
            return  # it ended meanwhile, and the number is another's
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        for number in signals:
            signal.pidfd_send_signal(descriptor, number)
            if ended.poll(within_s * 1000):
                return
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
    raise KernelError("stop", f"process {pid} ({where})", errno.ETIMEDOUT)


def cut_log(log: Path) -> None:
    """Empties a log that has grown for months; one that cannot be cut is no reason to have no
    tunnel."""
    try:
        if log.stat().st_size > _LARGEST_LOG_BYTES:
            os.truncate(log, 0)
    except OSError:
        return


async def close_server(server: asyncio.Server) -> None:
    """Close `server` once each connection that it has accepted is known to its protocol.

    asyncio accepts in one turn of the loop, makes the transport in the next, and calls
    `connection_made` in the one after. A server that is closed before the transport is made never
    makes it, and says nothing: the connection stays open and unanswered until the garbage collector
    comes by (`Server._attach` of Python 3.11). Afterwards the caller knows every one that is open.
    """
    loop = server.get_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    await asyncio.sleep(0)
    server.close()
    await asyncio.sleep(0)


async def in_thread(call: Callable[[], T], name: str) -> T:
    """What `call` returns or raises, from a daemon thread of that name.

    The end of the process waits for a loop's own pool (`asyncio.to_thread`), not for this.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            outcome.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await asyncio.wrap_future(outcome)


def find_program(name: str, path: str | None = None) -> str | None:
    """The first executable file of that name; one with a slash is looked for where it says.

    `shutil` knows it too, with libraries of compression in its train.
    `path`: folders with colons between; None: those of PATH.
    """
    folders = [""] if "/" in name else (path or os.environ.get("PATH", os.defpath)).split(":")
    for folder in folders:
        found = os.path.join(folder, name)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return None


def share_one_heap() -> None:
    """All threads take from one heap; each of their own would keep what is free there."""
    option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; musl has one heap
    if option is not None:
        option(_M_ARENA_MAX, 1)


def give_memory_back() -> None:
    """What C libraries have freed goes back to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
