"""Network namespaces of one test, with sockets inside them and without processes.

A socket belongs to the namespace in which it was made, so the test itself is every host's program.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.waiting import PATIENCE_S

PREFIX = "ltk"
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count()


class Netns:
    """A network namespace with its loopback up, under /run/netns."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"/run/netns/{name}"

    def run(self, *argv: str) -> str:
        """What a command says in the namespace. Raises: AssertionError unless it succeeds."""
        done = subprocess.run(
            ["nsenter", f"--net={self.path}", *argv], capture_output=True, text=True, timeout=30
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
                timeout=30,
            )
            assert done.returncode == 0, f"{commands}: {done.stderr}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in the namespace."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        inside = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(inside)
            yield
        finally:
            _setns(before)
            os.close(inside)
            os.close(before)

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


def _setns(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class NetnsFactory:
    """Makes namespaces; `close` removes them all, whatever happened to them."""

    def __init__(self) -> None:
        self._made = ExitStack()

    def __call__(self, name: str = "") -> Netns:
        netns = Netns(f"{PREFIX}-{os.getpid()}-{next(_numbers)}{'-' if name else ''}{name}")
        subprocess.run(["ip", "netns", "add", netns.name], check=True, timeout=30)
        self._made.callback(self.remove, netns)
        netns.ip("link set lo up")
        return netns

    @staticmethod
    def remove(netns: Netns) -> None:
        """What lives in it goes with it; removed already is removed."""
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(
                ["ip", "netns", "delete", netns.name], check=True, capture_output=True, timeout=30
            )

    def close(self) -> None:
        self._made.close()


def connect_namespaces(one: Netns, ifname: str, two: Netns, peer_ifname: str) -> None:
    """A veth pair between the two, both ends up."""
    one.ip(
        f"link add {ifname} type veth peer name {peer_ifname} netns {two.name}",
        f"link set {ifname} up",
    )
    two.ip(f"link set {peer_ifname} up")
