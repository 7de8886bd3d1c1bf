"""The kernel's WireGuard by generic netlink: messages <-> values.

Source: include/uapi/linux/{wireguard,genetlink}.h, drivers/net/wireguard/netlink.c.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from limpet.base.addresses import Address, Endpoint, Prefix
from limpet.datapath.tunnel.state import (
    KEY_BYTES,
    DeviceReading,
    DeviceSetting,
    PeerReading,
    PeerSetting,
    TunnelPeer,
)
from limpet.linux.netlink.codec import (
    AF_INET,
    AF_INET6,
    ROOT_MATCH,
    Message,
    Request,
    attr,
    attr_text,
    attr_u32,
    nest,
    parse_attrs,
)

NETLINK_GENERIC = 16
FAMILY = "wireguard"
_GENL_ID_CTRL, _CTRL_CMD_GETFAMILY = 0x10, 3
_CTRL_ATTR_FAMILY_ID, _CTRL_ATTR_FAMILY_NAME = 1, 2
_GET_DEVICE, _SET_DEVICE = 0, 1
_VERSION = 1

_IFNAME, _PRIVATE_KEY, _LISTEN_PORT, _FWMARK, _PEERS = 2, 3, 6, 7, 8
_PEER_PUBLIC_KEY, _PEER_FLAGS, _PEER_ENDPOINT, _PEER_KEEPALIVE = 1, 3, 4, 5
_PEER_LAST_HANDSHAKE, _PEER_RX_BYTES, _PEER_TX_BYTES, _PEER_ALLOWEDIPS = 6, 7, 8, 9
_REMOVE_ME = 1
_ALLOWED_FAMILY, _ALLOWED_ADDRESS, _ALLOWED_LENGTH = 1, 2, 3

_GENL = struct.Struct("=BBxx")
_U16 = struct.Struct("=H")
_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")
_TIMESPEC = struct.Struct("=qq")
_SOCKADDR_IN = struct.Struct("=H2s4s8x")
_SOCKADDR_IN6 = struct.Struct("=H2sI16sI")
_ATTR = struct.Struct("=HH")
_PEERS_BYTES = 16 << 10
"""Bytes of peers per message; a nest must not exceed 64 KiB, nor a datagram the socket's buffer."""
_PREFIXES = 256
"""Prefixes of one peer in one message."""


def get_family(name: str = FAMILY) -> Request:
    """Asks for the family's number; the kernel loads the family's module for it."""
    body = _GENL.pack(_CTRL_CMD_GETFAMILY, _VERSION) + attr_text(_CTRL_ATTR_FAMILY_NAME, name)
    return Request(_GENL_ID_CTRL, 0, body, ("netlink family", name))


def parse_family(message: Message) -> int:
    """The number that the family's messages have as their type. Raises: ValueError."""
    payload = parse_attrs(message.body, _GENL.size).get(_CTRL_ATTR_FAMILY_ID, b"")
    if len(payload) != _U16.size:
        raise ValueError("an answer without the family's number")
    return int(_U16.unpack(payload)[0])


def dump_device(family: int, ifname: str) -> Request:
    body = _GENL.pack(_GET_DEVICE, _VERSION) + attr_text(_IFNAME, ifname)
    return Request(family, ROOT_MATCH, body, ("WireGuard device", ifname))


# Settings.


def set_device(family: int, ifname: str, setting: DeviceSetting) -> list[Request]:
    """The changes, in order, in as many messages as they need."""
    own = b"".join(
        (
            b"" if setting.private_key is None else attr(_PRIVATE_KEY, setting.private_key),
            b"" if setting.port is None else attr(_LISTEN_PORT, _U16.pack(setting.port)),
            b"" if setting.mark is None else attr_u32(_FWMARK, setting.mark),
        )
    )
    name = attr_text(_IFNAME, ifname)
    requests: list[Request] = []
    for peers in _grouped(peer for each in setting.peers for peer in _encode_peer(each)):
        body = _GENL.pack(_SET_DEVICE, _VERSION) + name
        body += b"" if requests else own
        body += nest(_PEERS, *peers) if peers else b""
        requests.append(Request(family, 0, body, ("WireGuard device", ifname)))
    return requests


def _grouped(peers: Iterable[bytes]) -> Iterator[list[bytes]]:
    """In groups that fit a message; one that is empty if there are none."""
    group: list[bytes] = []
    size = 0
    for peer in peers:
        if group and size + len(peer) > _PEERS_BYTES:
            yield group
            group, size = [], 0
        group.append(peer)
        size += len(peer)
    yield group


def _encode_peer(peer: PeerSetting) -> Iterator[bytes]:
    """The peer, and again for prefixes that are too many for one message."""
    key = attr(_PEER_PUBLIC_KEY, peer.public_key)
    if peer.remove:
        yield nest(0, key, attr_u32(_PEER_FLAGS, _REMOVE_ME))
        return
    first = peer.allowed[:_PREFIXES]
    yield nest(
        0,
        key,
        b"" if peer.endpoint is None else attr(_PEER_ENDPOINT, _encode_endpoint(peer.endpoint)),
        b"" if peer.keepalive_s is None else attr(_PEER_KEEPALIVE, _U16.pack(peer.keepalive_s)),
        *_encode_allowed(first),
    )
    for start in range(_PREFIXES, len(peer.allowed), _PREFIXES):
        yield nest(0, key, *_encode_allowed(peer.allowed[start : start + _PREFIXES]))


def _encode_allowed(prefixes: tuple[Prefix, ...]) -> Iterator[bytes]:
    if prefixes:
        yield nest(
            _PEER_ALLOWEDIPS,
            *(
                nest(
                    0,
                    attr(_ALLOWED_FAMILY, _U16.pack(AF_INET if each.version == 4 else AF_INET6)),
                    attr(_ALLOWED_ADDRESS, each.network_address.packed),
                    attr(_ALLOWED_LENGTH, bytes([each.prefixlen])),
                )
                for each in prefixes
            ),
        )


def _encode_endpoint(endpoint: Endpoint) -> bytes:
    address, port = endpoint
    port_bytes = port.to_bytes(2, "big")
    if isinstance(address, IPv4Address):
        return _SOCKADDR_IN.pack(AF_INET, port_bytes, address.packed)
    return _SOCKADDR_IN6.pack(AF_INET6, port_bytes, 0, address.packed, int(address.scope_id or 0))


# Readings.


def parse_device(
    messages: Iterable[Message], known: dict[bytes, PeerReading] | None = None
) -> DeviceReading:
    """What the device says of itself in all answers to a dump. Raises: ValueError.

    `known`: peers of the last dump by their bytes, who are not read again while these are the same;
    afterwards those of this one. A peer whose prefixes do not fit goes on in the next message, with
    its key only.
    """
    private_key, port, mark = b"", 0, 0
    before = known if known is not None else {}
    found: dict[bytes, PeerReading] = {}
    peers: dict[bytes, PeerReading] = {}
    for message in messages:
        attrs = parse_attrs(message.body, _GENL.size)
        private_key = attrs.get(_PRIVATE_KEY, private_key)
        port = _number(attrs.get(_LISTEN_PORT), _U16) or port
        mark = _number(attrs.get(_FWMARK), _U32) or mark
        for item in _items(attrs.get(_PEERS, b"")):
            found[item] = before.get(item) or _parse_peer(parse_attrs(memoryview(item), 0))
            reading = found[item]
            key = reading.peer.public_key
            peers[key] = _continued(peers[key], reading) if key in peers else reading
    if known is not None:
        known.clear()
        known.update(found)
    return DeviceReading(private_key, port, mark, peers)


def _continued(begun: PeerReading, rest: PeerReading) -> PeerReading:
    peer = begun.peer
    allowed = peer.allowed | rest.peer.allowed
    whole = TunnelPeer(peer.public_key, allowed, peer.endpoint, peer.keepalive_s)
    return PeerReading(whole, begun.last_handshake_ns, begun.received_bytes, begun.sent_bytes)


def _items(payload: bytes) -> Iterator[bytes]:
    """The members of an array, which may all be of one kind."""
    offset = 0
    while offset + 4 <= len(payload):
        length, _ = _ATTR.unpack_from(payload, offset)
        if length < 4 or offset + length > len(payload):
            raise ValueError("an array of a WireGuard device that is cut short")
        yield payload[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def _parse_peer(attrs: dict[int, bytes]) -> PeerReading:
    key = attrs.get(_PEER_PUBLIC_KEY, b"")
    if len(key) != KEY_BYTES:
        raise ValueError(f"a peer with a key of {len(key)} bytes")
    handshake = attrs.get(_PEER_LAST_HANDSHAKE, b"")
    seconds, nanoseconds = _TIMESPEC.unpack(handshake) if len(handshake) == 16 else (0, 0)
    return PeerReading(
        TunnelPeer(
            key,
            frozenset(map(_parse_allowed, _items(attrs.get(_PEER_ALLOWEDIPS, b"")))),
            _parse_endpoint(attrs.get(_PEER_ENDPOINT, b"")),
            _number(attrs.get(_PEER_KEEPALIVE), _U16),
        ),
        seconds * 10**9 + nanoseconds,
        _number(attrs.get(_PEER_RX_BYTES), _U64),
        _number(attrs.get(_PEER_TX_BYTES), _U64),
    )


def _parse_allowed(item: bytes) -> Prefix:
    attrs = parse_attrs(memoryview(item), 0)
    packed, length = attrs.get(_ALLOWED_ADDRESS, b""), attrs.get(_ALLOWED_LENGTH, b"")
    if len(length) != 1 or len(packed) not in (4, 16):
        raise ValueError("an allowed prefix without address or length")
    kind = IPv4Network if len(packed) == 4 else IPv6Network
    return kind((packed, length[0]))


def _parse_endpoint(payload: bytes) -> Endpoint | None:
    address: Address
    if len(payload) == _SOCKADDR_IN.size:
        _, port, packed = _SOCKADDR_IN.unpack(payload)
        return IPv4Address(packed), int.from_bytes(port, "big")
    if len(payload) == _SOCKADDR_IN6.size:
        _, port, _, packed, scope = _SOCKADDR_IN6.unpack(payload)
        address = IPv6Address(packed)
        return (
            IPv6Address(f"{address}%{scope}") if scope else address,
            int.from_bytes(port, "big"),
        )
    return None


def _number(payload: bytes | None, form: struct.Struct) -> int:
    return int(form.unpack(payload)[0]) if payload is not None and len(payload) == form.size else 0
