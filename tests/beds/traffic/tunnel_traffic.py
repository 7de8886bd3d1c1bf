"""Traffic between the pods of sites that are joined by tunnels, and what becomes of it."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from limpet.datapath.tunnel.diff import DropTunnel, PutAddresses, PutTunnel, TunnelChange
from limpet.linux.netlink.socket import Notifications
from tests.beds.namespaces import Netns
from tests.beds.overlay_bed import ping
from tests.beds.tunnel_bed import Tunnel, TunnelBed
from tests.waiting import PATIENCE_S, wait_until

BULK_BYTES = 4 << 20


def counters(netns: Netns, name: str) -> dict[str, int]:
    """Of /proc/net/snmp: counters of one protocol."""
    lines = [line.split() for line in netns.run("cat", "/proc/net/snmp").splitlines()]
    names, values = [line[1:] for line in lines if line[0] == f"{name}:"]
    return dict(zip(names, map(int, values), strict=True))


def fragments(netns: Netns) -> int:
    """Packets that the node has cut, of both versions."""
    v6 = dict(line.split() for line in netns.run("cat", "/proc/net/snmp6").splitlines())
    return counters(netns, "Ip")["FragCreates"] + int(v6["Ip6FragCreates"])


def send_bulk(client: Netns, server: Netns, address: str) -> None:
    """All of it arrives. Raises: AssertionError, OSError."""
    with server.listening(address, 5001) as listening, client.connected(address, 5001) as here:
        there, _ = listening.accept()
        sender = threading.Thread(target=here.sendall, args=(bytes(BULK_BYTES),))
        sender.start()
        with there:
            there.settimeout(PATIENCE_S)
            left = BULK_BYTES
            while left and (part := len(there.recv(1 << 18))):
                left -= part
        sender.join()
    assert left == 0


def is_silent(source: Netns, address: str, *options: str) -> bool:
    """Nothing answers at once."""
    try:
        ping(source, address, *options, "-W", "0.3")
    except AssertionError:
        return True
    return False


class Flow:
    """Datagrams to and fro between two pods for as long as it is open, one at a time."""

    def __init__(self, client: Netns, server: Netns, address: str) -> None:
        self.sent = 0
        self._answered: set[int] = set()
        self._here = client.open_socket(4, socket.SOCK_DGRAM)
        self._there = server.open_socket(4, socket.SOCK_DGRAM)
        self._there.bind((address, 7000))
        self._address = (address, 7000)
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._ask, self._answer)]

    @property
    def answered(self) -> int:
        return len(self._answered)

    @property
    def lost(self) -> int:
        """A late answer, as on a loaded machine, is none that is lost."""
        return self.sent - self.answered

    def _ask(self) -> None:
        self._here.settimeout(1)
        while not self._ended.is_set():
            self._here.sendto(self.sent.to_bytes(8), self._address)
            self.sent += 1
            with suppress(TimeoutError):
                self._hear()
        with suppress(TimeoutError):
            while self.lost:
                self._hear()

    def _hear(self) -> None:
        self._answered.add(int.from_bytes(self._here.recv(8)))

    def _answer(self) -> None:
        self._there.settimeout(0.1)
        while not self._ended.is_set() or self._threads[0].is_alive():
            with suppress(TimeoutError):
                self._there.sendto(*self._there.recvfrom(8))

    def goes_on(self) -> None:
        """Something that is sent from now on is answered. Raises: AssertionError."""
        enough = self.answered + 2
        wait_until(lambda: self.answered >= enough)

    @contextmanager
    def running(self) -> Iterator[Flow]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()
            self._here.close()
            self._there.close()


def keys_of(changes: list[TunnelChange]) -> set[bytes]:
    """Of the peers that are changed; the device is not."""
    device = PutTunnel | DropTunnel | PutAddresses
    assert not any(isinstance(change, device) for change in changes)
    return {each.public_key for each in changes if not isinstance(each, device)}


@contextmanager
def link_notifications(tunnel: Tunnel) -> Iterator[Callable[[], bool]]:
    """Waits for the next notification of links in the node's namespace; False: none came."""
    with tunnel.node.netns.entered():
        notifications = Notifications(socket.NETLINK_ROUTE, (1,))

    def told() -> bool:
        ready = select.select([notifications], [], [], PATIENCE_S)[0]
        return bool(ready and list(notifications.drain()))

    yield told
    notifications.close()


def move(bed: TunnelBed, tunnel: Tunnel) -> str:
    """The node has another address on its link, and its router knows."""
    number = tunnel.node.number
    tunnel.node.netns.ip(
        "addr flush dev eth0 scope global",
        f"addr add 172.20.{number + 100}.7/24 dev eth0",
        f"route add default via 172.20.{number + 100}.254",
    )
    bed.middle.ip(f"addr add 172.20.{number + 100}.254/24 dev port{number}")
    return f"172.20.{number + 100}.7"
