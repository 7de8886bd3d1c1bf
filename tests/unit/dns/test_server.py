"""A server without descriptors for those who come waits, and serves them when it has some; who asks
for much by TCP leaves others their turn."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.dns import wire
from limpet.dns.explain import explain
from limpet.dns.forward.cache import Cache
from limpet.dns.forward.effects import AskUpstream
from limpet.dns.forward.health import Upstream
from limpet.dns.forward.sockets import UpstreamSockets
from limpet.dns.resolver import Resolver
from limpet.dns.server import DnsServer
from limpet.services.catalog import Catalog
from limpet.services.values import Endpoint, EndpointSlice, Service
from tests.beds.descriptors import room_for_descriptors
from tests.unit.dns.test_resolver import resolver_of
from tests.waiting import until

QUESTION = b"\0\7" + b"\1\0\0\1" + bytes(6) + b"\3svc\7cluster\5local\0\0\1\0\1"


class Counting(DnsServer):
    accepted = 0

    def _accept(self, at: socket.socket) -> None:
        self.accepted += 1
        super()._accept(at)


def test_without_a_descriptor_it_rests_and_whoever_waits_is_served_later() -> None:
    """It asked for one without a pause, and answered nobody else."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        resolver: Resolver[Any] = resolver_of(Catalog())
        server = Counting(resolver)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        server.listen([listener])
        client = socket.socket()
        client.setblocking(False)
        with room_for_descriptors(0):
            began_s = time.monotonic()
            await loop.sock_connect(client, listener.getsockname())
            await until(lambda: server.accepted >= 4)
            assert time.monotonic() - began_s >= 0.5
        await loop.sock_sendall(client, len(QUESTION).to_bytes(2, "big") + QUESTION)
        assert await loop.sock_recv(client, 4) != b""
        client.close()
        server.close()

    asyncio.run(scenario())


class Turns:
    """Counts turns of the event loop."""

    def __init__(self, look: Callable[[], object] = int) -> None:
        """`look`: is called in each."""
        self.count = 0
        self._look = look
        self._next()

    def _next(self) -> None:
        self.count += 1
        self._look()
        self._timer = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._timer.cancel()


def test_who_asks_for_large_answers_by_tcp_has_one_in_a_turn() -> None:
    """64 of them on each connection stopped all others for half a second."""
    large = 1024 * (b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + bytes(4))
    question = wire.join_name((b"a", b"example", b"com")) + b"\0\1\0\1"
    message = b"\0\7" + b"\1\0\0\1" + bytes(6) + question
    said: list[int] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        resolver: Resolver[Any] = resolver_of(Catalog())
        server = DnsServer(resolver)
        server.resolver.forwarder.cache = cache = Cache(most_bytes=1 << 20, stale_s=0)
        cache.put(
            (wire.folded(question), 0),
            wire.DnsAnswer(wire.NOERROR, (1024, 0, 0), large, ttl_s=60),
            time.monotonic(),
        )
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        server.listen([listener])
        client = socket.socket()
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        await until(lambda: bool(server.connections))
        (connection,) = server.connections
        turns = Turns(lambda: said.append(connection._said))
        await loop.sock_sendall(client, 10 * (len(message).to_bytes(2, "big") + message))
        left = 10 * (2 + len(message) + len(large))
        while left:
            left -= len(await loop.sock_recv(client, left))
        turns.stop()
        client.close()
        server.close()

    asyncio.run(scenario())

    in_turns = [later - before for before, later in pairwise(said) if later > before]
    assert in_turns == [len(message) + len(large)] * 10


def test_of_upstreams_answers_by_tcp_that_come_at_once_each_has_a_turn() -> None:
    """200 of them stopped everybody else for 0.3 s."""
    heard_at: list[int] = []

    async def scenario() -> None:
        asked: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(2 + len(QUESTION))
            asked.append(writer)

        upstream = await asyncio.start_server(serve, "127.0.0.1", 0)
        turns = Turns()
        sockets = UpstreamSockets(
            lambda attempt, message: heard_at.append(turns.count), lambda attempt: None
        )
        at = Upstream(ip_address("127.0.0.1"), upstream.sockets[0].getsockname()[1])
        for attempt in range(10):
            sockets.send(AskUpstream(attempt, 0, QUESTION, by_tcp=True), at)
        await until(lambda: len(asked) == 10)
        for writer in asked:
            writer.write(b"\0\7answer.")
        await until(lambda: len(heard_at) == 10)
        turns.stop()
        sockets.close_all()
        for writer in asked:
            writer.close()
        upstream.close()

    asyncio.run(scenario())

    assert len(set(heard_at)) == 10


def test_who_asks_nothing_more_by_tcp_has_the_answers_that_are_to_come() -> None:
    """Of a name that is upstreams' and of one that is the cluster's, and then the end."""
    question = wire.join_name((b"a", b"example", b"com")) + b"\0\1\0\1"
    asked = b"\0\7" + b"\1\0\0\1" + bytes(6) + question

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        upstream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        upstream.bind(("127.0.0.1", 0))
        upstream.setblocking(False)
        resolver: Resolver[Any] = resolver_of(Catalog())
        server = DnsServer(resolver)
        server.use([Upstream(ip_address("127.0.0.1"), upstream.getsockname()[1])])
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        server.listen([listener])
        client = socket.socket()
        client.setblocking(False)
        await loop.sock_connect(client, listener.getsockname())
        both = [len(each).to_bytes(2, "big") + each for each in (QUESTION, asked)]
        await loop.sock_sendall(client, b"".join(both))
        client.shutdown(socket.SHUT_WR)
        while True:
            message, sender = await loop.sock_recvfrom(upstream, 512)
            if question in message:
                break
        (connection,) = server.connections
        await until(lambda: connection._has_ended)
        number = message[:2]
        await loop.sock_sendto(upstream, number + b"\x81\x83\0\1" + bytes(6) + question, sender)
        told = b""
        while part := await loop.sock_recv(client, 4096):
            told += part
        server.close()
        upstream.close()
        client.close()
        first = 2 + int.from_bytes(told[:2], "big")
        answers = [told[2:first], told[first + 2 :]]
        assert [each[3] & 0xF for each in answers] == [wire.NOERROR, wire.NXDOMAIN]

    asyncio.run(scenario())


def test_what_leads_to_what_is_no_name_is_told_a_person_as_that() -> None:
    catalog = Catalog()
    catalog.put(Service("x", "e", type="ExternalName", external_name="a..b"))

    async def scenario() -> None:
        resolver: Resolver[Any] = resolver_of(catalog)
        server = DnsServer(resolver)
        told = await explain(server.resolver, server, "e.x.svc.cluster.local", "A")
        server.close()
        assert told.code == "SERVFAIL"
        assert told.because == "Service x/e, which leads to what is no name: a..b is no name"

    asyncio.run(scenario())


def test_what_an_upstream_says_and_nobody_can_read_is_told_a_person_in_words() -> None:
    question = wire.join_name((b"a", b"example", b"com")) + b"\0\1\0\1"
    short = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\3" + bytes(3)  # an IPv4 address of three bytes

    async def scenario() -> None:
        resolver: Resolver[Any] = resolver_of(Catalog())
        server = DnsServer(resolver)
        answer = wire.DnsAnswer(wire.NOERROR, (1, 0, 0), short, ttl_s=60)
        server.resolver.forwarder.cache.put((question, 0), answer, time.monotonic())
        with pytest.raises(LimpetError, match="read what an upstream answers"):
            await explain(server.resolver, server, "a.example.com", "A")
        server.close()

    asyncio.run(scenario())


def test_a_person_is_told_of_which_slices_a_headless_services_answer_is() -> None:
    """The first of them, and how many more: an answer may be of very many."""
    catalog = Catalog()
    catalog.put(Service("shop", "db", cluster_ips=("None",)))
    for number in range(5):
        ends = (Endpoint(f"10.1.0.{number}"),)
        catalog.put(EndpointSlice("shop", f"db-{number}", "db", 4, (), ends))

    async def scenario() -> list[str]:
        resolver: Resolver[Any] = resolver_of(catalog)
        server = DnsServer(resolver)
        try:
            names = ("10-1-0-3.db", "db")
            asked = [f"{each}.shop.svc.cluster.local" for each in names]
            return [(await explain(server.resolver, server, x, "A")).because for x in asked]
        finally:
            server.close()

    assert asyncio.run(scenario()) == [
        "Service shop/db, EndpointSlice db-3",
        "Service shop/db, EndpointSlice db-0, db-1, db-2 and 2 more",
    ]
