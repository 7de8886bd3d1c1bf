"""Probes of what the names' process takes of those who ask."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from typing import Any

import pytest

from limpet.base.bounds import strangers
from limpet.dns import server as server_module
from limpet.dns import wire
from limpet.dns.clients.far import FarClients
from limpet.dns.forward.cache import Cache
from limpet.dns.forward.effects import AskUpstream, Deliver
from limpet.dns.forward.forwarder import Forwarder
from limpet.dns.forward.health import Upstream
from limpet.dns.names import ClusterNames, Found, Record
from limpet.dns.resolver import Resolver, _Looked
from limpet.dns.server import DnsServer
from limpet.dns.wire import Query
from limpet.services.catalog import Catalog
from limpet.services.values import NONE, Endpoint, EndpointPort, EndpointSlice, Service
from tests.unit.base.bounds.probes import probe
from tests.unit.dns.test_resolver import resolver_of

_QUESTION = bytes.fromhex("000100000001000000000000") + b"\x03web\x00" + b"\0\1\0\1"


@contextmanager
def _serving() -> Iterator[tuple[DnsServer, tuple[str, int]]]:
    resolver: Resolver[Any] = resolver_of(Catalog())
    server = DnsServer(resolver)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server.listen([listener])
    try:
        yield server, listener.getsockname()
    finally:
        server.close()


def _run(body: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
    return asyncio.run(body())


async def _connect(undo: ExitStack, to: tuple[str, int], source: str) -> socket.socket:
    client = undo.enter_context(socket.socket())
    client.setblocking(False)
    client.bind((source, 0))
    await asyncio.get_running_loop().sock_connect(client, to)
    return client


async def _is_open(client: socket.socket, sent: bytes = b"") -> bool:
    """It answers, or takes what is sent without one; False: it was ended."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        await loop.sock_sendall(client, sent or len(_QUESTION).to_bytes(2, "big") + _QUESTION)
        return await loop.sock_recv(client, 2) != b""
    return False


def _are_served(amount: int, sources: int) -> bool:
    async def body() -> bool:
        with ExitStack() as undo:
            _, to = undo.enter_context(_serving())
            held = [
                await _connect(undo, to, f"127.0.2.{number % sources + 1}")
                for number in range(amount)
            ]
            return all([await _is_open(client) for client in held])

    return _run(body)


@probe(strangers.DNS_CONNECTIONS)
def _(amount: int) -> bool:
    return _are_served(amount, sources=100)


@probe(strangers.DNS_CONNECTIONS_OF_ONE)
def _(amount: int) -> bool:
    return _are_served(amount, sources=1)


@probe(strangers.DNS_QUESTION)
def _(amount: int) -> bool:
    async def body() -> bool:
        with ExitStack() as undo:
            _, to = undo.enter_context(_serving())
            client = await _connect(undo, to, "127.0.0.1")
            message = _QUESTION.ljust(amount, b"\0")
            return await _is_open(client, amount.to_bytes(2, "big") + message)

    return _run(body)


def _is_understood(amount: int, before: int) -> bool:
    """By UDP, behind so many others; a question that is filled up, and cut would be none."""

    async def body() -> bool:
        with ExitStack() as undo:
            server, _ = undo.enter_context(_serving())
            at, client, other = (
                undo.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(3)
            )
            at.setblocking(False)
            at.bind(("127.0.0.1", 0))
            for _ in range(before):
                other.sendto(_QUESTION, at.getsockname())
            head = _QUESTION[:10] + b"\0\1" + _QUESTION[12:] + b"\0\0\x29\x10\0\0\0\0\0"
            filled = amount - len(head) - 6
            padding = b"\0\x0c" + filled.to_bytes(2) + bytes(filled)
            client.sendto(head + (filled + 4).to_bytes(2) + padding, at.getsockname())
            server._read(at)
            client.setblocking(False)
            with suppress(BlockingIOError):
                return client.recv(512)[3] & 15 != wire.FORMERR
            return False

    return _run(body)


@probe(strangers.DNS_QUESTION)
def _(amount: int) -> bool:
    taken = {_is_understood(amount, before=0), _is_understood(amount, before=64)}
    return any(taken)


@probe(strangers.DNS_QUESTION_S)
def _(amount: int) -> bool:
    """With a byte now and then, and a second as the hundredth of one."""

    async def body() -> bool:
        with ExitStack() as undo:
            patched = undo.enter_context(pytest.MonkeyPatch.context())
            patched.setattr(server_module, "_IDLE_S", server_module._IDLE_S / 100)
            server, to = undo.enter_context(_serving())
            client = await _connect(undo, to, "127.0.0.1")
            loop = asyncio.get_running_loop()
            while not len(server.connections):
                await asyncio.sleep(0)
            began_s = loop.time()
            with suppress(ConnectionError):
                await loop.sock_sendall(client, b"\x0f\xff")
                while (
                    len(server.connections)
                    and amount > strangers.DNS_QUESTION_S.most
                    and loop.time() - began_s < 3 * amount / 100
                ):
                    await loop.sock_sendall(client, b"x")
                    await asyncio.sleep(0.01)
            return bool(len(server.connections))

    return _run(body)


@probe(strangers.DNS_UNSENT)
def _(amount: int) -> bool:
    async def body() -> bool:
        with ExitStack() as undo:
            server, _ = undo.enter_context(_serving())
            ours, theirs = map(undo.enter_context, socket.socketpair())
            ours.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 16))
            connection = server_module._Connection(server, ours, "pod")
            server.connections.put(connection, "10.1.0.2")
            connection._reply(bytes(amount % (1 << 14) + (1 << 14) - 2))
            for _ in range(amount // (1 << 14) - 1):
                connection._reply(bytes((1 << 14) - 2))
            is_held = connection in server.connections
            connection.close()
            assert theirs.fileno() > 0
            return is_held

    return _run(body)


def _wait(amount: int, clients: int) -> bool:
    """All of so many wait, those with them that have come faster than they are answered."""

    async def body() -> bool:
        with ExitStack() as undo:
            server, _ = undo.enter_context(_serving())
            at, client = (
                undo.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(2)
            )
            at.setblocking(False)
            at.bind(("127.0.0.1", 0))
            for _ in range(150):
                client.sendto(_QUESTION, at.getsockname())
            server._read(at)
            turns = server._turns[at]
            assert turns
            who = ["127.0.0.1", *(f"10.1.0.{number}" for number in range(1, clients))]
            more = range(amount - len(turns))
            return all(turns.put(who[n % clients], (_QUESTION, (who[n % clients],))) for n in more)

    return _run(body)


@probe(strangers.DNS_WAITING)
def _(amount: int) -> bool:
    return _wait(amount, clients=200)


@probe(strangers.DNS_WAITING_OF_ONE)
def _(amount: int) -> bool:
    return _wait(amount, clients=1)


def _ready() -> Resolver[Any]:
    return resolver_of(Catalog())


@probe(strangers.DNS_CLIENTS)
def _(amount: int) -> bool:
    """The first one is not looked for again."""
    looked: list[str] = []

    def is_beyond(address: str) -> bool:
        looked.append(address)
        return False

    far = FarClients(is_beyond)
    for number in range(amount):
        far.has(str(number))
    far.has("0")
    return looked.count("0") == 1


@probe(strangers.DNS_READY)
def _(amount: int) -> bool:
    """The first answer is still there."""
    resolver = _ready()
    for number in range(amount):
        name = f"{number:05}".encode()
        question = b"\5" + name + b"\1x\3svc\7cluster\5local\0\0\1\0\1"
        assert resolver.take(_QUESTION[:12] + question, "pod", 0.0) is not None
    first = b"\x0500000\1x\3svc\7cluster\5local\0\0\1\0\1"
    resolver.take(_QUESTION[:12] + first, "pod", 0.0)
    return resolver.counts.ready == 1


def _keeps(resolver: Resolver[Any], key: bytes, *sizes: int) -> bool:
    """An answer with records in so many orders, each of that size."""
    resolver._ready.put(key, [bytes(size + 2) for size in sizes], None)
    return key in resolver._ready.answers


@probe(strangers.DNS_READY_BYTES)
def _(amount: int) -> bool:
    resolver, part = _ready(), strangers.DNS_READY_ANSWER.most // 2
    whole, rest = divmod(amount, part)
    for number, size in enumerate([part] * whole + [rest] * bool(rest)):
        assert _keeps(resolver, str(number).encode(), size)
    return b"0" in resolver._ready.answers


@probe(strangers.DNS_READY_ANSWER)
def _(amount: int) -> bool:
    return _keeps(_ready(), b"name", amount // 2, amount - amount // 2)


@probe(strangers.DNS_READY_QUESTION)
def _(amount: int) -> bool:
    return _keeps(_ready(), b"x" * amount, 100)


def _large(amount: int, *, port: str = "") -> int:
    """How many records are told of a headless Service with so many endpoints."""
    catalog = Catalog()
    catalog.put(Service("x", "a", cluster_ips=("None",)))
    ends = tuple(Endpoint(f"10.1.{number >> 8}.{number & 255}") for number in range(amount))
    catalog.put(EndpointSlice("x", "a-1", "a", 4, (EndpointPort(port, "TCP", 80),), ends))
    names = ClusterNames(catalog, "cluster.local")
    name = (*((b"_" + port.encode(), b"_tcp") if port else ()), b"a", b"x", b"svc")
    found = names.look_up((*name, b"cluster", b"local"), wire.SRV if port else wire.A)
    assert found is not None
    return len(found.records)


@probe(strangers.DNS_ADDRESSES)
def _(amount: int) -> bool:
    return _large(amount) == amount


@probe(strangers.DNS_PORTS)
def _(amount: int) -> bool:
    return _large(amount, port="web") == amount


@probe(strangers.DNS_NAMES)
def _(amount: int) -> bool:
    """Of one address that many headless Services have."""
    catalog = Catalog()
    for number in range(amount):
        catalog.put(Service("x", f"s{number}", cluster_ips=(NONE,)))
        piece = EndpointSlice("x", f"s{number}", f"s{number}", 4, (), (Endpoint("10.1.0.1"),))
        catalog.put(piece)
    names = ClusterNames(catalog, "cluster.local")
    found = names.look_up((b"1", b"0", b"1", b"10", b"in-addr", b"arpa"), wire.PTR)
    return found is not None and len(found.records) == amount


@probe(strangers.DNS_FOUND)
def _(amount: int) -> bool:
    looked, found = _Looked(), Found(wire.NOERROR, (Record((), wire.A, "10.1.0.1"),))
    for number in range(amount):
        looked.put(((str(number).encode(),), wire.A), found)
    return ((b"0",), wire.A) in looked.found


@probe(strangers.DNS_FOUND_RECORDS)
def _(amount: int) -> bool:
    looked, part = _Looked(), (Record((), wire.A, "10.1.0.1"),) * 1024
    for number in range(amount // 1024):
        looked.put(((str(number).encode(),), wire.A), Found(wire.NOERROR, part))
    looked.put(((b"rest",), wire.A), Found(wire.NOERROR, part[: amount % 1024]))
    return ((b"0",), wire.A) in looked.found


def _forwarded(amount: int, clients: int, names: int) -> bool:
    """So many questions of so many clients for so many names wait for an upstream."""
    forwarder: Forwarder[int] = Forwarder(Cache(most_bytes=1000, stale_s=0.0), lambda: 7)
    for probing in forwarder.use([Upstream(ip_address("192.0.2.1"))], 0.0):
        assert isinstance(probing, AskUpstream)
        forwarder.failed(probing.attempt, 0.0)
    assert not forwarder.under_way
    for number in range(amount):
        question = b"\5" + f"{number % names:05}".encode() + b"\0\0\1\0\1"
        query = Query(number & 0xFFFF, 0, question, 512, has_edns=False, wants_dnssec=False)
        told = forwarder.ask(query, number, 0.0, f"10.1.0.{number % clients}")
        if any(isinstance(each, Deliver) for each in told):
            return False
    return True


@probe(strangers.DNS_FORWARDED)
def _(amount: int) -> bool:
    return _forwarded(amount, clients=200, names=1 << 16)


@probe(strangers.DNS_FORWARDED_OF_ONE)
def _(amount: int) -> bool:
    return _forwarded(amount, clients=1, names=1 << 16)


@probe(strangers.DNS_ASKERS)
def _(amount: int) -> bool:
    return _forwarded(amount, clients=200, names=1)
