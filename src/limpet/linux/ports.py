"""Ports of this network namespace, and the programs that have them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

_LISTENS = "0A"
"""Source: TCP_LISTEN, include/net/tcp_states.h."""


@dataclass(frozen=True, slots=True)
class PortHolder:
    """A socket at a port, and who has it, as far as /proc tells."""

    port: int
    pid: int | None
    name: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})" if self.pid is not None else "an unknown program"


def port_holders(protocol: str, first: int, last: int) -> list[PortHolder]:
    """Sockets bound in the range, those of TCP that listen; by port, each process once.

    Of the calling thread's network namespace. Empty where /proc does not tell. Source: proc(5).
    """
    found = {
        inode: port
        for file in (protocol, f"{protocol}6")
        for port, inode in _sockets(file, listening=protocol == "tcp")
        if first <= port <= last
    }
    owners = _owners(set(found)) if found else {}
    holders = {PortHolder(port, *owners.get(inode, (None, ""))) for inode, port in found.items()}
    return sorted(holders, key=lambda holder: (holder.port, holder.pid or 0))


def _sockets(file: str, *, listening: bool) -> Iterator[tuple[int, str]]:
    """Port and inode of each."""
    try:
        with open(f"/proc/thread-self/net/{file}", encoding="ascii") as table:
            lines = table.readlines()[1:]
    except OSError:
        return  # no IPv6, or no such protocol
    for line in lines:
        words = line.split()
        if not listening or words[3] == _LISTENS:
            yield int(words[1].rpartition(":")[2], 16), words[9]


def _owners(inodes: set[str]) -> dict[str, tuple[int, str]]:
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, tuple[int, str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended meanwhile, or is not ours to look at
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    inode = wanted.get(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
                    if inode is not None:
                        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
                            found[inode] = int(pid), comm.read().strip()
    return found
