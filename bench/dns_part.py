"""Either end of the measure of names: who asks, and the upstream that is asked for other names."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import time
from typing import Any

from bench.part import serve

_ASKING_S = 4.0
_UNDER_WAY = 32
_PATIENCE_S = 3.0
_TYPE_A = b"\0\1\0\1"
_ANSWER = b"\xc0\x0c\0\1\0\1\0\0\x0e\x10\0\4\xc0\0\2\x50"
"""A record of an hour, of the name that was asked for."""


class _Client:
    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.setblocking(False)
        self._socket.connect((address, 53))
        self._fresh = 0

    async def answer(self, asked: dict[str, Any]) -> dict[str, float]:
        if not asked:
            return {}
        return self._run(asked)

    def _run(self, asked: dict[str, Any]) -> dict[str, float]:
        """Questions of one kind: so many in a second, or 0: as many as are answered."""
        rate, kind, names = asked["rate"], asked["kind"], asked["names"]
        under_way: dict[int, float] = {}
        took_s: list[float] = []
        sent, start_s = 0, time.perf_counter()
        end_s = start_s + _ASKING_S
        while True:
            now_s = time.perf_counter()
            if now_s >= end_s and (not under_way or now_s >= end_s + _PATIENCE_S):
                break
            due_s = start_s + sent / rate if rate else now_s
            if now_s < end_s and now_s >= due_s and (rate or len(under_way) < _UNDER_WAY):
                number = sent & 0xFFFF
                under_way[number] = now_s
                self._socket.send(number.to_bytes(2, "big") + self._question(kind, sent % names))
                sent += 1
                if not rate:
                    continue
            else:
                until_s = due_s if rate and now_s < end_s else now_s + 0.05
                select.select([self._socket], [], [], max(until_s - now_s, 0))
            while True:
                try:
                    message = self._socket.recv(4096)
                except BlockingIOError:
                    break
                asked_s = under_way.pop(int.from_bytes(message[:2], "big"), None)
                if asked_s is not None and not message[3] & 0xF:
                    took_s.append(time.perf_counter() - asked_s)
        took_s.sort()
        return {
            "asked": sent,
            "answered": len(took_s),
            "took_s": _ASKING_S,
            # Nothing at all: worse than any.
            "p50_ms": took_s[len(took_s) // 2] * 1e3 if took_s else _ASKING_S * 1e3,
            "p99_ms": took_s[int(len(took_s) * 0.99)] * 1e3 if took_s else _ASKING_S * 1e3,
        }

    def _question(self, kind: str, number: int) -> bytes:
        if kind == "cluster":
            name = f"web-{number}.default.svc.cluster.local"
        elif kind == "kept":
            name = f"kept-{number}.example.com"
        else:
            self._fresh += 1
            name = f"fresh-{self._fresh}.example.com"
        labels = b"".join(bytes((len(each),)) + each.encode() for each in name.split("."))
        return b"\1\0\0\1\0\0\0\0\0\0" + labels + b"\0" + _TYPE_A


class _Upstream:
    """Every name is there."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind((address, 53))
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    async def answer(self, _asked: dict[str, Any]) -> dict[str, float]:
        return {}

    def _read(self) -> None:
        while True:
            try:
                message, client = self._socket.recvfrom(4096)
            except BlockingIOError:
                return
            end = message.index(b"\0", 12) + 5
            head = message[:2] + b"\x81\x80\0\1\0\1\0\0\0\0"
            self._socket.sendto(head + message[12:end] + _ANSWER, client)


async def _main(role: str, address: str) -> None:
    part = _Client(address) if role == "client" else _Upstream(address)
    await serve(part.answer)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
