"""Bodies of probes and their answers: bytes <-> values, no sockets. Integers are big-endian.

    PROBE   nonce 8 | asked 1 | flags 1 | sequence 8 | where to answer 16 | zeros, any number
    ANSWER  nonce 8 | sequence 8 | seen from 16, port 2 | arrived at 16 | way
    way     nothing, if there is none, else number of the transport 1 | MTU 2, and of one proven by
            OVERLAY  underlay 16 | next hops 16, 16 | device 16, filled up with zeros
            SITE     underlay 16
            TUNNEL   endpoint 16, port 2 | uid of the relay 15

Addresses are IPv6, those of IPv4 mapped (RFC 4291 section 2.5.5.2); all zeros is none.
"""

from __future__ import annotations

import struct

from limpet.base.addresses import Address, in_16_bytes, of_16_bytes
from limpet.cluster.datagrams.peer_datagram import (
    OVERHEAD_BYTES,
    UID_BYTES,
    DatagramError,
    DropReason,
    uid_bytes,
    uid_text,
)
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind
from limpet.linux.packets.frames import ip_packet
from limpet.paths.probe.messages import NONCE_BYTES, Probe, ProbeAnswer

_PROBE = struct.Struct(f">{NONCE_BYTES}sBBQ16s")
_PUNCH, _RELAYED, _IN_USE = 1, 2, 4
_ANSWER = struct.Struct(f">{NONCE_BYTES}sQ16sH16s")
_WAY = struct.Struct(">BH")
_ROUTE = struct.Struct(">16s16s16s16s")
_VXLAN = struct.Struct(">16s")
_TUNNELLED = struct.Struct(f">16sH{UID_BYTES}s")
_NONE = bytes(16)

_IP_BYTES = {4: 20, 6: 40}
_UDP = struct.Struct(">HHHH")
_PROTOCOL_UDP = 17


def encode_probe(probe: Probe) -> bytes:
    flags = _PUNCH * probe.punch | _RELAYED * probe.relayed | _IN_USE * probe.in_use
    answer_at = _encode_address(probe.answer_at)
    head = _PROBE.pack(probe.nonce, probe.kind, flags, probe.sequence, answer_at)
    return head + bytes(probe.padding_bytes)


def padding_for(packet_bytes: int, version: int) -> int:
    """Padding of a probe whose whole IP packet is so large, or the smallest that there is."""
    headers = _IP_BYTES[version] + _UDP.size
    return max(packet_bytes - headers - OVERHEAD_BYTES - _PROBE.size, 0)


def parse_probe(body: bytes) -> Probe:
    """Raises: DatagramError."""
    try:
        nonce, ask, flags, sequence, answer_at = _PROBE.unpack_from(body)
        return Probe(
            nonce,
            ProbeKind(ask),
            sequence,
            _parse_address(answer_at),
            punch=bool(flags & _PUNCH),
            relayed=bool(flags & _RELAYED),
            in_use=bool(flags & _IN_USE),
            padding_bytes=len(body) - _PROBE.size,
        )
    except (struct.error, ValueError) as error:
        raise DatagramError(DropReason.MALFORMED, f"it is no probe: {error}") from error


def encode_answer(answer: ProbeAnswer) -> bytes:
    head = _ANSWER.pack(
        answer.nonce,
        answer.sequence,
        _encode_address(answer.seen_from),
        answer.seen_port,
        _encode_address(answer.arrived_at),
    )
    return head + _encode_way(answer.way)


def parse_answer(body: bytes) -> ProbeAnswer:
    """Raises: DatagramError."""
    try:
        nonce, sequence, seen_from, port, arrived_at = _ANSWER.unpack_from(body)
        told = _parse_way(body[_ANSWER.size :])
    except (struct.error, ValueError) as error:
        raise DatagramError(DropReason.MALFORMED, f"it is no answer: {error}") from error
    seen, arrived = _parse_address(seen_from), _parse_address(arrived_at)
    if seen is None or arrived is None:
        raise DatagramError(DropReason.MALFORMED, "it is no answer: an address is missing")
    return ProbeAnswer(nonce, sequence, seen, port, arrived, told)


def _encode_way(way: PeerPath | None) -> bytes:
    if way is None:
        return b""
    head = _WAY.pack(way.rung.number, min(way.mtu_bytes, 0xFFFF))
    if way.rung.proof is ProbeKind.TUNNEL:
        address, port = way.endpoint if way.endpoint is not None else (None, 0)
        relay = uid_bytes(way.relay) if way.relay else bytes(UID_BYTES)
        return head + _TUNNELLED.pack(_encode_address(address), port, relay)
    underlay = _encode_address(way.underlay)
    if way.rung.proof is ProbeKind.SITE:
        return head + _VXLAN.pack(underlay)
    hops = [_encode_address(each) for each in way.next_hops[:2]]
    hops += [_NONE] * (2 - len(hops))
    return head + _ROUTE.pack(underlay, *hops, way.device.encode(errors="replace"))


def _parse_way(data: bytes) -> PeerPath | None:
    """Raises: ValueError, struct.error."""
    if not data:
        return None
    number, mtu_bytes = _WAY.unpack_from(data)
    rung, rest = transports.numbered(number), data[_WAY.size :]
    if rung.proof is ProbeKind.TUNNEL:
        packed, port, raw = _TUNNELLED.unpack(rest)
        address = _parse_address(packed)
        relay = uid_text(raw) if any(raw) else ""
        end = None if address is None else (address, port)
        return PeerPath(rung, mtu_bytes, endpoint=end, relay=relay)
    if rung.proof is ProbeKind.SITE:
        return PeerPath(rung, mtu_bytes, underlay=_parse_address(*_VXLAN.unpack(rest)))
    underlay, *hops, device = _ROUTE.unpack(rest)
    found = (_parse_address(hop) for hop in hops)
    return PeerPath(
        rung,
        mtu_bytes,
        device.rstrip(b"\0").decode(),
        tuple(hop for hop in found if hop is not None),
        _parse_address(underlay),
    )


def _encode_address(address: Address | None) -> bytes:
    return _NONE if address is None else in_16_bytes(address)


def _parse_address(packed: bytes) -> Address | None:
    return None if packed == _NONE else of_16_bytes(packed)


def udp_packet(
    source: Address, destination: Address, source_port: int, destination_port: int, payload: bytes
) -> bytes:
    """An IP packet of the addresses' version that no router forwards. Source: RFC 768."""
    head = _UDP.pack(source_port, destination_port, _UDP.size + len(payload), 0)
    return ip_packet(
        source, destination, _PROTOCOL_UDP, head + payload, checksum_at=_UDP.size - 2, hops=1
    )
