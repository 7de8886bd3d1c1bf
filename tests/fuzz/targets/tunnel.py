"""What programs that make tunnels say: wireguard-go in its text protocol, strongSwan by VICI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from limpet.datapath.tunnel.ipsec.codec import (
    connection_name,
    parse_connections,
    parse_name,
    parse_sas,
    parse_version,
)
from limpet.datapath.tunnel.wireguard import uapi_codec as uapi
from tests.fuzz.target import Shape, fuzzed

_PEER = bytes(range(32))
_ANSWER = b"""\
private_key=e84b5a6d2717c1003a13b431570353dbaca9146cf150c5f8575680feba52027a
listen_port=12912
fwmark=4096
public_key=b85996fecc9c7f1fc6d2572a76eda11d59bcd20be8e543b15ce4bd85a8e75a33
endpoint=[abcd:23::33]:51820
last_handshake_time_sec=1
last_handshake_time_nsec=5
tx_bytes=38333
rx_bytes=2224
persistent_keepalive_interval=25
allowed_ip=192.168.4.4/32
allowed_ip=fd00::/64
public_key=58402e695ba1772b1cc9309755f043251ea77fdcf10fbe63989ceb7e19321376
endpoint=182.122.22.19:3233
errno=0

"""


@fuzzed(seeds=lambda: [_ANSWER, b"errno=-98\n\n"], errors=(ValueError,), shape=Shape.TEXT)
def wireguard_in_text(data: bytes) -> None:
    known: dict[str, Any] = {}
    first = uapi.parse_get(data, known)
    assert uapi.parse_get(data, known) == first
    uapi.parse_errno(data)


_NAME = connection_name(_PEER, 3)
_CONNECTION = {
    "children": {"limpet": {"remote-ts": ["10.1.0.0/24", "fd00::/64"]}, "more": {"remote-ts": []}},
    "remote-1": {"id": "theirs"},
}
_SA = {
    "uniqueid": "3",
    "state": "ESTABLISHED",
    "initiator": "yes",
    "remote-host": "192.0.2.1",
    "remote-port": "4500",
    "initiator-spi": "00ff",
    "established": "7",
    "child-sas": {
        "limpet-1": {
            "uniqueid": "4",
            "state": "INSTALLED",
            "local-ts": ["0.0.0.0/0"],
            "remote-ts": ["10.1.0.0/24"],
            "bytes-in": "900",
            "bytes-out": "800",
        }
    },
}


def _documents() -> Iterator[bytes]:
    yield msgspec.json.encode([{_NAME: _CONNECTION}])
    yield msgspec.json.encode([{_NAME: _SA}])
    yield msgspec.json.encode([{"version": "5.9.8", "daemon": "charon"}])


def _in_bytes(tree: Any) -> Any:
    """As the VICI package gives it: every value is bytes, every name is text."""
    if isinstance(tree, dict):
        return {name: _in_bytes(each) for name, each in tree.items()}
    if isinstance(tree, list):
        return [_in_bytes(each) for each in tree]
    return str(tree).encode(errors="surrogatepass")


@fuzzed(
    seeds=_documents,
    errors=(ValueError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError),
    shape=Shape.JSON,
)
def ike_daemon(data: bytes) -> None:
    events = [
        {name: _in_bytes(each) for name, each in event.items()}
        for event in msgspec.json.decode(data, type=list[dict[str, Any]])
    ]
    for each in events:
        for name in each:
            parse_name(name)
    for parse in (parse_connections, parse_sas):
        try:
            parse(events)
        except ValueError:
            continue
    for each in events:
        if "version" in each:
            parse_version(each)
