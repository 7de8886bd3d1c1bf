"""A server without descriptors for those who come waits, and serves them when it has some."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from limpet.dns.resolver import Resolver
from limpet.dns.server import DnsServer
from limpet.services.catalog import Catalog
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
