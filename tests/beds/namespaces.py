"""Network namespaces of one test, with sockets inside them and without processes.

A socket belongs to the namespace in which it was made, so the test itself is every host's program.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from limpet.lab.netns import delete_namespace, make_namespace
from limpet.linux.namespaces import Namespace
from tests.waiting import PATIENCE_S

PREFIX = "ltk"
_numbers = itertools.count()


class Netns:
    """A network namespace with its loopback up, under /run/netns."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"/run/netns/{name}"

    def run(self, *argv: str) -> str:
        """What a command says in the namespace. Raises: AssertionError unless it succeeds."""
        done = subprocess.run(
            ["nsenter", f"--net={self.path}", *argv],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def ip(self, *commands: str) -> None:
        """Runs `ip` commands, one process for all that begin with the same option, or none."""
        for option, lines in itertools.groupby(commands, lambda line: line.startswith("-6 ")):
            done = subprocess.run(
                ["nsenter", f"--net={self.path}", "ip", *(["-6"] if option else []), "-b", "-"],
                input="\n".join(line.removeprefix("-6 ") for line in lines),
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
            assert done.returncode == 0, f"{commands}: {done.stderr}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in the namespace."""
        with Namespace(self.path) as namespace, namespace.entered():
            yield

    def sysctl(self, path: str, value: str | None = None) -> str:
        """The value of a setting below /proc/sys, after it was set to `value` if one is given."""
        with self.entered():
            if value is not None:
                with open(f"/proc/sys/{path}", "w", encoding="ascii") as file:
                    file.write(value)
            with open(f"/proc/sys/{path}", encoding="ascii") as file:
                return file.read().strip()

    def open_socket(self, version: int, kind: socket.SocketKind) -> socket.socket:
        """Of one family: one of IPv6 leaves IPv4 alone."""
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        with self.entered():
            made = socket.socket(family, kind)
        if version == 6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        return made

    @contextmanager
    def listening(self, address: str, port: int) -> Iterator[socket.socket]:
        """A TCP socket that accepts on `address`."""
        with self.open_socket(_version(address), socket.SOCK_STREAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, port))
            server.listen(64)
            server.settimeout(PATIENCE_S)
            yield server

    @contextmanager
    def connected(
        self, address: str, port: int, *, source: str | None = None, patience_s: float = PATIENCE_S
    ) -> Iterator[socket.socket]:
        """A TCP connection out of the namespace. Raises: OSError (TimeoutError: no answer)."""
        with self.open_socket(_version(address), socket.SOCK_STREAM) as client:
            client.settimeout(patience_s)
            if source is not None:
                client.bind((source, 0))
            client.connect((address, port))
            yield client


def _version(address: str) -> int:
    return 6 if ":" in address else 4


def received(server: socket.socket, words: bytes, ask: Callable[[], object]) -> tuple[bytes, Any]:
    """The datagram with these words, and whom it is from.

    `ask` sends it, again as long as none comes: one may be lost while a neighbour is looked for.
    """
    server.settimeout(1)
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        ask()
        with suppress(TimeoutError):
            while True:
                found, peer = server.recvfrom(64)
                if found == words:
                    return found, peer
    raise AssertionError(f"nothing came of {words!r}")


def talk(client: Netns, address: str, port: int, server: socket.socket) -> str:
    """Connects, sends words both ways; returns the client's address as the server sees it.

    Raises: OSError.
    """
    with client.connected(address, port) as here:
        there, peer = server.accept()
        with there:
            there.settimeout(PATIENCE_S)
            here.sendall(b"from the client")
            assert there.recv(64) == b"from the client"
            there.sendall(b"from the server")
            assert here.recv(64) == b"from the server"
        return str(peer[0])


def is_silent(client: Netns, address: str, port: int, *, patience_s: float = 0.3) -> bool:
    """Nothing answers, not even with an error."""
    try:
        with client.connected(address, port, patience_s=patience_s):
            return False
    except TimeoutError:
        return True
    except OSError:
        return False


class NetnsFactory:
    """Makes namespaces; `close` removes them all, whatever happened to them."""

    def __init__(self) -> None:
        self._made = ExitStack()

    def __call__(self, name: str = "") -> Netns:
        netns = Netns(f"{PREFIX}-{os.getpid()}-{next(_numbers)}{'-' if name else ''}{name}")
        self._made.callback(self.remove, netns)
        make_namespace(netns.name)
        return netns

    @staticmethod
    def remove(netns: Netns) -> None:
        """What lives in it goes with it; removed already is removed."""
        delete_namespace(netns.name)

    def close(self) -> None:
        self._made.close()


class Bed:
    """A world of namespaces; `close` takes all of it away, whatever became of it.

    Those who make one in parts close it when a part fails.
    """

    versions: tuple[int, ...] = (4, 6)
    """IP versions that its hosts have."""

    def __init__(self) -> None:
        self.undo = ExitStack()
        self._make = NetnsFactory()
        self.undo.callback(self._make.close)
        self.folder = Path(self.undo.enter_context(tempfile.TemporaryDirectory()))

    def close(self) -> None:
        self.undo.close()

    def namespace(self, name: str) -> Netns:
        """A host; its addresses can be used at once."""
        netns = self._make(name)
        # Or a link has no address to send from for a second, until its own is proven.
        netns.sysctl("net/ipv6/conf/default/accept_dad", "0")
        if 6 not in self.versions:
            netns.sysctl("net/ipv6/conf/all/disable_ipv6", "1")
            netns.sysctl("net/ipv6/conf/default/disable_ipv6", "1")
        return netns

    def switch(self, name: str = "switch") -> Netns:
        """Ports are put on its `br0`."""
        netns = self.namespace(name)
        netns.ip("link add br0 type bridge", "link set br0 up")
        return netns

    def router(self, name: str = "router") -> Netns:
        netns = self.namespace(name)
        for path in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            netns.sysctl(path, "1")
        return netns


def connect_namespaces(one: Netns, ifname: str, two: Netns, peer_ifname: str) -> None:
    """A veth pair between the two, both ends up, and their addresses ready to send from."""
    one.ip(f"link add {ifname} type veth peer name {peer_ifname} netns {two.name}")
    for netns, name in ((one, ifname), (two, peer_ifname)):
        # While a link-local address is being proven, no neighbour is asked for what comes from an
        # address of another interface (`ndisc_send_ns`): "No route to host" after three seconds.
        netns.sysctl(f"net/ipv6/conf/{name}/accept_dad", "0")
        netns.ip(f"link set {name} up")
