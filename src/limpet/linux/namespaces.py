"""Network namespaces: opening, entering, finding every one of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from limpet.base.addresses import Address
from limpet.base.errors import KernelError
from limpet.linux.netlink.socket import RouteSocket

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_NSFS_MAGIC = 0x6E736673
_OWN = "/proc/thread-self/ns/net"
"""The thread's namespace, not the process's: its first thread may be inside a pod's just now."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""What nobody inside a namespace can bring about."""
Result = TypeVar("Result")


NamespaceId = tuple[int, int]
"""Device and inode tell one namespace from another as long as it lives. Source: namespaces(7)."""

_OF_A_PROCESS = (
    "the process has ended, or is not seen from here: an agent in a pod sees none of "
    "the machine's, by which nerdctl, ctr and cri-dockerd name namespaces; use the systemd unit "
    "on such a node"
)


class Namespace:
    """An open network namespace; keeps it alive until closed."""

    def __init__(self, path: str) -> None:
        """Raises: KernelError (ENOENT: gone; EINVAL: not a network namespace)."""
        try:
            # Non-blocking: a FIFO must not hold us up.
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            is_unseen = error.errno == errno.ENOENT and path.startswith("/proc/")
            hint = _OF_A_PROCESS if is_unseen else ""
            what = f"network namespace {path}"
            raise KernelError("open", what, error.errno or 0, hint) from error
        self.path = path
        if not _is_nsfs(self.fd):
            os.close(self.fd)
            hint = "not a namespace: it is gone, or the agent does not see the runtime's mounts"
            raise KernelError("open", f"network namespace {path}", errno.EINVAL, hint)

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    @property
    def id(self) -> NamespaceId:
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in the namespace within the block, then back where it was.

        Nothing may be awaited there. Raises: KernelError.
        """
        try:
            before = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise KernelError("open", f"network namespace {_OWN}", error.errno or 0) from error
        try:
            self._set(self.fd)
            try:
                yield
            finally:
                try:
                    self._set(before)
                except KernelError:
                    # A thread in the wrong namespace would set up the node inside a pod.
                    os.abort()
        finally:
            os.close(before)

    def _set(self, fd: int) -> None:
        if _libc.setns(fd, _CLONE_NEWNET) != 0:
            raise KernelError("enter", f"network namespace {self.path}", ctypes.get_errno())


def in_new_namespace(work: Callable[[], Result]) -> Result:
    """What `work` returns, done in a network namespace that is thrown away with all that is in it.

    Raises: KernelError when none can be made, and what `work` raises.
    """

    def run() -> Result:
        if _libc.unshare(_CLONE_NEWNET) != 0:
            raise KernelError("make", "a network namespace to try things in", ctypes.get_errno())
        return work()

    # unshare moves only the calling thread, and the namespace goes with it.
    with ThreadPoolExecutor(1, thread_name_prefix="trial") as thread:
        return thread.submit(run).result()


def namespace_id(path: str) -> NamespaceId | None:
    """None when nothing is there, or something else than a namespace (an unmounted bind target)."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if _is_nsfs(path) else None


def own_namespace_id() -> NamespaceId:
    """Id of the network namespace that the calling thread is in."""
    status = os.stat(_OWN)
    return status.st_dev, status.st_ino


def processes_here(name: str) -> Iterator[int]:
    """Pids of the programs of that name (15 characters at most) in the calling thread's namespace.

    A machine may have more of them, in containers. One whose namespace may not be looked at (who
    asks is not root) counts. Source: proc(5), /proc/PID/comm.
    """
    here = own_namespace_id()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
                named = comm.read().strip()
            if named == name and _may_be_in(here, f"/proc/{pid}/ns/net"):
                yield int(pid)


def _may_be_in(here: NamespaceId, path: str) -> bool:
    """Raises: OSError: there is none, as of a process that has ended and was not waited for yet."""
    try:
        status = os.stat(path)
    except PermissionError:
        return True
    return (status.st_dev, status.st_ino) == here


def _is_nsfs(file: str | int) -> bool:
    """`file`: a path or a descriptor."""
    buffer = ctypes.create_string_buffer(256)
    if isinstance(file, int):
        failed = _libc.fstatfs(file, buffer)
    else:
        failed = _libc.statfs(os.fsencode(file), buffer)
    return not failed and ctypes.c_long.from_buffer(buffer).value == _NSFS_MAGIC


def every_namespace() -> Iterator[str]:
    """A path for each network namespace that a process is in or that is mounted somewhere visible.

    Our own is the first. Each namespace comes once. Raises: KernelError: they cannot be listed.
    """
    seen: set[NamespaceId] = set()
    for path in _candidate_paths():
        found = namespace_id(path)
        if found is not None and found not in seen:
            seen.add(found)
            yield path


def _candidate_paths() -> Iterator[str]:
    yield _OWN
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            mounts = file.readlines()
        processes = os.listdir("/proc")
    except OSError as error:
        raise KernelError("list", "network namespaces", error.errno or 0) from error
    for line in mounts:
        # Source: man 5 proc_pid_mountinfo.
        before, _, after = line.partition(b" - ")
        fields = before.split(b" ")
        if after.startswith(b"nsfs ") and len(fields) > 4 and fields[3].startswith(b"net:"):
            yield os.fsdecode(re.sub(rb"\\([0-7]{3})", _unescaped, fields[4]))
    for entry in processes:
        # What our own threads are in is a pod's namespace now and then, and not a moment later.
        if entry.isdigit() and int(entry) != os.getpid():
            yield f"/proc/{entry}/ns/net"


def _unescaped(octal: re.Match[bytes]) -> bytes:
    return bytes([int(octal[1], 8)])


@dataclass(frozen=True, slots=True)
class NamespaceScan:
    """What of the addresses that were looked for is alive on this machine."""

    addresses: frozenset[bytes] = frozenset()
    """Packed addresses of all interfaces of all namespaces but our own."""
    namespaces: Mapping[NamespaceId, frozenset[bytes]] = field(default_factory=dict)
    """Packed addresses of each namespace: the number of one that is gone is soon another's."""


def scan_namespaces(wanted: Collection[Address]) -> NamespaceScan:
    """Slow (a visit to each namespace); safe on any thread.

    `wanted`: addresses that are looked for. No others are kept: a pod with rights in its own
    namespace may have any number.

    Raises: KernelError: the machine has no room to look, so what is not found may be there.
    """
    packed = frozenset(each.packed for each in wanted)
    addresses: set[bytes] = set()
    namespaces: dict[NamespaceId, frozenset[bytes]] = {}
    ours = own_namespace_id()
    for path in every_namespace():
        try:
            with Namespace(path) as netns:
                with netns.entered(), RouteSocket() as route:
                    inside = route.find_addresses(packed)
                namespaces[netns.id] = inside
                if netns.id != ours:
                    addresses |= inside
        except KernelError as error:
            if error.errno in _NO_ROOM:
                raise
            # It went while we looked, or is of one whose doing is its own harm alone.
    return NamespaceScan(frozenset(addresses), namespaces)
