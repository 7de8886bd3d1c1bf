"""The end that asks, in the measure of Services at the socket; its server is `bench.services_part`.

A socket belongs to the cgroup in which it was made: so one process asks in all ways, in turns of
one connection or question each, and whatever else the machine does hits them alike. Rates are those
of the median of a round.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.part import serve

_RESET = struct.pack("ii", 1, 0)
"""A connection that is closed so leaves nothing: no port waits for stray packets of it."""
_CHUNK = bytes(1 << 18)
_CHUNKS = 16
_REQUEST_S = 10.0


class Way(NamedTuple):
    """How the server is asked."""

    name: str
    is_inside: bool
    """From the cgroup that programs are attached to."""
    address: str


class _Client:
    def __init__(self, cgroup: str) -> None:
        self._inside = Path(cgroup)
        self._outside = Path(cgroup).parent
        self._calls = itertools.count()
        """Whose connection the server has had first differs from call to call."""

    async def answer(self, asked: dict[str, Any]) -> Any:
        if not asked:
            return {}
        ways = [Way(*each) for each in asked["ways"]]
        ways = [ways[at] for at in _turn(len(ways), next(self._calls))]
        return getattr(self, asked["do"])(ways, asked["port"], asked["count"])

    def connect(self, ways: Sequence[Way], port: int, count: int) -> dict[str, dict[str, float]]:
        """New connections; each is heard of by the server before the next, or those that it has
        not accepted yet would fill its queue."""
        made = [self._make(way, count) for way in ways]
        for each in itertools.chain(*made):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connect_s, whole_s, cpu_s, whole_cpu_s = ([list[float]() for _ in ways] for _ in range(4))
        for number in range(count):
            for at in _turn(len(ways), number):
                client, target = made[at][number], (ways[at].address, port)
                before_s, before_cpu_s = time.perf_counter(), time.process_time()
                client.connect(target)
                connected_s, cpu_now_s = time.perf_counter(), time.process_time()
                client.recv(1)
                client.close()
                connect_s[at].append(connected_s - before_s)
                cpu_s[at].append(cpu_now_s - before_cpu_s)
                whole_cpu_s[at].append(time.process_time() - before_cpu_s)
                whole_s[at].append(time.perf_counter() - before_s)
        for took in (*connect_s, *whole_s, *cpu_s, *whole_cpu_s):
            took.sort()
        return {
            way.name: {
                "rate": 1 / whole_s[at][count // 2],
                "p50": connect_s[at][count // 2] * 1e3,
                "p99": connect_s[at][int(count * 0.99)] * 1e3,
                "cpu": cpu_s[at][count // 2] * 1e6,
                "whole": whole_cpu_s[at][count // 2] * 1e6,
            }
            for at, way in enumerate(ways)
        }

    def ask(self, ways: Sequence[Way], port: int, count: int) -> dict[str, dict[str, float]]:
        """Questions of 64 bytes answered in a second, each way on one connection."""
        clients = [self._make(way, 1)[0] for way in ways]
        for way, client in zip(ways, clients, strict=True):
            client.connect((way.address, port))
        took_s, question = [list[float]() for _ in ways], bytes(64)
        for number in range(count):
            for at in _turn(len(ways), number):
                before_s = time.perf_counter()
                clients[at].sendall(question)
                clients[at].recv(64, socket.MSG_WAITALL)
                took_s[at].append(time.perf_counter() - before_s)
        for client in clients:
            client.close()
        return {way.name: {"ask": 1 / median(took)} for way, took in zip(ways, took_s, strict=True)}

    def send(self, ways: Sequence[Way], port: int, count: int) -> dict[str, dict[str, float]]:
        """Gbit/s, of one connection after the other: from its first byte until all are taken."""
        made = [self._make(way, count) for way in ways]
        took_s = [list[float]() for _ in ways]
        for number in range(count):
            for at in _turn(len(ways), number):
                client = made[at][number]
                client.connect((ways[at].address, port))
                before_s = time.perf_counter()
                for _ in range(_CHUNKS):
                    client.sendall(_CHUNK)
                client.shutdown(socket.SHUT_WR)
                client.recv(1)
                took_s[at].append(time.perf_counter() - before_s)
                client.close()
        gbit = _CHUNKS * len(_CHUNK) * 8 / 1e9
        return {
            way.name: {"send": gbit / median(took)} for way, took in zip(ways, took_s, strict=True)
        }

    def _make(self, way: Way, count: int) -> list[socket.socket]:
        place = self._inside if way.is_inside else self._outside
        (place / "cgroup.procs").write_text(str(os.getpid()))
        made = [socket.socket() for _ in range(count)]
        for each in made:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            each.settimeout(_REQUEST_S)
        return made


def _turn(count: int, number: int) -> Iterator[int]:
    """Each begins as often as others."""
    return ((number + each) % count for each in range(count))


if __name__ == "__main__":
    asyncio.run(serve(_Client(sys.argv[1]).answer))
