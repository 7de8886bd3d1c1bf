"""WireGuard's userspace protocol: text lines `key=value`, an empty line ends a message.

Source: https://www.wireguard.com/xplatform/, 'Configuration Protocol'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from limpet.model.network import Prefix
from limpet.model.tunnel import (
    KEY_BYTES,
    DeviceReading,
    DeviceSetting,
    Endpoint,
    PeerReading,
    PeerSetting,
    TunnelPeer,
)

GET = b"get=1\n\n"
END = b"\n\n"
"""Ends every question and every answer."""


def encode_set(setting: DeviceSetting) -> bytes:
    """The question that makes the changes; it is answered with an errno only."""
    return ("set=1\n" + "".join(f"{line}\n" for line in _lines(setting)) + "\n").encode("ascii")


def _lines(setting: DeviceSetting) -> Iterator[str]:
    if setting.private_key is not None:
        yield f"private_key={setting.private_key.hex()}"
    if setting.port is not None:
        yield f"listen_port={setting.port}"
    if setting.mark is not None:
        yield f"fwmark={setting.mark}"
    for peer in setting.peers:
        yield from _peer_lines(peer)


def _peer_lines(peer: PeerSetting) -> Iterator[str]:
    yield f"public_key={peer.public_key.hex()}"
    if peer.remove:
        yield "remove=true"
        return
    if peer.endpoint is not None:
        yield f"endpoint={_endpoint_text(peer.endpoint)}"
    if peer.keepalive_s is not None:
        yield f"persistent_keepalive_interval={peer.keepalive_s}"
    for prefix in peer.allowed:
        yield f"allowed_ip={prefix}"


def _endpoint_text(endpoint: Endpoint) -> str:
    address, port = endpoint
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _parse_endpoint(text: str) -> Endpoint:
    host, _, port = text.rpartition(":")
    return ip_address(host.removeprefix("[").removesuffix("]")), int(port)


def parse_errno(answer: bytes) -> int:
    """Positive errno that an answer ends with; 0: it worked. Raises: ValueError."""
    key, _, value = answer.removesuffix(END).rpartition(b"\n")[2].partition(b"=")
    if key != b"errno":
        raise ValueError(f"the answer ends with {bytes(key)[:40]!r} instead of errno")
    return abs(int(value))


@dataclass(slots=True)
class _Peer:
    public_key: bytes
    allowed: set[Prefix] = field(default_factory=set)
    endpoint: Endpoint | None = None
    numbers: dict[str, int] = field(default_factory=dict)

    def reading(self) -> PeerReading:
        numbers = self.numbers
        keepalive_s = numbers.get("persistent_keepalive_interval", 0)
        seconds = numbers.get("last_handshake_time_sec", 0)
        return PeerReading(
            TunnelPeer(self.public_key, frozenset(self.allowed), self.endpoint, keepalive_s),
            seconds * 10**9 + numbers.get("last_handshake_time_nsec", 0),
            numbers.get("rx_bytes", 0),
            numbers.get("tx_bytes", 0),
        )


_PEER_NUMBERS = frozenset(
    {
        "persistent_keepalive_interval",
        "last_handshake_time_sec",
        "last_handshake_time_nsec",
        "rx_bytes",
        "tx_bytes",
    }
)


def parse_get(answer: bytes) -> DeviceReading:
    """What the device says of itself; keys that are not known here are left out.

    Raises: ValueError.
    """
    device: dict[str, str] = {}
    peers: list[_Peer] = []
    for line in answer.decode("ascii").splitlines():
        key, separator, value = line.partition("=")
        if not separator:
            if line:
                raise ValueError(f"a line without `=`: {line[:40]!r}")
        elif key == "public_key":
            peers.append(_Peer(_parse_key(value)))
        elif not peers:
            device[key] = value
        elif key == "allowed_ip":
            peers[-1].allowed.add(ip_network(value))
        elif key == "endpoint":
            peers[-1].endpoint = _parse_endpoint(value)
        elif key in _PEER_NUMBERS:
            peers[-1].numbers[key] = int(value)
    private_key = device.get("private_key", "")
    return DeviceReading(
        _parse_key(private_key) if private_key else b"",
        int(device.get("listen_port", 0)),
        int(device.get("fwmark", 0)),
        {peer.public_key: peer.reading() for peer in peers},
    )


def _parse_key(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return key
