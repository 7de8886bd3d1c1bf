"""Sockets that are listened on, on a kernel that lacks something."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from limpet.base.process import listeners
from limpet.base.process.listeners import open_listener
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
    accept, refused = socket.socket.accept, 0

    def accept_later(listener: socket.socket) -> tuple[socket.socket, Any]:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    found: list[socket.socket] = []
    server = listeners.UnixServer(tmp_path / "here.sock", 4, found.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, capture_logs() as logs:
        server.start()
        client.connect(str(tmp_path / "here.sock"))
        await until(lambda: found)
        assert refused == 3
        assert [line["log_level"] for line in logs] == ["warning"], "it is told once"
        assert not found[0].getblocking()
    found[0].close()
    server.close()
