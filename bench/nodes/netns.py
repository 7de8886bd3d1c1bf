"""Network namespaces of the bench: entered by the main thread, never left behind.

They are named `lbn-<pid of the bench>-…`, so that a later run finds and removes what a killed one
left.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from limpet.lab.netns import FOLDER, delete_namespace, make_namespace
from limpet.linux.namespaces import Namespace

PREFIX = "lbn-"


class Netns:
    """One network namespace, its loopback up. `path` is what CNI_NETNS takes."""

    def __init__(self, name: str) -> None:
        """Make the namespace `lbn-<pid>-<name>`."""
        self.name = f"{PREFIX}{os.getpid()}-{name}"
        self.path = FOLDER / self.name
        make_namespace(self.name)
        self._namespace = Namespace(str(self.path))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The calling thread, and what it starts, is in the namespace meanwhile."""
        with self._namespace.entered():
            yield

    def close(self) -> None:
        """The name is gone; the namespace goes with its last process."""
        os.close(self._namespace.fd)
        delete_namespace(self.name)


def sweep(folders: list[Path]) -> list[str]:
    """Removes what benches that are no longer alive left behind; returns the names.

    That is their namespaces with the processes in them, and their `lbn-<pid>-…` folders in
    `folders`.
    """
    removed = []
    for path in sorted(FOLDER.glob(f"{PREFIX}*")):
        if _is_left_over(path):
            _kill_processes_of(path)
            delete_namespace(path.name)
            path.unlink(missing_ok=True)  # one that never became a mount
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
