"""Whoever is on the link may answer in the gateway's place, as often as it likes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address

import pytest

from limpet.nat import port_control, upnp
from limpet.nat.port_control_codec import PortControlError
from limpet.nat.upnp_apart import map_apart

_AT_ONCE = 100
_HOSTS = ("127.0.0.1", "127.0.0.2")


def _opened(undo: ExitStack, address: str) -> socket.socket:
    opened = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    opened.bind((address, 0))
    opened.setblocking(False)
    return opened


async def _turns_of_others(asks: Callable[[socket.socket], Awaitable[object]]) -> int:
    """How often others had their turn while so many datagrams of somebody else were looked at."""
    loop, turns = asyncio.get_running_loop(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    with ExitStack() as undo:
        asking, other = _opened(undo, "127.0.0.1"), _opened(undo, "127.0.0.1")
        asking.connect(other.getsockname())
        for _ in range(_AT_ONCE):
            other.sendto(b"no answer", asking.getsockname())
        loop.call_soon(turn)
        task = asyncio.ensure_future(asks(asking))
        while not task.done():
            with suppress(BlockingIOError):
                asking.recv(1, socket.MSG_PEEK)
                await asyncio.sleep(0)
                continue
            break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return turns


_DEVICE = """<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">{}<device>
<deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType><deviceList><device>
<deviceType>urn:schemas-upnp-org:device:WANDevice:1</deviceType><deviceList><device>
<deviceType>urn:schemas-upnp-org:device:WANConnectionDevice:1</deviceType><serviceList><service>
<serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType>
<controlURL>{}</controlURL></service></serviceList></device></deviceList></device></deviceList>
</device></root>"""


@pytest.mark.parametrize("base", ["<URLBase>http://{other}@{gateway}/</URLBase>", ""])
def test_a_gateway_has_nobody_else_asked_whatever_its_description_says(base: str) -> None:
    """By a user's name before its own, which miniupnpc takes for the host: any port of the node's
    loopback, too, had a GET and a POST."""
    with ExitStack() as undo:
        other, gateway = (undo.enter_context(socket.create_server((host, 0))) for host in _HOSTS)
        at = {"other": _at(other), "gateway": _at(gateway)}
        control = "/ctl" if base else "http://{other}@{gateway}/ctl".format(**at)
        body = _DEVICE.format(base.format(**at), control).encode()

        def describe() -> None:
            asked = gateway.accept()[0]
            with asked:
                asked.recv(4096)
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
                asked.sendall(head.encode() + body)

        describing = threading.Thread(target=describe)
        describing.start()
        with pytest.raises(PortControlError, match="controlled elsewhere"):
            map_apart(f"http://{_at(gateway)}/root.xml", 7471, 7471, 3600)
        describing.join()
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def _at(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param(lambda at: upnp._location(at, IPv4Address("192.0.2.1")), id="upnp"),
        pytest.param(lambda at: port_control._ask(at, b"?", lambda _: None), id="pcp, nat-pmp"),
    ],
)
def test_datagrams_that_are_no_answer_keep_nobody_from_their_turn(
    asks: Callable[[socket.socket], Awaitable[object]],
) -> None:
    assert asyncio.run(_turns_of_others(asks)) >= _AT_ONCE
