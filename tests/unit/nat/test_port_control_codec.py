"""Requests to gateways and their answers, byte by byte as the RFCs have them."""

from __future__ import annotations

import contextlib
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.nat import port_control_codec as wire
from limpet.nat.port_control_codec import PortControlError, PortLease

CLIENT = ip_address("192.168.7.2")
GATEWAY = ip_address("192.168.7.1")
NONCE = b"twelve bytes"
OUTSIDE = bytes.fromhex("00000000000000000000ffffcb007109")


def pcp_answer(*, result: int = 0, nonce: bytes = NONCE, port: int = 51820) -> bytes:
    head = bytes((2, 0x81, 0, result)) + (3600).to_bytes(4) + bytes(16)
    return head + nonce + b"\x11\0\0\0" + port.to_bytes(2) + (40001).to_bytes(2) + OUTSIDE


def test_a_request_of_pcp_is_as_rfc_6887_has_it() -> None:
    # Section 7.1, figure 2; section 11.1, figure 9.
    assert wire.encode_pcp_map(CLIENT, NONCE, 51820, 40000, 3600).hex() == (
        "0201000000000e10"
        "00000000000000000000ffffc0a80702"
        + NONCE.hex()
        + "11000000ca6c9c40"
        + "00000000000000000000ffff00000000"
    )


def test_a_request_of_nat_pmp_is_as_rfc_6886_has_it() -> None:
    # Section 3.3.
    assert wire.encode_pmp_map(51820, 40000, 3600).hex() == "00010000ca6c9c4000000e10"
    assert wire.encode_pmp_address() == b"\0\0"


def test_a_lease_of_pcp_is_read() -> None:
    lease = wire.parse_pcp_map(pcp_answer(), NONCE, 51820)

    assert lease == PortLease(ip_address("203.0.113.9"), 40001, 3600)


def test_a_lease_of_nat_pmp_is_read() -> None:
    answer = bytes.fromhex("00810000") + bytes(4) + bytes.fromhex("ca6c9c4100000e10")

    assert wire.parse_pmp_map(answer, 51820) == PortLease(None, 40001, 3600)
    assert wire.parse_pmp_map(answer, 51821) is None
    address = bytes.fromhex("0080000000000000cb007109")
    assert wire.parse_pmp_address(address) == ip_address("203.0.113.9")


def test_an_answer_to_another_request_is_none() -> None:
    assert wire.parse_pcp_map(pcp_answer(nonce=b"another one!"), NONCE, 51820) is None
    assert wire.parse_pcp_map(pcp_answer(port=1), NONCE, 51820) is None


def test_a_refusal_says_why() -> None:
    with pytest.raises(PortControlError, match="not authorized"):
        wire.parse_pcp_map(pcp_answer(result=2), NONCE, 51820)
    with pytest.raises(PortControlError, match="no resources"):
        wire.parse_pmp_map(bytes.fromhex("00810004") + bytes(12), 51820)
    with pytest.raises(PortControlError, match="result 99"):
        wire.parse_pcp_map(pcp_answer(result=99), NONCE, 51820)


def test_a_gateway_that_knows_only_nat_pmp_is_recognised() -> None:
    with pytest.raises(PortControlError, match="speaks version 0"):
        wire.parse_pcp_map(bytes.fromhex("0080000100000000"), NONCE, 51820)


@given(st.binary(max_size=80) | st.binary(max_size=76).map(lambda data: pcp_answer()[:4] + data))
def test_whatever_comes_is_a_lease_or_none_or_a_refusal(data: bytes) -> None:
    for parse in (
        lambda: wire.parse_pcp_map(data, NONCE, 51820),
        lambda: wire.parse_pmp_map(data, 51820),
        lambda: wire.parse_pmp_address(data),
    ):
        with contextlib.suppress(PortControlError):
            parse()
    assert isinstance(wire.parse_location(data, GATEWAY), str)


def found(location: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nST: x\r\nLocation: {location}\r\n\r\n".encode()


def test_a_device_is_found_at_the_gateway() -> None:
    at = "http://192.168.7.1:5000/rootDesc.xml"
    assert wire.parse_location(found(at), GATEWAY) == at


@pytest.mark.parametrize(
    "location",
    [
        "http://192.168.7.9:5000/rootDesc.xml",
        "http://router.example/rootDesc.xml",
        "https://192.168.7.1/rootDesc.xml",
        "file:///etc/passwd",
        "http://[192.168.7.1/",
        # miniupnpc reads them otherwise than urllib.
        "http://127.0.0.1:8080@192.168.7.1/rootDesc.xml",
        "http://127.0.0.1@192.168.7.1:5000/rootDesc.xml",
        "http://192.168.7.1:80:8080/",
        "http://192.168.7.1#:8080/",
        "http://192.168.7.1?x",
        "http://192.168.7.1:5000/root Desc.xml",
        "http://192.168.7.1:5000/\0",
        "http://192.168.7.1:5000/\xe9",
        "",
    ],
)
def test_nobody_makes_us_ask_elsewhere_than_at_the_gateway(location: str) -> None:
    assert wire.parse_location(found(location), GATEWAY) == ""


def test_a_search_is_as_the_device_architecture_has_it() -> None:
    assert wire.encode_search("some:thing:1") == (
        b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n"
        b'MAN: "ssdp:discover"\r\nMX: 1\r\nST: some:thing:1\r\n\r\n'
    )
