"""Messages of the kernel's IPsec: what is the tunnel's is told from what is not."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from limpet.linux.netlink import xfrm
from limpet.linux.netlink.codec import (
    Message,
    Request,
    attr,
    attr_u32,
    frame,
    parse_attrs,
    parse_messages,
)

OURS = 0x6C696D08
numbers = st.integers(0, 2**32 - 1)


def told(request: Request) -> Message:
    """As it comes back from the kernel."""
    (message,) = parse_messages(frame(request, 1, ack=False))
    return message


@given(numbers)
def test_an_interface_is_known_by_its_id(if_id: int) -> None:
    assert xfrm.parse_if_id(told(xfrm.new_xfrm_device("ipsec0", if_id))) == if_id


def test_a_link_of_another_kind_has_no_id() -> None:
    message = told(xfrm.new_xfrm_device("ipsec0", OURS))
    other = Message(message.type, 0, 1, memoryview(bytes(message.body).replace(b"xfrm", b"vlan")))
    assert xfrm.parse_if_id(other) == 0


@given(st.sampled_from([4, 6]), numbers)
def test_an_sa_is_deleted_by_what_the_kernel_finds_it_by(version: int, if_id: int) -> None:
    message = told(xfrm.new_trial_sa(version, if_id))

    request = xfrm.delete_sa(message, if_id)

    assert request is not None
    # Source: struct xfrm_usersa_id in include/uapi/linux/xfrm.h.
    destination, spi, family, protocol = struct.unpack("=16s4sHBx", request.body)
    assert destination.rstrip(b"\0") == (
        bytes((192, 0, 2, 2)) if version == 4 else b"\x20\x01\x0d\xb8" + b"\1" * 12
    )
    assert (spi, family, protocol) == (b"\xc0\0\0\1", {4: 2, 6: 10}[version], 50)


@given(numbers, numbers)
def test_what_is_of_another_interface_or_of_none_is_never_deleted(one: int, other: int) -> None:
    message = told(xfrm.new_trial_sa(4, one))
    assert (xfrm.delete_sa(message, other) is None) == (one != other)
    body = bytes(message.body[:224])
    assert xfrm.delete_sa(Message(message.type, 0, 1, memoryview(body)), OURS) is None


@given(st.binary(min_size=56, max_size=56), numbers, st.integers(0, 2), st.booleans())
def test_a_policy_is_deleted_with_its_selector_index_direction_and_mark(
    selector: bytes, index: int, direction: int, marked: bool
) -> None:
    # Source: struct xfrm_userpolicy_info in include/uapi/linux/xfrm.h.
    fixed = selector + bytes(64 + 32 + 4) + struct.pack("=IB7x", index, direction)
    mark = attr(21, struct.pack("=II", 7, 0xFF)) if marked else b""
    policy = Message(0x13, 0, 1, memoryview(fixed + mark + attr_u32(31, OURS)))

    request = xfrm.delete_policy(policy, OURS)

    assert request is not None
    assert request.body[:61] == selector + struct.pack("=IB", index, direction)
    attrs = parse_attrs(memoryview(request.body), 64)
    assert attrs == {31: struct.pack("=I", OURS), **({21: mark[4:]} if marked else {})}
    assert xfrm.delete_policy(policy, OURS + 1) is None
