"""Datagrams of PCP (RFC 6887), NAT-PMP (RFC 6886) and of the search for UPnP gateways. Pure."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from limpet.base.addresses import Address
from limpet.base.bounds.servers import GATEWAY_LEASE_S
from limpet.base.errors import LimpetError

PORT = 5351
"""UDP port of the gateway, for PCP and NAT-PMP. Source: RFC 6887 section 19, RFC 6886 section 9."""
NONCE_BYTES = 12
SSDP = (IPv4Address("239.255.255.250"), 1900)
"""Source: UPnP Device Architecture 1.1, section 1.3.2."""
SEARCHED = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
)

_UDP = 17
_PCP_VERSION, _PCP_MAP, _PMP_VERSION, _PMP_ADDRESS, _PMP_MAP_UDP = 2, 1, 0, 0, 1
_ANSWER = 0x80
_PCP_REQUEST = struct.Struct(">BBHL16s")
_PCP_ANSWER = struct.Struct(">BBBBLL12x")
_MAP = struct.Struct(f">{NONCE_BYTES}sB3xHH16s")
_PMP_HEAD = struct.Struct(">BBH")
_PMP_MAP_REQUEST = struct.Struct(">BBHHHL")
_PMP_ADDRESS_ANSWER = struct.Struct(">BBHL4s")
_PMP_MAP_ANSWER = struct.Struct(">BBHLHHL")
_PCP_RESULTS = (
    "success",
    "unsupported version",
    "not authorized",
    "malformed request",
    "unsupported opcode",
    "unsupported option",
    "malformed option",
    "network failure",
    "no resources",
    "unsupported protocol",
    "quota exceeded",
    "cannot provide the external port",
    "the address is not the one that it sees",
    "excessive remote peers",
)
_PMP_RESULTS = (
    "success",
    "unsupported version",
    "not authorized",
    "network failure",
    "no resources",
    "unsupported opcode",
)


class PortControlError(LimpetError):
    """A gateway's answer that gives no port."""


class GatewaySilentError(PortControlError):
    """It has not answered."""


@dataclass(frozen=True, slots=True)
class PortLease:
    """A port of the gateway that leads to ours."""

    address: Address | None
    """The gateway's, outside; None: it has to be asked for."""
    port: int
    lifetime_s: int


def encode_pcp_map(client: Address, nonce: bytes, port: int, wanted: int, lifetime_s: int) -> bytes:
    """A request to forward the gateway's port `wanted`, or another, to our UDP port.

    Lifetime 0 gives back what is forwarded to it.
    """
    wanted = wanted if lifetime_s else 0
    anywhere = _mapped(IPv4Address(0)) if client.version == 4 else bytes(16)
    head = _PCP_REQUEST.pack(_PCP_VERSION, _PCP_MAP, 0, lifetime_s, _mapped(client))
    return head + _MAP.pack(nonce, _UDP, port, wanted, anywhere)


def parse_pcp_map(data: bytes, nonce: bytes, port: int) -> PortLease | None:
    """None: it answers another request. Raises: PortControlError."""
    if len(data) >= 4 and data[0] != _PCP_VERSION and data[1] & _ANSWER:
        raise PortControlError(f"PCP: the gateway speaks version {data[0]}")
    if len(data) < _PCP_ANSWER.size:
        return None
    _version, opcode, _, result, lifetime_s, _epoch = _PCP_ANSWER.unpack_from(data)
    if opcode != _PCP_MAP | _ANSWER or len(data) < _PCP_ANSWER.size + _MAP.size:
        return None
    its_nonce, protocol, its_port, external, packed = _MAP.unpack_from(data, _PCP_ANSWER.size)
    if (its_nonce, protocol, its_port) != (nonce, _UDP, port):
        return None
    if result:
        raise PortControlError(f"PCP: the gateway refuses: {_word(_PCP_RESULTS, result)}")
    address = IPv6Address(packed)
    return PortLease(address.ipv4_mapped or address, external, _in_bounds(lifetime_s))


def _in_bounds(lifetime_s: int) -> int:
    """A gateway that says a year would be asked again in half of one, and may have forgotten."""
    return min(lifetime_s, GATEWAY_LEASE_S.most)


def encode_pmp_address() -> bytes:
    return bytes((_PMP_VERSION, _PMP_ADDRESS))


def parse_pmp_address(data: bytes) -> IPv4Address | None:
    """The gateway's, outside; None: it answers another request. Raises: PortControlError."""
    if not _is_pmp(data, _PMP_ADDRESS, _PMP_ADDRESS_ANSWER.size):
        return None
    return IPv4Address(_PMP_ADDRESS_ANSWER.unpack_from(data)[4])


def encode_pmp_map(port: int, wanted: int, lifetime_s: int) -> bytes:
    """As `encode_pcp_map`."""
    wanted = wanted if lifetime_s else 0  # Source: RFC 6886 section 3.4.
    return _PMP_MAP_REQUEST.pack(_PMP_VERSION, _PMP_MAP_UDP, 0, port, wanted, lifetime_s)


def parse_pmp_map(data: bytes, port: int) -> PortLease | None:
    """None: it answers another request. Raises: PortControlError."""
    if not _is_pmp(data, _PMP_MAP_UDP, _PMP_MAP_ANSWER.size):
        return None
    *_, its_port, external, lifetime_s = _PMP_MAP_ANSWER.unpack_from(data)
    return PortLease(None, external, _in_bounds(lifetime_s)) if its_port == port else None


def _is_pmp(data: bytes, opcode: int, size: int) -> bool:
    if len(data) < _PMP_HEAD.size:
        return False
    version, its_opcode, result = _PMP_HEAD.unpack_from(data)
    if version != _PMP_VERSION or its_opcode != opcode | _ANSWER:
        return False
    if result:
        raise PortControlError(f"NAT-PMP: the gateway refuses: {_word(_PMP_RESULTS, result)}")
    return len(data) >= size


def encode_search(target: str) -> bytes:
    """A search for UPnP devices of the kind."""
    lines = (
        "M-SEARCH * HTTP/1.1",
        f"HOST: {SSDP[0]}:{SSDP[1]}",
        'MAN: "ssdp:discover"',
        "MX: 1",
        f"ST: {target}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def parse_location(data: bytes, gateway: Address) -> str:
    """Where a found device describes itself; empty: nowhere, or not at the gateway.

    What others on the link say is not followed: they might have us ask anybody for anything.
    """
    lines = data.decode("latin-1").split("\r\n")
    if not lines[0].startswith("HTTP/1.1 200"):
        return ""
    for line in lines[1:]:
        name, _, value = line.partition(":")
        if name.strip().lower() == "location":
            return value.strip() if is_at(value.strip(), str(gateway)) else ""
    return ""


def is_at(url: str, host: str) -> bool:
    """Whether it leads there for all who read it: miniupnpc knows no user before the host, and
    asks `other:80` for `http://other:80@host/`."""
    return re.fullmatch(rf"http://{re.escape(host)}(:\d{{1,5}})?(/[!-~]*)?", url) is not None


def _mapped(address: Address) -> bytes:
    if address.version == 6:
        return address.packed
    return bytes(10) + b"\xff\xff" + address.packed


def _word(words: tuple[str, ...], result: int) -> str:
    return words[result] if result < len(words) else f"result {result}"
