"""What is said of a port that takes no connection, or breaks it, on loopback."""

from __future__ import annotations

import socket
import struct
import threading
from ipaddress import ip_address

from limpet.cli.netcheck.targets import Observer, controller_target
from limpet.cli.netcheck.tcp import Connected, connect
from tests.unit.cluster.test_membership import on_a_loop

_RESETS = struct.pack("ii", 1, 0)
"""Source: socket(7), SO_LINGER: what is closed then is reset."""


async def connected(port: int) -> Connected:
    target = controller_target(f"127.0.0.1:{port}")
    return await connect(Observer(target, ip_address("127.0.0.1")))


@on_a_loop
async def test_a_port_where_nobody_listens_refuses_in_the_systems_words() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        found = await connected(bound.getsockname()[1])
    assert found.problem == "Connection refused"


@on_a_loop
async def test_a_connection_that_is_reset_amid_tls_is_told_without_numbers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_reset_each, args=(listener,), daemon=True).start()
        found = await connected(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
    assert found.problem == "it connects, and TLS does not come about: Connection reset by peer"


def _reset_each(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(1)  # the first of TLS; or nothing, of the one that only connects
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
