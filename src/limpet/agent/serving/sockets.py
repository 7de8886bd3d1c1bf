"""Services at the socket in the agent: whether they are asked for, and what tells that they were
taken away. In memory only where Services are on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.base.settings import ServiceSettings
from limpet.base.timer import Timer
from limpet.datapath.services.sockets.apply import PodNamespaces, SocketKernel
from limpet.datapath.services.sockets.attached_apply import detach_programs
from limpet.datapath.services.sockets.connected_apply import CONNECTED_MAPS
from limpet.datapath.services.sockets.left_apply import LeftSockets
from limpet.datapath.services.sockets.pins_apply import AttachPoint, pins_of, remove_pins
from limpet.datapath.services.sockets.side import SocketSide
from limpet.datapath.services.state import StaleFlows
from limpet.linux.file_changes import FileChanges

_log = structlog.get_logger("services")
_LOOK_S = 0.5
"""Seconds between looks: the kernel tells nobody of a link detached or a map changed."""


class AtSocket:
    """The backend at the socket, on the event loop; also one that nobody asks for."""

    def __init__(
        self, settings: ServiceSettings, run_dir: Path, pods: Callable[[], Iterable[str]]
    ) -> None:
        """`pods`: paths of their network namespaces. Raises: KernelError."""
        self._pins = pins_of(run_dir)
        self.asked = settings.backend
        self.side: SocketSide | None = None
        """None: nftables is asked for."""
        if settings.backend != "nftables":
            place = AttachPoint(self._pins, settings.cgroup)
            self.side = SocketSide(SocketKernel(place, PodNamespaces(pods)))
        self._left = LeftSockets(self._pins, pods)
        self._changes: FileChanges | None = None
        self._watched: frozenset[tuple[int, int]] = frozenset()
        self._taken: Callable[[], None] = _nobody
        self._looks = Timer("services", self._look)

    @property
    def backend(self) -> str:
        """By what pods and processes of this node are served: ebpf or nftables."""
        return "nftables" if self.side is None or self.side.why_not else "ebpf"

    @property
    def why_not(self) -> str:
        """Why it is not ebpf although that is asked for; empty: it is, or nobody asks."""
        return "" if self.side is None else self.side.why_not

    def begin(self) -> None:
        """After nftables serves. Raises: KernelError."""
        if self.side is not None:
            return
        were_pinned = remove_pins(self._pins, keep=CONNECTED_MAPS)
        if detach_programs() or were_pinned:
            _log.info(
                "Services are left to nftables: an earlier agent's eBPF programs were removed"
            )
        if not self._are_left():
            remove_pins(self._pins)

    def _are_left(self) -> bool:
        try:
            return self._left.are_there()
        except LimpetError as error:
            words = "sockets that eBPF programs have connected cannot be found"
            _log.warning(words, error=str(error))
            return False

    def forgotten(self, flows: StaleFlows) -> None:
        """Flows that stick to who serves no more are gone, but for those of sockets that programs
        have connected, where there are none any more: not asked for, or not to be had."""
        if self.backend == "nftables":
            try:
                self._left.end(flows)
            except LimpetError as error:
                _log.warning("sockets stay connected to who serves no more", error=str(error))

    def start(self, taken: Callable[[], None]) -> None:
        """`taken`: told when somebody takes away what is there. Raises: KernelError."""
        self._taken = taken
        self.follow()
        if self.side is not None:
            self._looks.set_in(_LOOK_S)

    def follow(self) -> None:
        """Watches the folders of pins that there are now. Raises: KernelError."""
        paths = () if self.side is None else self.side.pin_paths
        folders = frozenset(_id(each) for each in {path.parent for path in paths})
        if folders != self._watched:
            self._unfollow()
            if paths:
                self._changes = FileChanges(paths)
                asyncio.get_running_loop().add_reader(self._changes.fileno(), self._heard)
                self._watched = folders

    def stop(self) -> None:
        self._looks.stop()
        self._unfollow()

    def _unfollow(self) -> None:
        if self._changes is not None:
            asyncio.get_running_loop().remove_reader(self._changes.fileno())
            self._changes.close()
            self._changes = None
        self._watched = frozenset()

    def _heard(self) -> None:
        with faults.noted("pins of eBPF programs"):
            if self._changes is not None and self.side is not None and self._changes.drain():
                self.side.suspect(maps=False)
                self._taken()
                self.follow()

    def _look(self) -> None:
        self._looks.set_in(_LOOK_S)
        if self.side is not None and self.side.is_damaged():
            self.side.suspect(maps=True)
            self._taken()
            self.follow()


def _nobody() -> None:
    """Nobody is told."""


def _id(folder: Path) -> tuple[int, int]:
    """A folder that is made anew is another one."""
    try:
        status = folder.stat()
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino
