"""Bodies of probes and their answers: bytes <-> values, no sockets. Integers are big-endian.

    PROBE   nonce 8 | asked 1 | sequence 8 | where to answer 16
    ANSWER  nonce 8 | sequence 8 | seen from 16, port 2 | arrived at 16 | way
    way     rung 1 | MTU 2 | underlay 16 | next hops 16, 16 | device 16, filled up with zeros

Addresses are IPv6, those of IPv4 mapped (RFC 4291 section 2.5.5.2); all zeros is none.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

from limpet.model.network import Address
from limpet.model.overlay import PeerPath, Rung
from limpet.model.probe import NONCE_BYTES, Answer, Ask, Probe
from limpet.wire.courier import DatagramError, Drop

_PROBE = struct.Struct(f">{NONCE_BYTES}sBQ16s")
_ANSWER = struct.Struct(f">{NONCE_BYTES}sQ16sH16s67s")
_WAY = struct.Struct(">BH16s16s16s16s")
_RUNGS = {1: Rung.ROUTE, 2: Rung.VXLAN}
_NUMBERS = {rung: number for number, rung in _RUNGS.items()}
_NONE = bytes(16)
_MAPPED = bytes(10) + b"\xff\xff"

_IPV4 = struct.Struct(">BBHHHBBH4s4s")
_IPV6 = struct.Struct(">IHBB16s16s")
_UDP = struct.Struct(">HHHH")
_PSEUDO4 = struct.Struct(">4s4sBBH")
_PSEUDO6 = struct.Struct(">16s16sII")
_PROTOCOL_UDP, _DO_NOT_FRAGMENT, _ONE_HOP = 17, 0x4000, 1


def encode_probe(probe: Probe) -> bytes:
    return _PROBE.pack(probe.nonce, probe.ask, probe.sequence, _encode_address(probe.answer_at))


def parse_probe(body: bytes) -> Probe:
    """Raises: DatagramError."""
    try:
        nonce, ask, sequence, answer_at = _PROBE.unpack(body)
        return Probe(nonce, Ask(ask), sequence, _parse_address(answer_at))
    except (struct.error, ValueError) as error:
        raise DatagramError(Drop.MALFORMED, f"it is no probe: {error}") from error


def encode_answer(answer: Answer) -> bytes:
    return _ANSWER.pack(
        answer.nonce,
        answer.sequence,
        _encode_address(answer.seen_from),
        answer.seen_port,
        _encode_address(answer.arrived_at),
        _encode_way(answer.way),
    )


def parse_answer(body: bytes) -> Answer:
    """Raises: DatagramError."""
    try:
        nonce, sequence, seen_from, port, arrived_at, way = _ANSWER.unpack(body)
        told = _parse_way(way)
    except (struct.error, ValueError) as error:
        raise DatagramError(Drop.MALFORMED, f"it is no answer: {error}") from error
    seen, arrived = _parse_address(seen_from), _parse_address(arrived_at)
    if seen is None or arrived is None:
        raise DatagramError(Drop.MALFORMED, "it is no answer: an address is missing")
    return Answer(nonce, sequence, seen, port, arrived, told)


def _encode_way(way: PeerPath | None) -> bytes:
    if way is None:
        return bytes(_WAY.size)
    hops = [_encode_address(each) for each in way.next_hops[:2]]
    return _WAY.pack(
        _NUMBERS[way.rung],
        min(way.mtu_bytes, 0xFFFF),
        _encode_address(way.underlay),
        *(hops + [_NONE] * (2 - len(hops))),
        way.device.encode(errors="replace"),
    )


def _parse_way(data: bytes) -> PeerPath | None:
    """Raises: ValueError."""
    number, mtu_bytes, underlay, *hops, device = _WAY.unpack(data)
    if not number:
        return None
    if number not in _RUNGS:
        raise ValueError(f"no rung has the number {number}")
    found = (_parse_address(hop) for hop in hops)
    return PeerPath(
        _RUNGS[number],
        mtu_bytes,
        device.rstrip(b"\0").decode(),
        tuple(hop for hop in found if hop is not None),
        _parse_address(underlay),
    )


def _encode_address(address: Address | None) -> bytes:
    if address is None:
        return _NONE
    return address.packed if address.version == 6 else _MAPPED + address.packed


def _parse_address(packed: bytes) -> Address | None:
    if packed == _NONE:
        return None
    return IPv4Address(packed[12:]) if packed.startswith(_MAPPED) else IPv6Address(packed)


def udp_packet(
    source: Address, destination: Address, source_port: int, destination_port: int, payload: bytes
) -> bytes:
    """An IP packet of the addresses' version that no router forwards.

    Source: RFC 791, RFC 8200, RFC 768.
    """
    length = _UDP.size + len(payload)
    here, there = source.packed, destination.packed
    if source.version == 4:
        head = _ipv4_header(_IPV4.size + length, here, there)
        pseudo = _PSEUDO4.pack(here, there, 0, _PROTOCOL_UDP, length)
    else:
        head = _IPV6.pack(6 << 28, length, _PROTOCOL_UDP, _ONE_HOP, here, there)
        pseudo = _PSEUDO6.pack(here, there, length, _PROTOCOL_UDP)
    blank = _UDP.pack(source_port, destination_port, length, 0)
    # Zero would mean that there is no checksum.
    total = checksum(pseudo + blank + payload) or 0xFFFF
    return head + _UDP.pack(source_port, destination_port, length, total) + payload


def _ipv4_header(length: int, source: bytes, destination: bytes) -> bytes:
    def header(total: int) -> bytes:
        return _IPV4.pack(
            0x45,
            0,
            length,
            0,
            _DO_NOT_FRAGMENT,
            _ONE_HOP,
            _PROTOCOL_UDP,
            total,
            source,
            destination,
        )

    return header(checksum(header(0)))


def checksum(data: bytes) -> int:
    """Of the Internet protocols: zero over data that has its checksum in it. Source: RFC 1071."""
    padded = data + b"\0" * (len(data) % 2)
    # Adding with end-around carry is arithmetic modulo 2**16 - 1, where 2**16 is one.
    total = int.from_bytes(padded, "big") % 0xFFFF
    # Of nothing but zeros the sum is 0; of anything else that is divisible it is 0xFFFF.
    return 0xFFFF - (total or (0xFFFF if any(data) else 0))
