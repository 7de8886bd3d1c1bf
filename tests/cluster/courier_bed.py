"""Nodes in namespaces on one switch, each with the real sockets of a courier."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_interface
from pathlib import Path
from typing import TypeVar

from limpet.base.addresses import UnderlayLink
from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.cluster.datagrams.peer_socket import PeerSocket, Received
from limpet.cluster.documents import Sealed
from limpet.cluster.identity import Identity
from tests.beds.namespaces import Bed, connect_namespaces
from tests.unit.cluster_values import PINNED, node_key
from tests.waiting import PATIENCE_S

PORT = 7471
_numbers = itertools.count()

T = TypeVar("T")


class CourierBed(Bed):
    """A switch; `host` puts a node on it. `versions`: IP versions that the nodes have."""

    def __init__(self, versions: tuple[int, ...] = (4, 6)) -> None:
        super().__init__()
        self.versions = versions
        try:
            self.middle = self.switch()
        except BaseException:
            self.close()
            raise

    def host(self, number: int) -> Host:
        return Host(self, number)


class Host:
    """A namespace with one link; `number` is in its addresses, its key and its name."""

    def __init__(self, bed: CourierBed, number: int) -> None:
        self.bed = bed
        self.number = number
        self.netns = bed.namespace(f"h{number}")
        self.plug()

    def plug(self) -> None:
        port = f"port{self.number}"
        connect_namespaces(self.netns, "eth0", self.bed.middle, port)
        self.netns.ip(
            *(
                f"addr add {self.address(v)} dev eth0{' nodad' * (v == 6)}"
                for v in self.bed.versions
            )
        )
        self.bed.middle.ip(f"link set {port} master br0")

    def address(self, version: int) -> str:
        return f"192.0.2.{self.number}/24" if version == 4 else f"2001:db8::{self.number}/64"

    @property
    def link(self) -> UnderlayLink:
        with self.netns.entered():
            ifindex = socket.if_nametoindex("eth0")
        addresses = tuple(ip_interface(self.address(v)) for v in self.bed.versions)
        return UnderlayLink("eth0", ifindex, "", 1500, addresses)

    def identity(self, folder: Path = Path("/nowhere"), *, pinned: bytes = PINNED) -> Identity:
        return Identity(folder, node_key(self.number), f"node-{self.number}", pinned, ())


class Post:
    """A host's courier, and all that it has got."""

    def __init__(
        self,
        host: Host,
        *,
        pinned: bytes = PINNED,
        is_member: Callable[[str], bool] = lambda _uid: True,
        is_removed: Callable[[str], tuple[Sealed, ...]] = lambda _uid: (),
    ) -> None:
        """Within a running loop."""
        self.host = host
        self.identity = host.identity(pinned=pinned)
        self.uid = self.identity.uid
        self.courier = PeerSocket(
            self.identity, port=PORT, is_member=is_member, is_removed=is_removed
        )
        self.got: list[Received] = []
        self._changed = asyncio.Event()
        for kind in BodyKind:
            self.courier.on(kind, self._take)
        with host.netns.entered():
            self.courier.start()
        self.courier.set_links((host.link,))

    def _take(self, received: Received) -> None:
        self.got.append(received)
        self._changed.set()

    async def receive(self, count: int = 1) -> list[Received]:
        """The first `count` that have come. Raises: TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.got) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.got[:count]


def run(scenario: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await scenario()

    return asyncio.run(main())
