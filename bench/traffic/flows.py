"""What is carried through a Service, or from pod to pod, however busy the machine is: as
`single_flow` does it, with both ends in one thread, and many ways that are taken in turns."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import pairwise

from bench.traffic.single_flow import Turn, before_all_others, fast_s

_RESET = struct.pack("ii", 1, 0)
"""A connection that is closed so leaves nothing behind."""
_LIMIT = struct.pack("@ll", 5, 0)
_CONNECTIONS, _QUESTIONS, _BLOCKS, _DATAGRAMS = 20, 100, 16, 100
"""In a batch, which takes about a millisecond."""
_POOL = 20
"""Batches whose sockets are made at one go."""
_BLOCK_BYTES = 65536
_DATAGRAM_BYTES = 1372
"""Fits into a tunnel's packets."""
_BUFFER_BYTES = 4 << 20
Inside = Callable[[], AbstractContextManager[None]]
"""The calling thread is in a network namespace within the block."""


@dataclass(frozen=True, slots=True)
class Way:
    """From a pod to an address and port, at which another one is asked."""

    client: Inside
    server: Inside
    address: str
    port: int
    listens: int
    """The port that the server has itself, at all its addresses."""


def in_turns(turns: Mapping[str, Turn], rounds: int) -> Iterator[dict[str, float]]:
    """Rates of each, by name; each begins a round as often as the others."""
    names = list(turns)
    with before_all_others():
        for turn in turns.values():
            turn()
        for number in range(rounds):
            first = number % len(names)
            yield {name: turns[name]() for name in names[first:] + names[:first]}


def connected(
    flows: Flows, ways: Mapping[str, Way], rounds: int, turns: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """By way: `new`, connections a second in each turn; `p50` and `p99`, ms of those of a round."""
    each_s: dict[str, list[float]] = {name: [] for name in ways}
    opened = {name: flows.connections(way, each_s[name]) for name, way in ways.items()}
    for _ in range(rounds):
        for took_s in each_s.values():
            took_s.clear()
        for rates in in_turns(opened, turns):
            yield "new", rates
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            yield name, {way: quantile(took_s, share) * 1e3 for way, took_s in each_s.items()}


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of all is below."""
    return sorted(values)[int(len(values) * share)]


class Flows:
    """Opens ways; what it has opened is closed with `undo`."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo
        self._listeners: dict[tuple[Inside, int, socket.SocketKind], socket.socket] = {}

    def connections(self, way: Way, each_s: list[float]) -> Turn:
        """New connections a second: until the client knows that it is connected. What each of all
        took is put behind `each_s`."""
        listener, target = self._listener(way), (way.address, way.port)
        pool: list[socket.socket] = []
        self._undo.callback(_close_all, pool)

        def open_pool() -> None:
            """In a cgroup, perhaps: to enter one costs what comes next some of its time."""
            with way.client():
                pool.extend(socket.socket() for _ in range(_CONNECTIONS * _POOL))
            for each in pool:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _LIMIT)

        def connect() -> list[float]:
            """When each began, and when the last one was there."""
            made = [pool.pop() for _ in range(_CONNECTIONS)]
            times_s = [time.perf_counter()]
            for each in made:
                each.connect(target)
                times_s.append(time.perf_counter())
            for each in made:
                listener.accept()[0].close()
                each.close()
            return times_s

        def batch() -> float:
            if not pool:
                open_pool()
                connect()
            times_s = connect()
            each_s.extend(later - before for before, later in pairwise(times_s))
            return times_s[-1] - times_s[0]

        return lambda: _CONNECTIONS / fast_s(batch)

    def questions(self, way: Way) -> Turn:
        """64 bytes there and back on one connection of TCP, a second."""
        asks, answers = self._pair(way, self._undo)
        question = bytes(64)

        def batch() -> float:
            began_s = time.perf_counter()
            for _ in range(_QUESTIONS):
                asks.send(question)
                answers.send(answers.recv(64))
                asks.recv(64)
            return time.perf_counter() - began_s

        return lambda: _QUESTIONS / fast_s(batch)

    def datagram_questions(self, way: Way) -> Turn:
        """64 bytes there and back by UDP, a second, by a socket that is not connected: it names
        whom it asks each time, and is told who answers. A turn raises OSError if one is lost."""
        answers = self._listener(way, socket.SOCK_DGRAM)
        asks = self._socket(way.client, socket.SOCK_DGRAM)
        question, target = bytes(64), (way.address, way.port)

        def batch() -> float:
            began_s = time.perf_counter()
            for _ in range(_QUESTIONS):
                asks.sendto(question, target)
                answers.sendto(*answers.recvfrom(64))
                _, told = asks.recvfrom(64)
            took_s = time.perf_counter() - began_s
            if told != target:
                raise OSError(f"{told} answers, and not {target}, which was asked")
            return took_s

        return lambda: _QUESTIONS / fast_s(batch)

    def stream(self, way: Way) -> Turn:
        """One TCP stream, Gbit/s. Each turn has a new connection: what one of them has met once, as
        a pause in which TCP gave up its window, stays with it."""
        data, into = bytes(_BLOCK_BYTES), bytearray(_BLOCK_BYTES)
        self._listener(way)

        def turn() -> float:
            with ExitStack() as undo:
                sender, receiver = self._pair(way, undo)
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

                def batch() -> float:
                    began_s = time.perf_counter()
                    for _ in range(_BLOCKS):
                        sender.sendall(data)
                        receiver.recv_into(into, flags=socket.MSG_WAITALL)
                    return time.perf_counter() - began_s

                return _BLOCKS * _BLOCK_BYTES * 8 / fast_s(batch) / 1e9

        return turn

    def datagrams(self, way: Way) -> Turn:
        """UDP, Gbit/s of what is in the datagrams. A turn raises OSError if one is lost."""
        receiver = self._socket(way.server, socket.SOCK_DGRAM)
        receiver.bind(("0.0.0.0", way.listens))
        sender = self._socket(way.client, socket.SOCK_DGRAM)
        sender.connect((way.address, way.port))
        data = bytes(_DATAGRAM_BYTES)

        def batch() -> float:
            began_s = time.perf_counter()
            for _ in range(_DATAGRAMS):
                sender.send(data)
                receiver.recv(_DATAGRAM_BYTES)
            return time.perf_counter() - began_s

        return lambda: _DATAGRAMS * _DATAGRAM_BYTES * 8 / fast_s(batch) / 1e9

    # Sockets

    def _pair(self, way: Way, undo: ExitStack) -> tuple[socket.socket, socket.socket]:
        listener = self._listener(way)
        asks = self._socket(way.client, socket.SOCK_STREAM, undo)
        asks.connect((way.address, way.port))
        answers = undo.enter_context(listener.accept()[0])
        for each in (asks, answers):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LIMIT)
        return asks, answers

    def _listener(self, way: Way, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        key = way.server, way.listens, kind
        if key not in self._listeners:
            made = self._socket(way.server, kind)
            made.bind(("0.0.0.0", way.listens))
            if kind is socket.SOCK_STREAM:
                made.listen(4096)
            self._listeners[key] = made
        return self._listeners[key]

    def _socket(
        self, inside: Inside, kind: socket.SocketKind, undo: ExitStack | None = None
    ) -> socket.socket:
        with inside():
            made = (undo or self._undo).enter_context(socket.socket(socket.AF_INET, kind))
        # Not by settimeout, which asks `poll` before each call.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            made.setsockopt(socket.SOL_SOCKET, option, _LIMIT)
        if kind is socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            made.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        return made


def _close_all(sockets: Iterable[socket.socket]) -> None:
    for each in sockets:
        each.close()
