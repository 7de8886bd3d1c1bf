"""A node whose Services are served at the socket: in a cgroup and a bpffs of the test's own.

The test itself is every host's program, so it is in that cgroup as long as the bed stands; which
of its sockets are served is told by the network namespace in which they were made.
"""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from limpet.datapath.services.part import ServicesContext, ServicesPart
from limpet.datapath.services.sockets.apply import PodNamespaces, SocketKernel
from limpet.datapath.services.sockets.connected_apply import ConnectedSockets
from limpet.datapath.services.sockets.layout import CONNECTED, PEERS
from limpet.datapath.services.sockets.pins_apply import AttachPoint
from limpet.datapath.services.sockets.side import SocketSide
from tests.beds.namespaces import NetnsFactory
from tests.beds.services.service_bed import ServiceBed
from tests.waiting import wait_until

_numbers = itertools.count()


class Cgroup:
    """Below the root of the machine's unified hierarchy, which is mounted for this alone."""

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._root = self._undo.enter_context(mounted("cgroup2"))
        self.path = self._root / f"ltk-{os.getpid()}-{next(_numbers)}"
        self.path.mkdir()
        self._undo.callback(wait_until, self._remove)

    def close(self) -> None:
        self._undo.close()

    def _remove(self) -> bool:
        """False: a process that was ended is in it for a moment more."""
        try:
            self.path.rmdir()
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            raise
        return True

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This process is in it within the block: so are the sockets that it makes.

        Those that it has begun meanwhile and that go on, as warm interpreters do, leave with it.
        """
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        before = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        try:
            self._move(self.path)
            yield
        finally:
            for pid in (self.path / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):  # it has ended
                    self._move(self._root / before, pid)

    @contextmanager
    def left(self) -> Iterator[None]:
        """This process, which has entered it, is not in it within the block."""
        try:
            self._move(self._root)
            yield
        finally:
            self._move(self.path)

    @staticmethod
    def _move(folder: Path, pid: str = "0") -> None:
        """`pid` "0": the process that calls."""
        (folder / "cgroup.procs").write_text(pid)


@contextmanager
def mounted(kind: str, at: Path | None = None) -> Iterator[Path]:
    """A filesystem of that kind, in a folder of its own within the block; `at`: in that one.

    Nothing is ever removed below the folder: of a hierarchy of cgroups that would be the machine's.
    """
    folder = at or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    try:
        subprocess.run(["mount", "-t", kind, "none", folder], check=True, timeout=30)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True, timeout=30)
    finally:
        folder.rmdir()


class SocketBed(ServiceBed):
    """`ServiceBed` with programs beside its table."""

    def __init__(self, make: NetnsFactory, *, bridge_filtered: bool = False) -> None:
        self._undo = ExitStack()
        try:
            pins = self._undo.enter_context(mounted("bpf")) / "limpet"
            self.cgroup = Cgroup()
            self._undo.callback(self.cgroup.close)
            self.place = AttachPoint(pins, self.cgroup.path)
            super().__init__(make, bridge_filtered=bridge_filtered)
            self._undo.enter_context(self.cgroup.entered())
        except BaseException:
            self._undo.close()
            raise

    def new_part(self) -> ServicesPart:
        with self.node.entered():
            pods = PodNamespaces(lambda: [each.netns.path for each in self.pods])
            sockets = SocketSide(SocketKernel(self.place, pods))
            asked = ServicesContext(lambda: self.surroundings, lambda: self.here)
            part = ServicesPart(self.loop, self.catalog, asked, sockets)
            self.loop.add(part)
        return part

    def end_agent(self, place: AttachPoint | None = None) -> None:
        """What an agent leaves in the kernel is as it was; the next round is a new one's.

        `place`: where that one pins and attaches.
        """
        self.part.close()
        self.place = place or self.place
        self.part = self.new_part()

    @contextmanager
    def noted(self) -> Iterator[ConnectedSockets]:
        """What programs have noted of connected sockets."""
        assert self.part.sockets is not None
        maps = self.part.sockets.kernel.maps([CONNECTED, PEERS])
        with ExitStack() as stack:
            for each in maps.values():
                stack.callback(each.close)
            yield ConnectedSockets(maps)

    def count_noted(self) -> int:
        with self.noted() as connected:
            return len(connected.read())

    @property
    def why_not(self) -> str:
        assert self.part.sockets is not None
        return self.part.sockets.why_not

    def close(self) -> None:
        super().close()
        self._undo.close()
