"""Network namespaces of the bench: made in place, entered by the main thread, never left behind.

They are named `lbn-<pid of the bench>-…` under /run/netns, as `ip netns` names its own, so that a
later run finds and removes what a killed one left.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, get_native_id

PREFIX = "lbn-"
FOLDER = Path("/run/netns")

_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


class Netns:
    """One network namespace. `path` is what CNI_NETNS takes."""

    def __init__(self, name: str) -> None:
        """Make the namespace `lbn-<pid>-<name>`; its loopback is down."""
        self.name = f"{PREFIX}{os.getpid()}-{name}"
        self.path = FOLDER / self.name
        FOLDER.mkdir(exist_ok=True)
        self.path.touch(mode=0o400, exist_ok=False)
        failures: list[OSError] = []
        maker = Thread(target=self._make, args=(failures,))
        maker.start()
        maker.join()
        if failures:
            self.path.unlink()
            raise failures[0]
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def _make(self, failures: list[OSError]) -> None:
        # In a thread of its own: unshare moves only the caller, and the thread ends here.
        try:
            _checked("unshare a network namespace", _libc.unshare(_CLONE_NEWNET))
            own = f"/proc/self/task/{get_native_id()}/ns/net".encode()
            target = str(self.path).encode()
            _checked(f"bind {self.path}", _libc.mount(own, target, b"none", _MS_BIND, None))
        except OSError as error:
            failures.append(error)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread, and what it starts, is in the namespace meanwhile."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _checked(f"enter {self.path}", _libc.setns(self._fd, _CLONE_NEWNET))
            try:
                yield
            finally:
                _checked("leave the namespace", _libc.setns(home, _CLONE_NEWNET))
        finally:
            os.close(home)

    def close(self) -> None:
        """The name is gone; the namespace goes with its last process."""
        os.close(self._fd)
        _remove(self.path)


def _remove(path: Path) -> None:
    _checked(f"unmount {path}", _libc.umount2(str(path).encode(), _MNT_DETACH))
    path.unlink()


def sweep(folders: list[Path]) -> list[str]:
    """Removes what benches that are no longer alive left behind; returns the names.

    That is their namespaces with the processes in them, and their `lbn-<pid>-…` folders in
    `folders`.
    """
    removed = []
    for path in sorted(FOLDER.glob(f"{PREFIX}*")):
        if _is_left_over(path):
            _kill_processes_of(path)
            try:
                _remove(path)
            except OSError:  # never became a mount
                path.unlink(missing_ok=True)
            removed.append(path.name)
    for folder in folders:
        for path in folder.glob(f"{PREFIX}*"):
            if _is_left_over(path):
                shutil.rmtree(path)
                removed.append(str(path))
    return removed


def _is_left_over(path: Path) -> bool:
    maker = path.name.removeprefix(PREFIX).split("-")[0]
    return maker.isdigit() and not Path("/proc", maker).exists()


def _kill_processes_of(path: Path) -> None:
    inode = path.stat().st_ino
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if (process / "ns/net").stat().st_ino == inode:
                    os.kill(int(process.name), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
