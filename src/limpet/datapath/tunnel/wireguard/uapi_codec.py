"""WireGuard's userspace protocol: text lines `key=value`, an empty line ends a message.

Source: https://www.wireguard.com/xplatform/, 'Configuration Protocol'.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from limpet.base.addresses import Endpoint, Prefix, endpoint_text
from limpet.datapath.tunnel.state import (
    KEY_BYTES,
    DeviceReading,
    DeviceSetting,
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
        yield f"endpoint={endpoint_text(peer.endpoint)}"
    if peer.keepalive_s is not None:
        yield f"persistent_keepalive_interval={peer.keepalive_s}"
    for prefix in peer.allowed:
        yield f"allowed_ip={prefix}"


def _parse_endpoint(text: str) -> Endpoint:
    host, _, port = text.rpartition(":")
    return ip_address(host.removeprefix("[").removesuffix("]")), int(port)


def parse_errno(answer: bytes) -> int:
    """Positive errno that an answer ends with; 0: it worked. Raises: ValueError."""
    key, _, value = answer.removesuffix(END).rpartition(b"\n")[2].partition(b"=")
    if key != b"errno":
        raise ValueError(f"the answer ends with {bytes(key)[:40]!r} instead of errno")
    return abs(int(value))


_PEER_BEGINS = "\npublic_key="
_PEER_NUMBERS = frozenset(
    {
        "persistent_keepalive_interval",
        "last_handshake_time_sec",
        "last_handshake_time_nsec",
        "rx_bytes",
        "tx_bytes",
    }
)


def parse_get(answer: bytes, known: dict[str, PeerReading] | None = None) -> DeviceReading:
    """What the device says of itself; keys that are not known here are left out.

    `known`: peers of the last answer by their text, who are not read again while it is the same;
    afterwards those of this one. Raises: ValueError.
    """
    head, *texts = ("\n" + answer.decode("ascii")).split(_PEER_BEGINS)
    before = known if known is not None else {}
    found = {text: before.get(text) or _parse_peer(text) for text in texts}
    if known is not None:
        known.clear()
        known.update(found)
    device = dict(_pairs(head))
    private_key = device.get("private_key", "")
    return DeviceReading(
        _parse_key(private_key) if private_key else b"",
        int(device.get("listen_port", 0)),
        int(device.get("fwmark", 0)),
        {reading.peer.public_key: reading for reading in found.values()},
    )


def _parse_peer(text: str) -> PeerReading:
    """A peer from its key and what follows. Raises: ValueError."""
    public_key, _, rest = text.partition("\n")
    allowed: list[Prefix] = []
    endpoint: Endpoint | None = None
    numbers: dict[str, int] = {}
    for key, value in _pairs(rest):
        if key == "allowed_ip":
            allowed.append(ip_network(value))
        elif key == "endpoint":
            endpoint = _parse_endpoint(value)
        elif key in _PEER_NUMBERS:
            numbers[key] = int(value)
    keepalive_s = numbers.get("persistent_keepalive_interval", 0)
    seconds = numbers.get("last_handshake_time_sec", 0)
    return PeerReading(
        TunnelPeer(_parse_key(public_key), frozenset(allowed), endpoint, keepalive_s),
        seconds * 10**9 + numbers.get("last_handshake_time_nsec", 0),
        numbers.get("rx_bytes", 0),
        numbers.get("tx_bytes", 0),
    )


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Key and value of each line. Raises: ValueError."""
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            yield key, value
        elif line:
            raise ValueError(f"a line without `=`: {line[:40]!r}")


def _parse_key(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return key
