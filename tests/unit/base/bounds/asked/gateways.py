"""Probes of what a gateway answers, or whoever writes its address on something."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack, closing
from ipaddress import IPv4Address, ip_address

from limpet.base.bounds.servers import ECHOES, GATEWAY_DATAGRAMS, GATEWAY_LEASE_S, OWN_ENDPOINTS
from limpet.base.bounds.strangers import NETCHECK_QUESTIONS
from limpet.cli.netcheck.udp import MappingSocket
from limpet.cli.trace.packet import Sender
from limpet.cli.trace.tables import TracedFlow
from limpet.cluster.datagrams.reflection import NONCE_BYTES, encode_question
from limpet.linux.packets.echo import Echo
from limpet.nat import port_control, upnp
from limpet.nat import port_control_codec as codec
from limpet.nat.endpoints import KnownEndpoints
from tests.unit.base.bounds.probes import probe

_FOUND = b"HTTP/1.1 200 OK\r\nLOCATION: http://127.0.0.1:5000/rootDesc.xml\r\n\r\n"


def bound_socket(undo: ExitStack, address: str) -> socket.socket:
    opened = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    opened.bind((address, 0))
    opened.setblocking(False)
    return opened


@probe(GATEWAY_DATAGRAMS)
def _(amount: int) -> bool:
    """The gateway's answer is the last of so many that have come."""

    async def body() -> bool:
        with ExitStack() as undo:
            asking, gateway = bound_socket(undo, "127.0.0.1"), bound_socket(undo, "127.0.0.1")
            other = bound_socket(undo, "127.0.0.2")
            for sender in (*[other] * (amount - 1), gateway):
                sender.sendto(_FOUND, asking.getsockname())
            return await upnp._location(asking, IPv4Address("127.0.0.1")) != ""

    return asyncio.run(body())


@probe(GATEWAY_DATAGRAMS)
def _(amount: int) -> bool:
    """By PCP and NAT-PMP: the answer is the last of so many that have come."""

    async def body() -> bool:
        with ExitStack() as undo:
            asking, gateway = bound_socket(undo, "127.0.0.1"), bound_socket(undo, "127.0.0.1")
            asking.connect(gateway.getsockname())
            for said in (*[b"another"] * (amount - 1), b"answer"):
                gateway.sendto(said, asking.getsockname())
            try:
                await port_control._ask(asking, b"?", lambda said: said == b"answer" or None)
            except codec.PortControlError:
                return False
            return True

    return asyncio.run(body())


@probe(ECHOES)
def _(amount: int) -> bool:
    """The answer is the last of so many packets of the machine."""

    async def body() -> bool:
        with ExitStack() as undo:
            peer = bound_socket(undo, "127.0.0.1")
            with closing(Echo(*peer.getsockname())) as echo:
                answer = asyncio.create_task(echo.ask(100, 30.0))
                question = b""
                while not question:
                    await asyncio.sleep(0)
                    try:
                        question, asker = peer.recvfrom(2048)
                    except BlockingIOError:
                        continue
                for said in (*[b"another"] * (amount - 1), question):
                    peer.sendto(said, asker)
                    await asyncio.sleep(0)
                return await answer is not None

    return asyncio.run(body())


@probe(ECHOES)
def _(amount: int) -> bool:
    """By `limpet trace`, which looks at so many before it looks at its time again."""
    address = ip_address("127.0.0.1")
    with ExitStack() as undo:
        asking, other = bound_socket(undo, "127.0.0.1"), bound_socket(undo, "127.0.0.1")
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sender = Sender.__new__(Sender)
        sender._socket, sender.problem = asking, ""
        sender.flow = TracedFlow(address, address, "icmp", 7)
        for number in (*[8] * (amount - 1), 7):
            answer = b"\x45" + bytes(19) + b"\0\0\0\0" + number.to_bytes(2, "big") + b"\0\1"
            other.sendto(answer, asking.getsockname())
        return sender.answer() != ""


@probe(NETCHECK_QUESTIONS)
def _(amount: int) -> bool:
    """The first of so many is still known."""

    async def body() -> bool:
        with ExitStack() as undo:
            asker = MappingSocket(4)
            undo.callback(asker.close)
            sender = bound_socket(undo, "127.0.0.1")
            nonces = [number.to_bytes(NONCE_BYTES) for number in range(amount)]
            for nonce in nonces:
                sender.sendto(encode_question(nonce), ("127.0.0.1", asker.port))
                deadline_s = time.monotonic() + 30
                while nonce not in asker.heard and time.monotonic() < deadline_s:
                    await asyncio.sleep(0)
            return nonces[0] in asker.heard

    return asyncio.run(body())


@probe(GATEWAY_LEASE_S)
def _(amount: int) -> bool:
    nonce, port = bytes(codec.NONCE_BYTES), (51820).to_bytes(2)
    by_pcp = b"\2\x81\0\0" + amount.to_bytes(4) + bytes(16) + nonce + b"\x11\0\0\0" + port * 2
    by_pmp = b"\0\x81\0\0" + bytes(4) + port * 2 + amount.to_bytes(4)
    leases = (
        codec.parse_pcp_map(by_pcp + bytes(10) + b"\xff\xff\xcb\0\x71\1", nonce, 51820),
        codec.parse_pmp_map(by_pmp, 51820),
    )
    taken = {lease is not None and lease.lifetime_s == amount for lease in leases}
    assert len(taken) == 1
    return taken.pop()


@probe(OWN_ENDPOINTS)
def _(amount: int) -> bool:
    """As others see the node, and as gateways forward to it."""
    seen = tuple((IPv4Address("203.0.113.9"), 1 + port) for port in range(amount))
    mapped, forwarded = KnownEndpoints(()), KnownEndpoints(())
    mapped.confirm(seen, 0.0)
    forwarded.set_forwarded(seen, 0.0)
    taken = {len(each.tick(1.0) or ()) == amount for each in (mapped, forwarded)}
    assert len(taken) == 1
    return taken.pop()
