"""What UDP does on the way out: who answers, as whom we are seen, which size gets through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import ip_address

from limpet.base.addresses import Address, Endpoint
from limpet.base.bounds.strangers import NETCHECK_QUESTIONS
from limpet.cluster.datagrams.peer_datagram import DatagramError
from limpet.cluster.datagrams.reflection import (
    NONCE_BYTES,
    Reflected,
    encode_question,
    is_question,
    parse_answer,
)
from limpet.linux.packets.echo import HEADERS_BYTES

_RECEIVED_BYTES = 1 << 16
_AT_ONCE = 64
"""Datagrams that are read before others have their turn."""
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_WHOLE = {
    4: (socket.IPPROTO_IP, 10, 3),
    6: (socket.IPPROTO_IPV6, 23, 3),
}
"""IP_MTU_DISCOVER, IPV6_MTU_DISCOVER: PROBE, so never fragmented, whatever the kernel believes."""
_TRIES_S = (0.25, 0.5, 1.0)
"""How long each try waits; a satellite takes 0.6 s."""
_SIZES = (576, 1200, 1280, 1360, 1400, 1420, 1440, 1460, 1480, 1492, 1500)
"""Sizes of whole packets that links and the tunnels in them leave. Between two it is halved."""


@dataclass(frozen=True, slots=True)
class MappingSeen:
    """An answer to a question."""

    seen_as: Endpoint
    rtt_s: float
    at_s: float


class MappingSocket:
    """One UDP socket of one IP version, as a NAT sees it. Within a running loop."""

    def __init__(self, version: int) -> None:
        """Raises: OSError where the machine has no such version."""
        self.version = version
        self._socket = socket.socket(
            _FAMILIES[version], socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            self._socket.setsockopt(*_WHOLE[version])
            self._socket.bind(("::" if version == 6 else "0.0.0.0", 0))
        except OSError:
            self._socket.close()
            raise
        self._waiting: dict[bytes, asyncio.Future[Reflected]] = {}
        self.heard: OrderedDict[bytes, None] = OrderedDict()
        """Nonces of the last questions that came here: of ourselves, by the NAT, or of anybody."""
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)

    @property
    def port(self) -> int:
        """UDP port on this machine."""
        found: int = self._socket.getsockname()[1]
        return found

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                try:
                    data = self._socket.recv(_RECEIVED_BYTES)
                except BlockingIOError:
                    raise
                except OSError:  # an ICMP error of an earlier question
                    continue
                if is_question(data):
                    self._note(data[5 : 5 + NONCE_BYTES])
                    continue
                with contextlib.suppress(DatagramError):
                    found = parse_answer(data)
                    waiter = self._waiting.get(found.nonce)
                    if waiter is not None and not waiter.done():
                        waiter.set_result(found)

    def _note(self, nonce: bytes) -> None:
        self.heard[nonce] = None
        while len(self.heard) > NETCHECK_QUESTIONS.most:
            self.heard.popitem(last=False)

    async def ask(
        self, where: Endpoint, *, packet_bytes: int = 0, tries_s: tuple[float, ...] = _TRIES_S
    ) -> MappingSeen | None:
        """None: no answer. `packet_bytes`: of the whole packet; 0: as little as there may be.

        An answer to an earlier try counts while a later one waits: some ways take longer than that.
        """
        size_bytes = packet_bytes - HEADERS_BYTES[self._socket.family] if packet_bytes else 64
        waiter: asyncio.Future[Reflected] = asyncio.get_running_loop().create_future()
        sent_s: dict[bytes, float] = {}
        try:
            for wait_s in tries_s:
                nonce = os.urandom(NONCE_BYTES)
                self._waiting[nonce] = waiter
                sent_s[nonce] = time.monotonic()
                self.send(encode_question(nonce, size_bytes), where)
                if (await asyncio.wait([waiter], timeout=wait_s))[0]:
                    found, now_s = waiter.result(), time.monotonic()
                    return MappingSeen(found.seen_as, now_s - sent_s[found.nonce], now_s)
        except OSError:
            return None  # no route, or larger than the link
        finally:
            for nonce in sent_s:
                self._waiting.pop(nonce, None)
        return None

    def send(self, data: bytes, where: Endpoint) -> None:
        """Raises: OSError."""
        self._socket.sendto(data, (str(where[0]), where[1]))


async def comes_back(asker: MappingSocket, seen_as: Endpoint) -> bool:
    """Whether a packet from this machine to its public endpoint gets to it (hairpin)."""
    other = MappingSocket(asker.version)
    try:
        for wait_s in _TRIES_S[:2]:
            nonce = os.urandom(NONCE_BYTES)
            try:
                other.send(encode_question(nonce), seen_as)
            except OSError:
                return False
            await asyncio.sleep(wait_s)
            if nonce in asker.heard:
                return True
    finally:
        other.close()
    return False


async def largest_packet(asker: MappingSocket, where: Endpoint, rtt_s: float) -> int | None:
    """Bytes of the largest IP packet that gets there whole; None: not even 576 do."""
    wait_s = max(0.2, 3 * rtt_s)

    async def passes(size: int) -> bool:
        tries = (wait_s, wait_s, 2 * wait_s)
        return await asker.ask(where, packet_bytes=size, tries_s=tries) is not None

    least = _SIZES if asker.version == 4 else _SIZES[2:]
    passed = await asyncio.gather(*map(passes, least))
    good = max(
        (size for size, passes_it in zip(least, passed, strict=True) if passes_it), default=0
    )
    bad = min((size for size in least if size > good), default=0)
    if not good or not bad:
        return good or None
    while bad - good > 1:
        middle = (good + bad) // 2
        if await passes(middle):
            good = middle
        else:
            bad = middle
    return good


def source_towards(where: Endpoint) -> Address | None:
    """This machine's address on the way there; None: there is no route. Sends nothing."""
    with socket.socket(_FAMILIES[where[0].version], socket.SOCK_DGRAM) as client:
        try:
            client.connect((str(where[0]), where[1]))
        except OSError:
            return None
        return ip_address(client.getsockname()[0].partition("%")[0])
