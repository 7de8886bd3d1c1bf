"""The end that asks, in the measure of Services at the socket; its server is `bench.services.part`.

A socket belongs to the cgroup in which it was made: so one process asks in all ways, in turns of
one connection each, and whatever else the machine does hits them alike. Rates are those
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
from typing import Any, NamedTuple

from bench.nodes.part import serve

_RESET = struct.pack("ii", 1, 0)
"""A connection that is closed so leaves nothing: no port waits for stray packets of it."""
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
        return self._connect(ways, asked["port"], asked["count"])

    def _connect(self, ways: Sequence[Way], port: int, count: int) -> dict[str, dict[str, float]]:
        """New connections; each is heard of by the server before the next, or those that it has
        not accepted yet would fill its queue."""
        made = [self._make(way, count) for way in ways]
        for each in itertools.chain(*made):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        whole_s, cpu_s, whole_cpu_s = ([list[float]() for _ in ways] for _ in range(3))
        for number in range(count):
            for at in _turn(len(ways), number):
                client, target = made[at][number], (ways[at].address, port)
                before_s, before_cpu_s = time.perf_counter(), time.process_time()
                client.connect(target)
                cpu_now_s = time.process_time()
                client.recv(1)
                client.close()
                cpu_s[at].append(cpu_now_s - before_cpu_s)
                whole_cpu_s[at].append(time.process_time() - before_cpu_s)
                whole_s[at].append(time.perf_counter() - before_s)
        for took in (*whole_s, *cpu_s, *whole_cpu_s):
            took.sort()
        return {
            way.name: {
                "rate": 1 / whole_s[at][count // 2],
                "cpu": cpu_s[at][count // 2] * 1e6,
                "whole": whole_cpu_s[at][count // 2] * 1e6,
            }
            for at, way in enumerate(ways)
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
