"""Services at the socket in the agent: whether they are asked for, and what tells that they were
taken away. In memory only where Services are on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from limpet.base import faults
from limpet.base.settings import ServiceSettings
from limpet.datapath.services.sockets.apply import Place, PodNamespaces, SocketKernel, pins_of
from limpet.datapath.services.sockets.side import SocketSide
from limpet.linux.file_changes import FileChanges


def socket_side(
    settings: ServiceSettings, run_dir: Path, pods: Callable[[], Iterable[str]]
) -> SocketSide | None:
    """None: nftables is asked for. `pods`: paths of their network namespaces.

    Raises: KernelError.
    """
    if settings.backend == "nftables":
        return None
    place = Place(pins_of(run_dir), settings.cgroup)
    return SocketSide(SocketKernel(place, PodNamespaces(pods)), settings.backend)


class PinWatch:
    """Hears of pins that somebody takes away, on the event loop."""

    def __init__(self, sockets: SocketSide, taken: Callable[[], None]) -> None:
        """`taken`: told of it."""
        self._sockets = sockets
        self._taken = taken
        self._changes: FileChanges | None = None
        self._watched: frozenset[tuple[int, int]] = frozenset()

    def follow(self) -> None:
        """Watches the folders of pins that there are now. Raises: KernelError."""
        paths = self._sockets.pin_paths
        folders = frozenset(_id(each) for each in {path.parent for path in paths})
        if folders != self._watched or not folders:
            self.stop()
            if paths:
                self._changes = FileChanges(paths)
                asyncio.get_running_loop().add_reader(self._changes.fileno(), self._heard)
                self._watched = folders

    def stop(self) -> None:
        if self._changes is not None:
            asyncio.get_running_loop().remove_reader(self._changes.fileno())
            self._changes.close()
            self._changes = None
        self._watched = frozenset()

    def _heard(self) -> None:
        with faults.noted("pins of eBPF programs"):
            if self._changes is not None and self._changes.drain():
                self._taken()
                self.follow()


def _id(folder: Path) -> tuple[int, int]:
    """A folder that is made anew is another one."""
    try:
        status = folder.stat()
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino
