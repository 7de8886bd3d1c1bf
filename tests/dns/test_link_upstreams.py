"""Name servers that are reached by one link alone, as routers tell of themselves (RFC 8106)."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

import pytest

from limpet.dns.forward.effects import AskUpstream
from limpet.dns.forward.health import Upstream
from limpet.dns.forward.sockets import UpstreamSockets
from tests.beds.namespaces import NetnsFactory, connect_namespaces
from tests.waiting import until


@pytest.mark.parametrize("by_tcp", [False, True], ids=["udp", "tcp"])
@pytest.mark.parametrize("by_name", [True, False], ids=["by its name", "by its number"])
def test_a_server_at_an_address_of_a_link_is_asked_there(
    make_netns: NetnsFactory, by_name: bool, by_tcp: bool
) -> None:
    node, router = make_netns("node"), make_netns("router")
    connect_namespaces(node, "uplink", router, "lan")
    router.ip("address add fe80::1/64 dev lan nodad")
    node.ip("address add fe80::2/64 dev uplink nodad")
    with node.entered():
        zone = "uplink" if by_name else str(socket.if_nametoindex("uplink"))
    heard: list[bytes] = []
    failed: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        writer.close()

    async def scenario() -> None:
        with router.open_socket(6, socket.SOCK_DGRAM) as udp:
            with router.entered():
                udp.bind(("::", 53))
                tcp = await asyncio.start_server(serve, "::", 53)
            udp.setblocking(False)
            with node.entered():
                sockets = UpstreamSockets(lambda _, message: heard.append(message), failed.append)
                asked = AskUpstream(1, 0, b"who", by_tcp=by_tcp)
                sockets.send(asked, Upstream(ip_address(f"fe80::1%{zone}")))
                if not by_tcp:
                    loop = asyncio.get_running_loop()
                    message, sender = await loop.sock_recvfrom(udp, 64)
                    await loop.sock_sendto(udp, message, sender)
                await until(lambda: bool(heard or failed))
                sockets.close_all()
            tcp.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert (heard, failed) == ([b"who"], [])


@pytest.mark.parametrize("zone", ["nowhere", "99999999999", "a\0b", "longer-than-a-links-name"])
def test_a_server_at_a_link_that_is_not_there_fails_and_no_more(zone: str) -> None:
    failed: list[int] = []

    async def scenario() -> None:
        sockets = UpstreamSockets(lambda _attempt, _message: None, failed.append)
        asked = AskUpstream(1, 0, b"who", by_tcp=False)
        sockets.send(asked, Upstream(ip_address(f"fe80::1%{zone}")))
        await until(lambda: failed == [1])
        sockets.close_all()

    asyncio.run(scenario())
