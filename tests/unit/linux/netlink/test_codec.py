"""rtnetlink messages, without a kernel; tests/datapath proves that the kernel reads them alike."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.linux.netlink import codec as wire
from tests.strategies import macs

requests = st.builds(
    wire.Request, st.integers(16, 100), st.sampled_from([0, 0x300, 0x600]), st.binary(max_size=40)
)

attributes = st.dictionaries(st.integers(0, 0x3FFF), st.binary(max_size=20))


@given(st.binary(max_size=300))
def test_any_bytes_parse_to_messages_within_them(data: bytes) -> None:
    found = list(wire.parse_messages(data))

    assert sum(16 + len(message.body) for message in found) <= len(data)
    for message in found:
        wire.parse_attrs(message.body, 0)


@given(st.binary(max_size=300), st.integers(0, 320))
def test_any_bytes_parse_to_attributes_within_them(data: bytes, offset: int) -> None:
    found = wire.parse_attrs(memoryview(data), offset)

    assert sum(4 + len(payload) for payload in found.values()) <= max(len(data) - offset, 0)
    assert all(payload in data for payload in found.values())


@given(st.lists(requests), st.integers(1, 2**31))
def test_requests_sent_in_one_datagram_are_told_apart(sent: list[wire.Request], first: int) -> None:
    datagram = b"".join(
        wire.frame(request, first + i, ack=bool(i % 2)) for i, request in enumerate(sent)
    )

    found = list(wire.parse_messages(datagram))

    assert len(datagram) % 4 == 0
    assert [message.sequence for message in found] == list(range(first, first + len(sent)))
    assert [bytes(message.body) for message in found] == [request.body for request in sent]
    for i, (request, message) in enumerate(zip(sent, found, strict=True)):
        assert message.type == request.type
        assert message.flags == request.flags | wire.REQUEST | (wire.ACK if i % 2 else 0)


@given(attributes, st.binary(max_size=8))
def test_attributes_are_read_back_whether_nested_or_not(
    wanted: dict[int, bytes], header: bytes
) -> None:
    flat = header + b"".join(wire.attr(kind, payload) for kind, payload in wanted.items())
    nested = header + b"".join(wire.nest(kind, payload) for kind, payload in wanted.items())

    assert wire.parse_attrs(memoryview(flat), len(header)) == wanted
    assert wire.parse_attrs(memoryview(nested), len(header)) == wanted


def error_message(errno: int, text: str, request: bytes, *, capped: bool) -> wire.Message:
    """As netlink_ack in net/netlink/af_netlink.c writes it."""
    header = struct.pack("=IHHII", 16 + len(request), wire.RTM_NEWLINK, 5, 7, 0)
    body = struct.pack("=i", -errno) + header
    if not capped:
        body += request + b"\0" * (-len(request) & 3)
    if text:
        body += wire.attr_text(1, text)
    flags = (0x100 if capped else 0) | (0x200 if text else 0)
    return wire.Message(wire.NLMSG_ERROR, flags, 7, memoryview(body))


@given(st.integers(0, 200), st.text(max_size=30), st.binary(max_size=30), st.booleans())
def test_an_error_carries_the_errno_and_the_kernels_own_words(
    errno: int, text: str, request: bytes, capped: bool
) -> None:
    text = text.replace("\0", "")
    found = wire.parse_error(error_message(errno, text, request, capped=capped))

    assert found == (errno, text)


@given(macs)
def test_a_mac_is_read_back_as_it_was_written(mac: str) -> None:
    assert wire.mac_text(wire.parse_mac(mac)) == mac
    assert wire.parse_mac(mac.upper()) == wire.parse_mac(mac)


@pytest.mark.parametrize("text", ["", "00:11:22:33:44", "00:11:22:33:44:55:66", "zz:0:0:0:0:0"])
def test_what_is_no_mac_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        wire.parse_mac(text)
