"""The programs and maps of Services in the kernel."""

from __future__ import annotations

import contextlib
import os
import stat
import sysconfig
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import limpet
from limpet.base.errors import KernelError, LimpetError, StorageError
from limpet.datapath.services.sockets.attached_apply import detach_programs
from limpet.datapath.services.sockets.connected_apply import ConnectedSockets, end_connected_udp
from limpet.datapath.services.sockets.layout import (
    FRONTENDS,
    NAMESPACES,
    NODE,
    POD,
    SOCKET_MAPS,
    is_dead,
    namespace,
    read_peer,
)
from limpet.datapath.services.sockets.looks import MapLooks
from limpet.datapath.services.sockets.pins_apply import (
    LINKS,
    MAPS,
    NOTED,
    SENDING_PROGRAMS,
    AttachPoint,
    forget_other_layouts,
    forget_other_links,
    map_folder,
    remove_links,
)
from limpet.datapath.services.state import Elements, StaleFlows
from limpet.linux.bpf.library import Bpf, BpfMap, BpfObject, BpfProgram
from limpet.linux.bpf.place import cgroup_id, find_root_cgroup, is_bpffs, network_cookie
from limpet.linux.namespaces import Namespace, NamespaceId, namespace_id
from limpet.linux.socket_diag import SYN_SENT, TCP, UDP, can_end_sockets, end_sockets, sockets

_OBJECT = "bpf/services.bpf.o"
_HELD = (*SOCKET_MAPS, NAMESPACES)


def object_path() -> Path:
    """The built object: beside the package, or (editable install) where the build put it.

    Raises: StorageError.
    """
    beside = Path(limpet.__file__).parent / _OBJECT
    for path in (beside, Path(sysconfig.get_path("platlib")) / "limpet" / _OBJECT):
        if path.is_file():
            return path
    hint = "it is built where clang and libbpf-dev are installed: make setup"
    raise StorageError("find", str(beside), "this installation was built without", hint=hint)


class PodNamespaces:
    """Network namespaces as programs know them: this node's own, which is the calling thread's,
    and those of its pods."""

    def __init__(self, paths: Callable[[], Iterable[str]]) -> None:
        """`paths`: of the namespaces of pods. Raises: KernelError."""
        self._paths = paths
        self._own = namespace(network_cookie())
        self._cookies: dict[tuple[str, NamespaceId], bytes] = {}
        """By path, too: the number of one that is gone is soon another's."""

    def elements(self) -> dict[bytes, bytes]:
        """Elements of the map of namespaces."""
        found = {self._own: NODE}
        cookies: dict[tuple[str, NamespaceId], bytes] = {}
        for path in self._paths():
            number = namespace_id(path)
            if number is None:
                continue
            with contextlib.suppress(KernelError):  # it goes just now
                key = path, number
                cookies[key] = self._cookies.get(key) or self._ask(path)
                found.setdefault(cookies[key], POD)
        self._cookies = cookies
        return found

    @property
    def paths(self) -> list[str]:
        return list(self._paths())

    def visit(self, work: Callable[[], None]) -> None:
        """It is done in each of them. Raises: KernelError if it does on this node's own."""
        work()
        visit_namespaces(self.paths, work)

    @staticmethod
    def _ask(path: str) -> bytes:
        with Namespace(path) as pod, pod.entered():
            return namespace(network_cookie())


def visit_namespaces(paths: Iterable[str], work: Callable[[], None]) -> None:
    """What is done in one that goes meanwhile may fail."""
    for path in paths:
        with contextlib.suppress(KernelError), Namespace(path) as pod, pod.entered():
            work()


class SocketKernel:
    """Runs on the event loop's thread. What it has attached goes on when it is closed."""

    def __init__(self, place: AttachPoint, namespaces: PodNamespaces) -> None:
        """Changes nothing."""
        self.namespaces = namespaces
        self.ends_flows = can_end_sockets()
        """Sockets of UDP that are connected to who serves no more can be ended."""
        self._place = place
        self._bpf: Bpf | None = None
        self._object: BpfObject | None = None
        self._links: dict[str, int] = {}
        """Descriptors by name of the program: who takes only the pin away ends nothing."""
        self._cgroup: Path | None = None
        self.elements: dict[str, dict[bytes, bytes]] = {name: {} for name in _HELD}
        """As they were read or put last."""
        self._looks = MapLooks()
        self._closed = set[int]()
        """Cookies of noted sockets that were closed when that was looked at last."""
        self._pins: list[Path] = []
        self._are_any = True
        """Programs may be attached, by this one or before it."""

    @property
    def is_open(self) -> bool:
        return self._object is not None

    @property
    def pin_paths(self) -> list[Path]:
        """What is pinned as long as nobody else takes it away."""
        if not self._pins:
            found = self._opened()
            maps = [self._map_pin(name) for name in found.maps]
            self._pins = [*map(self._pin, found.programs), *maps]
        return self._pins

    def open(self) -> None:
        """Loads the programs, with the maps that an earlier agent has filled, and those that its
        programs write. Raises: LimpetError with what the machine does not have."""
        pins = self._place.pins
        if not is_bpffs(pins.parent) and not is_bpffs(pins):
            raise LimpetError(
                f"pin eBPF programs in {pins}: no bpffs there (mount -t bpf -o mode=700 bpf "
                f"{pins.parent}; in a pod, mount the node's at /run/limpet/bpf)"
            )
        self._cgroup = self._place.cgroup or find_root_cgroup()
        if self._cgroup is None:
            raise LimpetError(
                "attach eBPF programs: the root of cgroups v2 is mounted nowhere here (boot with "
                "systemd.unified_cgroup_hierarchy=1; mount the node's /sys/fs/cgroup in a pod)"
            )
        path = object_path()
        self._make_folders()
        self._bpf = self._bpf or Bpf()
        self._object = self._bpf.load(path, self._map_pin)

    def close(self) -> None:
        """What is pinned stays."""
        for fd in self._links.values():
            os.close(fd)
        self._links.clear()
        if self._object is not None:
            self._object.close()
            self._object = None
            self._looks.restart()

    def read(self, want: Elements) -> None:
        """Looks at the maps; what is in them as wanted is in memory once. Raises: KernelError."""
        for name in _HELD:
            self.elements[name] = self._opened().maps[name].read(want[name])
        self._looks.restart()

    def change(
        self,
        delete: Mapping[str, Sequence[bytes]],
        add: Mapping[str, Sequence[tuple[bytes, bytes]]],
    ) -> None:
        """So that no program finds a frontend without its slots, however it is interrupted.

        Raises: KernelError.
        """
        names = [name for name in _HELD if name != FRONTENDS]
        for name in (*names, FRONTENDS):
            if items := add.get(name):
                self._looks.changed(name)
                self._opened().maps[name].put(items)
                self.elements[name].update(items)
        for name in (FRONTENDS, *names):
            coming = {key for key, _ in add.get(name, ())}
            keys = [key for key in delete.get(name, ()) if key not in coming]
            if keys:
                self._looks.changed(name)
            self._opened().maps[name].delete(keys)
            for key in keys:
                self.elements[name].pop(key, None)

    def end_sockets(self, flows: StaleFlows) -> None:
        """Those of UDP that are connected to who serves no more, and those of TCP that would try
        for minutes to reach who is dead. Raises: KernelError."""
        if not self.ends_flows:
            return
        connected = ConnectedSockets(self._opened().maps)
        if flows.udp and (stale := connected.stale(flows.udp)):
            self.namespaces.visit(lambda: end_connected_udp(stale))
        if flows.dead:
            self.namespaces.visit(lambda: _end_unanswered_tcp(connected, flows))

    def sweep(self) -> None:
        """Gives back places of sockets of whose end no program has heard: of the kernel's own, as
        of an NFS mount, none ever does. One has to be found closed twice, since a socket that is
        just being made is listed nowhere. Source: inet_release() asks for sk_kern_sock.

        Raises: KernelError.
        """
        connected = ConnectedSockets(self._opened().maps)
        closed = self._closed_of(connected.read())
        connected.forget(closed & self._closed)
        self._closed = closed

    def maps(self, names: Iterable[str]) -> dict[str, BpfMap]:
        """By descriptors of their own, which the caller closes."""
        return {name: self._opened().maps[name].again() for name in names}

    # Attaching

    def damage(self) -> str:
        """What is not attached or pinned as it should be, in words; empty: all is."""
        assert self._cgroup is not None
        own = cgroup_id(self._cgroup)
        for name, program in self._opened().programs.items():
            fd = self._links.get(name)
            if fd is None or not self._is_right(fd, program, own):
                return f"{name} is not attached"
        missing = [path for path in self.pin_paths if not path.exists()]
        return f"{missing[0].name} is not pinned" if missing else ""

    def is_changed(self) -> bool:
        """An element is not as it was put: the first of a map, which an emptied one has not, or one
        of those whose turn it is. Raises: KernelError."""
        maps = self._opened().maps
        for name, held in self.elements.items():
            key = next(iter(held), None)
            if key is not None and maps[name].get(key) != held[key]:
                return True
        return self._looks.is_other(maps, self.elements)

    def attach(self) -> None:
        """Every program is in force, in place of an earlier agent's, and everything is pinned.

        Raises: LimpetError.
        """
        assert self._bpf is not None
        assert self._cgroup is not None
        self._make_folders()
        self._are_any = True
        connected = ConnectedSockets(self._opened().maps)
        noted = connected.read()  # before others are: one that is just being made is listed nowhere
        try:
            cgroup_fd = os.open(self._cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise KernelError("open", f"cgroup {self._cgroup}", error.errno or 0) from error
        try:
            programs = sorted(
                self._opened().programs.items(), key=lambda named: named[0] in SENDING_PROGRAMS
            )
            new = [self._attach(self._bpf, name, each, cgroup_fd) for name, each in programs]
        finally:
            os.close(cgroup_fd)
        if any(new):
            connected.forget(self._closed_of(noted))
        # What is called otherwise, or pinned elsewhere, has been replaced by none of these.
        detach_programs(unless={self._bpf.link(fd).id for fd in self._links.values()})
        forget_other_links(self._place.pins, self._opened().programs)
        for name, each in self._opened().maps.items():
            path = self._map_pin(name)
            if not path.exists():
                self._bpf.pin(each.fd, path)
        forget_other_layouts(self._place.pins)

    def detach(self) -> None:
        """Nothing is translated any more; the maps stay. It takes 0.2 s if anything was, so that
        answers under way are. Raises nothing."""
        for fd in self._links.values():
            os.close(fd)
        self._links.clear()
        with contextlib.suppress(OSError):
            remove_links(self._place.pins)
        if self._are_any:
            with contextlib.suppress(KernelError):
                detach_programs()
                self._are_any = False

    def _attach(self, bpf: Bpf, name: str, program: BpfProgram, cgroup_fd: int) -> bool:
        """Whether none was."""
        path = self._pin(name)
        fd = self._links.pop(name, None)
        if fd is None:
            fd = bpf.pinned(path)
        if fd is not None:
            info = bpf.link(fd)
            if (
                info.cgroup_id != os.fstat(cgroup_fd).st_ino
                or info.attach_type != program.attach_type
            ):
                os.close(fd)
                path.unlink(missing_ok=True)
                fd = None
            elif info.program_id != program.id:
                bpf.update(fd, program)
        is_new = fd is None
        if fd is None:
            fd = bpf.attach(program, cgroup_fd)
        self._links[name] = fd
        if not path.exists():
            bpf.pin(fd, path)
        return is_new

    def _closed_of(self, noted: Collection[int]) -> set[int]:
        """Cookies of sockets that are closed; none where the kernel lists no sockets
        (CONFIG_INET_DIAG, INET_UDP_DIAG)."""
        alive = set[int]()
        if not noted:
            return alive
        try:
            self.namespaces.visit(
                lambda: alive.update(
                    each.cookie
                    for protocol in (TCP, UDP)
                    for each in sockets(protocol)
                    if each.is_open
                )
            )
        except KernelError:
            return set()
        return set(noted) - alive

    def _is_right(self, fd: int, program: BpfProgram, own: int) -> bool:
        """`own`: number of the cgroup that they are for."""
        assert self._bpf is not None
        info = self._bpf.link(fd)
        if not info.cgroup_id:
            return False  # of a cgroup that is gone, which has no number either
        return info.program_id == program.id and info.cgroup_id == own

    def _make_folders(self) -> None:
        """Each is root's alone, also one that was there; a bpffs may let everybody in.

        Raises: LimpetError.
        """
        pins = self._place.pins
        for folder in (pins, pins / LINKS, pins / MAPS, pins / NOTED):
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                found = folder.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                    raise LimpetError(
                        f"pin eBPF programs in {folder}: user {found.st_uid} made it, and could "
                        "take them away (remove it: rm -r)"
                    )
                if stat.S_IMODE(found.st_mode) != 0o700:
                    folder.chmod(0o700)
            except OSError as error:
                raise KernelError("make", str(folder), error.errno or 0) from error

    def _pin(self, name: str) -> Path:
        return self._place.pins / LINKS / name

    def _map_pin(self, name: str) -> Path:
        return self._place.pins / map_folder(name) / name

    def _opened(self) -> BpfObject:
        assert self._object is not None
        return self._object


def _end_unanswered_tcp(connected: ConnectedSockets, flows: StaleFlows) -> None:
    """In the calling thread's namespace."""
    ended = []
    for each in sockets(TCP, SYN_SENT):
        peer = connected.get(each.cookie)
        # Who was connected to a Service before may try somebody else now.
        if peer is not None and read_peer(peer)[1] == each.peer and is_dead(peer, flows.dead):
            ended.append(each)
    end_sockets(TCP, ended)
