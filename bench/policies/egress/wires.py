"""pod ── node ── target, with something in force on the node, and what that costs.

What is processor time is the sender's, which carries a packet all the way to its end. What TCP
does is asked by `way`, with both ends in one thread (`bench.traffic.flows`).
"""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from bench.nodes.netns import Netns
from bench.traffic.flows import Way

POD, TARGET, _FORBIDDEN = "10.1.0.2", "10.2.0.2", "10.2.0.3"
_LISTENING, _FLOWS, _ESTABLISHED = 65001, 65002, 65003
_FIRST_NS, _ESTABLISHED_NS = 10_000_000, 5_000_000
"""Processor time that a look may take."""
_AT_ONCE = 50
_MOST_PORT = 60_000
_RESET = struct.pack("=ii", 1, 0)
_WARM_UP = 20
_REFUSED_S, _ANSWERED_S = 0.3, 10.0

_TRACKING = """table inet tracking { chain c {
type filter hook forward priority -10; ct state established accept; }; }"""
_DROPPING = """table ip t { chain c {
type filter hook prerouting priority raw; udp dport != 65003 drop; }; }"""

Within = Callable[[], AbstractContextManager[None]]


class Wires:
    """The interfaces of the node are `pod0` and `out0`. Connections are tracked, as Services and
    masquerade need it, if `tracked`."""

    def __init__(
        self,
        name: str,
        undo: ExitStack,
        *,
        tracked: bool = True,
        limited: bool = True,
        within: Within = nullcontext,
    ) -> None:
        """`limited`: something will be in force. `within`: where the pod's sockets are made."""
        self._is_limited = limited
        self._pod, self.node, self._target = (_netns(f"{name}-{end}", undo) for end in "pnt")
        self._within = within
        for end, other, network in ((self._pod, "pod0", 1), (self._target, "out0", 2)):
            ip(self.node, f"link add {other} type veth peer name eth0 netns {end.name}")
            ip(self.node, f"address add 10.{network}.0.1/24 dev {other}", f"link set {other} up")
            ip(end, f"address add 10.{network}.0.2/24 dev eth0", "link set eth0 up")
            ip(end, f"route add default via 10.{network}.0.1")
        ip(self._target, f"address add {_FORBIDDEN}/24 dev eth0")
        put_sysctl(self.node, "net/ipv4/ip_forward", "1")
        # What is no connection is dropped at its end, at once.
        nft(self._target, _DROPPING)
        if tracked:
            nft(self.node, _TRACKING)
            put_sysctl(self.node, "net/netfilter/nf_conntrack_udp_timeout", "1")
            put_sysctl(self.node, "net/netfilter/nf_conntrack_tcp_timeout_close", "1")
        self._next_port = 1
        with self._target.inside():
            undo.enter_context(socket.create_server(("0.0.0.0", _LISTENING)))
            self._peer = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._peer.bind((TARGET, _ESTABLISHED))
        with self.inside():
            self._socket = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What is below is called within the block: sockets are the pod's then."""
        with self._pod.inside(), self._within():
            yield

    def check(self) -> None:
        """Neighbours are found; the target is reached, and an address that nobody allowed is not.

        Raises: OSError, RuntimeError.
        """
        with self.inside():
            self.first_packet_us(_WARM_UP)
            self._connect().close()
            if self._is_limited:
                try:
                    self._connect(_FORBIDDEN, _REFUSED_S).close()
                except OSError:
                    return
                raise RuntimeError("what nobody allowed was let through")

    def first_packet_us(self, most: int = 1_000) -> float:
        """CPU time of a packet of a new connection."""
        ports = self._new_ports(most)

        def send() -> None:
            for _ in range(min(_AT_ONCE, most)):
                self._socket.sendto(b"", (TARGET, next(ports)))

        return _cpu_us(send, most // _AT_ONCE or 1, _FIRST_NS) / min(_AT_ONCE, most)

    def _new_ports(self, most: int) -> Iterator[int]:
        """None of which was used in the last second or two: the node has forgotten them."""
        if self._next_port + most > _MOST_PORT:
            self._next_port = 1
        first, self._next_port = self._next_port, self._next_port + most
        return iter(range(first, first + most))

    def established_packet_us(self) -> float:
        """CPU time of a packet of a connection that stands: the other end has answered."""

        def send() -> None:
            for _ in range(_AT_ONCE):
                self._socket.sendto(b"", (TARGET, _ESTABLISHED))

        self._answer()
        return _cpu_us(send, 1 << 20, _ESTABLISHED_NS) / _AT_ONCE

    def _answer(self) -> None:
        """Raises: TimeoutError."""
        self._peer.settimeout(_ANSWERED_S)
        self._socket.settimeout(_ANSWERED_S)
        self._socket.sendto(b"", (TARGET, _ESTABLISHED))
        _, source = self._peer.recvfrom(1)  # an older one does as well
        self._peer.sendto(b"", source)
        self._socket.recv(1)
        self._socket.settimeout(None)

    @property
    def way(self) -> Way:
        """From the pod to the target, for who asks it over and over."""
        return Way(self.inside, self._target.inside, TARGET, _FLOWS, _FLOWS)

    @staticmethod
    def _connect(address: str = TARGET, within_s: float = _ANSWERED_S) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            made.settimeout(within_s)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # and it is forgotten
            made.connect((address, _LISTENING))
        except OSError:
            made.close()
            raise
        return made


def _cpu_us(work: Callable[[], None], most: int, for_ns: int) -> float:
    """Of one time; it is done until that much processor time was spent, or so often at most."""
    count = 0
    began_ns = time.process_time_ns()
    for _ in range(most):
        work()
        count += 1
        spent_ns = time.process_time_ns() - began_ns
        if spent_ns > for_ns:
            break
    return spent_ns / count / 1e3


def _netns(name: str, undo: ExitStack) -> Netns:
    made = Netns(name)
    undo.callback(made.close)
    return made


def ip(netns: Netns, *commands: str) -> None:
    run(netns, ["ip", "-b", "-"], "\n".join(commands))


def nft(netns: Netns, text: str) -> None:
    run(netns, ["nft", "-f", "-"], text)


def run(
    netns: Netns, command: list[str], text: str = "", environment: dict[str, str] | None = None
) -> None:
    """Raises: RuntimeError with its words."""
    with netns.inside():
        done = subprocess.run(
            command, input=text, text=True, capture_output=True, env=environment, check=False
        )
    if done.returncode:
        words = " ".join(done.stderr.split())
        raise RuntimeError(f"{command[0]}: {words or done.returncode}")


def put_sysctl(netns: Netns, path: str, value: str) -> None:
    with netns.inside(), open(f"/proc/sys/{path}", "w", encoding="ascii") as file:
        file.write(value)
