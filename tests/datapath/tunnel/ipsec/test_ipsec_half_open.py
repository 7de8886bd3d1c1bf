"""Key exchanges that strangers begin and never end, at strongSwan's own daemon."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import vici

from limpet.base.bounds import strangers
from limpet.datapath.tunnel.ipsec import codec
from limpet.datapath.tunnel.ipsec.codec import daemon_settings
from tests.beds.tunnel_bed import TunnelBed
from tests.datapath.tunnel.ipsec.ipsec_bed import IpsecTunnel
from tests.waiting import PATIENCE_S, wait_until

_COOKIE, _NO_MORE = 16390, 0
_NOTIFY, _SA = 41, 33
_SUITE = (  # As in our proposal: AES-GCM with 128 bits, HMAC-SHA-256, curve25519.
    b"\3\0\0\x0c\1\0\0\x14\x80\x0e\0\x80\3\0\0\x08\2\0\0\5\0\0\0\x08\4\0\0\x1f"
)


def _payload(following: int, body: bytes) -> bytes:
    """Source: RFC 7296 section 3.2."""
    return struct.pack(">BxH", following, 4 + len(body)) + body


def _begin(spi: bytes, cookie: bytes = b"") -> bytes:
    """IKE_SA_INIT behind the marker that it has on a shared port (RFC 3948)."""
    proposal = struct.pack(">BxHBBBB", 0, 8 + len(_SUITE), 1, 1, 0, 3) + _SUITE
    body = _payload(34, proposal)
    body += _payload(40, struct.pack(">Hxx", 31) + os.urandom(32))
    body += _payload(_NO_MORE, os.urandom(32))
    first = _SA
    if cookie:
        first, body = _NOTIFY, _payload(_SA, struct.pack(">BBH", 0, 0, _COOKIE) + cookie) + body
    head = struct.pack(">8s8xBBBBII", spi, first, 0x20, 34, 8, 0, 28 + len(body))
    return bytes(4) + head + body


class Stranger:
    """Begins key exchanges from one address."""

    def __init__(self, bed: TunnelBed, address: str) -> None:
        node = bed.tunnels[0]
        self._to = (str(bed.endpoint(node, 4)[0]), bed.endpoint(node, 4)[1])
        bed.middle.ip(f"addr add {address}/32 dev lo")
        with bed.middle.entered():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bed.undo.callback(self._socket.close)
        self._socket.bind((address, 0))
        self._socket.settimeout(PATIENCE_S)
        assert isinstance(node, IpsecTunnel)
        self._daemon = node.daemon

    def begins(self, *, proves: bool = True) -> str:
        """What comes of one more: `half open`, `cookie` (and it is not shown)."""
        spi = os.urandom(8)
        kind, body = self._converse(_begin(spi))
        if kind == _NOTIFY and struct.unpack_from(">H", body, 6)[0] == _COOKIE:
            if not proves:
                return "cookie"
            length = struct.unpack_from(">H", body, 2)[0]
            kind, body = self._converse(_begin(spi, body[8:length]))
        return "half open" if kind == _SA else f"a payload of type {kind}"

    def is_dropped(self) -> bool:
        """Whether one more, by who shows a cookie, is answered by nothing."""
        spi = os.urandom(8)
        kind, body = self._converse(_begin(spi))
        length = struct.unpack_from(">H", body, 2)[0]
        assert kind == _NOTIFY
        self._socket.sendto(_begin(spi, body[8:length]), self._to)
        # Of a version that there is not: who receives answers that itself, behind what it drops,
        # and what it does not drop is in a queue then.
        probe = os.urandom(8)
        head = struct.pack(">8s8xBBBBII", probe, _NO_MORE, 0x30, 34, 8, 0, 28)
        self._socket.sendto(bytes(4) + head, self._to)
        if self._socket.recv(4096)[4:12] != probe:
            return False
        with self._daemon.process.connect(PATIENCE_S) as connection:
            session = vici.Session(connection)
            wait_until(lambda: not _queued(session.stats()))
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(PATIENCE_S)
        return False

    def _converse(self, asked: bytes) -> tuple[int, bytes]:
        """First payload of the answer."""
        self._socket.sendto(asked, self._to)
        said = self._socket.recv(4096)[4:]
        assert said[:8] == asked[4:12]
        return said[16], said[28:]


def _queued(stats: dict[str, Any]) -> int:
    return sum(int(each) for each in stats["queues"].values())


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TunnelBed]:
    """With a daemon whose bounds are some few: the settings have ours, as the last test shows."""
    for name, most in (("IKE_UNPROVEN", 8), ("IKE_HALF_OPEN_OF_ONE", 12), ("IKE_HALF_OPEN", 20)):
        monkeypatch.setattr(codec, name, replace(getattr(strangers, name), most=most))
    bed = TunnelBed(2, tmp_path, kind=IpsecTunnel)
    with bed.undo:
        yield bed


def test_who_ends_no_key_exchange_has_so_many_and_all_together_have_so_many(bed: TunnelBed) -> None:
    one = Stranger(bed, "198.51.100.1")
    assert [one.begins() for _ in range(8)] == ["half open"] * 8
    assert one.begins(proves=False) == "cookie"
    assert [one.begins() for _ in range(4)] == ["half open"] * 4
    assert one.is_dropped()
    other = Stranger(bed, "198.51.100.2")
    assert [other.begins() for _ in range(8)] == ["half open"] * 8
    assert other.is_dropped()


def test_the_settings_have_the_bounds() -> None:
    text = daemon_settings("/run/x", port=4500, mark=1, bridge="b")
    found = dict(re.findall(r"^  (\w+) = (\d+)$", text, re.MULTILINE))
    assert int(found["cookie_threshold"]) == strangers.IKE_UNPROVEN.most
    assert int(found["block_threshold"]) == strangers.IKE_HALF_OPEN_OF_ONE.most
    assert int(found["init_limit_half_open"]) == strangers.IKE_HALF_OPEN.most
    assert int(found["half_open_timeout"]) == strangers.IKE_HALF_OPEN_S.most
