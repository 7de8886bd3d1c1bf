"""Who asks a Service, where and how: connections that are held, and new ones all the time."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal, NamedTuple

from tests.beds.namespaces import Netns
from tests.waiting import PATIENCE_S

How = Literal["TCP", "UDP", "UDP by an unconnected socket"]
"""Somebody who translates at the socket does it in another place for each of them."""


class Echo:
    """Gives back what each connection says, and each datagram.

    Its sockets stay in the namespace where they were made.
    """

    def __init__(self, listener: socket.socket, datagrams: socket.socket) -> None:
        for serve in (lambda: self._accept(listener), lambda: self._return(datagrams)):
            threading.Thread(target=serve, daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                asked, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return  # the test is over
            threading.Thread(target=self._serve, args=(asked,), daemon=True).start()

    @staticmethod
    def _serve(asked: socket.socket) -> None:
        with asked:
            try:
                while said := asked.recv(4096):
                    asked.sendall(said)
            except OSError:
                return

    @staticmethod
    def _return(datagrams: socket.socket) -> None:
        while True:
            try:
                said, who = datagrams.recvfrom(4096)
                datagrams.sendto(said, who)
            except TimeoutError:
                continue
            except OSError:
                return  # the test is over


@contextmanager
def echoing(host: Netns, address: str, port: int) -> Iterator[None]:
    with ExitStack() as undo:
        listener = undo.enter_context(host.listening(address, port))
        version = 6 if ":" in address else 4
        datagrams = undo.enter_context(host.open_socket(version, socket.SOCK_DGRAM))
        datagrams.settimeout(PATIENCE_S)
        datagrams.bind((address, port))
        Echo(listener, datagrams)
        yield


class Way(NamedTuple):
    who: str
    client: Netns
    how: How
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.who} by {self.how} to {self.address} port {self.port}"

    @contextmanager
    def held(self, *, patience_s: float = PATIENCE_S) -> Iterator[Held]:
        """Raises: OSError."""
        if self.how == "TCP":
            with self.client.connected(
                self.address, self.port, patience_s=patience_s
            ) as connection:
                yield Held(self, connection)
            return
        version = 6 if ":" in self.address else 4
        with self.client.open_socket(version, socket.SOCK_DGRAM) as opened:
            opened.settimeout(patience_s)
            if self.how == "UDP":
                opened.connect((self.address, self.port))
            yield Held(self, opened)

    def ask(self, *, patience_s: float = PATIENCE_S) -> None:
        """By a new connection. Raises: OSError."""
        with self.held(patience_s=patience_s) as connection:
            connection.ask(b"new")

    def works(self) -> bool:
        try:
            self.ask(patience_s=1.0)
        except OSError:
            return False
        return True


class Held(NamedTuple):
    """A connection, or a socket from which datagrams go, that somebody has opened by a way."""

    way: Way
    opened: socket.socket

    def ask(self, words: bytes) -> None:
        """Once: a datagram that is lost is not sent again. Raises: OSError."""
        if self.way.how != "UDP by an unconnected socket":
            self.opened.sendall(words)
            answer = self.opened.recv(len(words), socket.MSG_WAITALL)
        else:
            self.opened.sendto(words, (self.way.address, self.way.port))
            answer, (who, port, *_) = self.opened.recvfrom(4096)
            if (who, port) != (self.way.address, self.way.port):
                raise OSError(f"{who} port {port} answered")
        if answer != words:
            raise OSError(f"{words!r} was answered by {answer!r}")

    def fault(self) -> str:
        """What it says that is asked once more; nothing where it is answered."""
        try:
            self.ask(b"still")
        except OSError as error:
            return f"{self.way}: {error!r}"
        return ""


def check(held: dict[str, list[Held]]) -> None:
    """Raises: AssertionError with those that are answered no more."""
    broken = {
        whose: Counter(fault for each in those if (fault := each.fault()))
        for whose, those in held.items()
    }
    assert not any(broken.values()), broken


class Traffic(threading.Thread):
    """New connections by every way, one after the other, whoever serves meanwhile."""

    def __init__(self, ways: list[Way]) -> None:
        super().__init__()
        self.failures: list[str] = []
        self.asked = 0
        self.longest_s = 0.0
        self._ways = ways
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.005):
            for way in self._ways:
                began_s = time.monotonic()
                try:
                    way.ask()
                except OSError as error:
                    self.failures.append(f"{way}, after {self.asked} answers: {error!r}")
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                self.asked += 1

    def __enter__(self) -> Traffic:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
