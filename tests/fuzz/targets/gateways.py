"""Answers of NAT gateways to requests for a port, and of devices that call themselves such."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address

from limpet.nat import port_control_codec as codec
from limpet.nat.port_control_codec import PortControlError
from tests.fuzz.target import Shape, fuzzed

_NONCE, _PORT = b"n" * 12, 51820


def _pcp() -> Iterator[bytes]:
    outside = bytes(10) + b"\xff\xff" + bytes((192, 0, 2, 7))
    for result in (0, 2, 8, 255):
        head = struct.pack(">BBBBII12x", 2, 0x81, 0, result, 3600, 77)
        yield head + struct.pack(">12sB3xHH16s", _NONCE, 17, _PORT, 40001, outside)
    yield struct.pack(">BBBB", 0, 0x81, 0, 1)


@fuzzed(seeds=_pcp, errors=(PortControlError,), most_bytes=1100)
def pcp_answer(data: bytes) -> None:
    codec.parse_pcp_map(data, _NONCE, _PORT)


def _pmp() -> Iterator[bytes]:
    for result in (0, 3, 99):
        yield struct.pack(">BBHI4s", 0, 128, result, 77, IPv4Address("192.0.2.7").packed)
        yield struct.pack(">BBHIHHI", 0, 129, result, 77, _PORT, 40001, 3600)


@fuzzed(seeds=_pmp, errors=(PortControlError,), most_bytes=1100)
def pmp_answer(data: bytes) -> None:
    codec.parse_pmp_map(data, _PORT)
    codec.parse_pmp_address(data)


_FOUND = b"""\
HTTP/1.1 200 OK\r
CACHE-CONTROL: max-age=120\r
ST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r
LOCATION: http://192.0.2.254:5000/rootDesc.xml\r
SERVER: Debian UPnP/1.1\r
\r
"""


@fuzzed(seeds=lambda: [_FOUND], shape=Shape.TEXT)
def upnp_device(data: bytes) -> None:
    found = codec.parse_location(data, ip_address("192.0.2.254"))
    assert not found or found.startswith("http://192.0.2.254")
