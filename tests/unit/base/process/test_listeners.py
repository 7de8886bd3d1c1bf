"""Sockets that are listened on, on a kernel that lacks something."""

from __future__ import annotations

import errno
import socket

import pytest

from limpet.base.process.listeners import open_listener


class _WithoutIPv6(socket.socket):
    """As a kernel that was booted with ipv6.disable=1 answers."""

    def __init__(self, family: int = -1, kind: int = -1, *rest: int) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, kind, *rest)


def test_every_address_is_listened_at_where_the_kernel_has_no_ipv6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", _WithoutIPv6)

    with open_listener(("::", 0)) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
    # One of its own is IPv6's alone.
    with pytest.raises(OSError, match="not supported"):
        open_listener(("::1", 0))
