"""Sockets that are listened on, on a kernel that lacks something."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from limpet.base.process import listeners
from limpet.base.process.listeners import open_listener
from tests.beds.descriptors import room_for_descriptors
from tests.unit.cluster.test_membership import on_a_loop
from tests.waiting import until


class WithoutIPv6(socket.socket):
    """As a kernel that was booted with ipv6.disable=1 answers."""

    def __init__(self, family: int = -1, kind: int = -1, *rest: int) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, kind, *rest)


def test_every_address_is_listened_at_where_the_kernel_has_no_ipv6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", WithoutIPv6)

    with open_listener(("::", 0)) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
    # One of its own is IPv6's alone.
    with pytest.raises(OSError, match="not supported"):
        open_listener(("::1", 0))


@on_a_loop
async def test_connections_are_taken_again_once_there_are_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_REST_S", 0.001)
    found: list[socket.socket] = []
    server = listeners.UnixServer(tmp_path / "here.sock", 4, found.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, capture_logs() as logs:
        server.start()
        with room_for_descriptors(0):
            client.connect(str(tmp_path / "here.sock"))
            await until(lambda: logs)
            await asyncio.sleep(0.01)  # it tries again meanwhile, and is refused again
        await until(lambda: found)
        assert [line["log_level"] for line in logs] == ["error"], "it is told once"
        assert not found[0].getblocking()
    found[0].close()
    server.close()
