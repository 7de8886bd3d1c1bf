"""The kernel's IPsec in netlink messages: an xfrm interface, SAs and policies that belong to it.

Source: include/uapi/linux/xfrm.h; ip-link(8), ip-xfrm(8).
"""

from __future__ import annotations

import errno
import struct

from limpet.linux.netlink import codec as netlink
from limpet.linux.netlink.codec import Message, Request, attr, attr_u32, number, parse_attrs
from limpet.linux.netlink.link_codec import new_link, parse_link_options

NETLINK_XFRM = 6
XFRM_MSG_NEWSA, XFRM_MSG_DELSA, XFRM_MSG_GETSA = 0x10, 0x11, 0x12
XFRM_MSG_DELPOLICY, XFRM_MSG_GETPOLICY = 0x14, 0x15
_XFRMA_ENCAP, _XFRMA_ALG_AEAD, _XFRMA_MARK, _XFRMA_IF_ID = 4, 18, 21, 31
_IFLA_XFRM_IF_ID = 2
_GONE = (errno.ENOENT, errno.ESRCH)

_SELECTOR_BYTES = 56
_SA = struct.Struct("=56s 16s 4s B3x 16s 64s 32s 12s I I H B B B7x")
"""xfrm_usersa_info: selector, destination, SPI, protocol, source, limits, use, statistics, sequence
number, reqid, family, mode, replay window, flags."""
_POLICY = struct.Struct("=56s 64s 32s I I B B B B4x")
"""xfrm_userpolicy_info: selector, limits, use, priority, index, direction, action, flags, share."""
_ESP, _TUNNEL_MODE = 50, 1
_ENCAP = struct.Struct(">2s HH 2x 16x")
_IN_UDP = struct.pack("=H", 2)
_AEAD = struct.Struct("=64s I I 20s")
_NO_LIMITS = b"\xff" * 32 + bytes(32)


def new_xfrm_device(ifname: str, if_id: int) -> Request:
    """An xfrm interface, down: SAs and policies with its id are its own, and no others."""
    return new_link(ifname=ifname, kind="xfrm", options=attr_u32(_IFLA_XFRM_IF_ID, if_id))


def parse_if_id(message: Message) -> int:
    """Id of the xfrm interface that a link's message tells of; 0: it is none."""
    return number((parse_link_options(message, "xfrm") or {}).get(_IFLA_XFRM_IF_ID))


def new_trial_sa(version: int, if_id: int) -> Request:
    """An SA as the IKE daemon makes them: AES-GCM, in tunnel mode, in UDP; between two addresses of
    documentation, with a key of zeros."""
    family, one, other = (
        (netlink.AF_INET, bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2)))
        if version == 4
        else (netlink.AF_INET6, b"\x20\x01\x0d\xb8" + bytes(12), b"\x20\x01\x0d\xb8" + b"\1" * 12)
    )
    spi = b"\xc0\0\0\1"
    selector = bytes(_SELECTOR_BYTES)
    fixed = _SA.pack(
        *(selector, other, spi, _ESP, one, _NO_LIMITS, b"", b"", 0, 1),
        *(family, _TUNNEL_MODE, 32, 0),
    )
    body = b"".join(
        (
            fixed,
            attr(_XFRMA_ALG_AEAD, _AEAD.pack(b"rfc4106(gcm(aes))", 160, 128, b"")),
            attr(_XFRMA_ENCAP, _ENCAP.pack(_IN_UDP, 4500, 4500)),
            attr_u32(_XFRMA_IF_ID, if_id),
        )
    )
    what = (f"ESP with AES-GCM in UDP over IPv{version}",)
    return Request(XFRM_MSG_NEWSA, netlink.CREATE | netlink.EXCL, body, what)


def dump_sas() -> Request:
    return Request(XFRM_MSG_GETSA, netlink.ROOT_MATCH, b"", ("SAs",))


def dump_policies() -> Request:
    return Request(XFRM_MSG_GETPOLICY, netlink.ROOT_MATCH, b"", ("IPsec policies",))


def delete_sa(message: Message, if_id: int) -> Request | None:
    """Deletes the SA that `dump_sas` told of; None: it is not of that interface."""
    attrs = parse_attrs(message.body, _SA.size)
    if number(attrs.get(_XFRMA_IF_ID)) != if_id:
        return None
    fields = _SA.unpack_from(message.body)
    destination, spi, protocol, family = fields[1], fields[2], fields[3], fields[10]
    body = struct.pack("=16s4sHBx", destination, spi, family, protocol) + _mark(attrs)
    return Request(XFRM_MSG_DELSA, 0, body, ("SA", spi.hex()), _GONE)


def delete_policy(message: Message, if_id: int) -> Request | None:
    """Deletes the policy that `dump_policies` told of; None: it is not of that interface."""
    attrs = parse_attrs(message.body, _POLICY.size)
    if number(attrs.get(_XFRMA_IF_ID)) != if_id:
        return None
    selector, *_, index, direction, _action, _flags, _share = _POLICY.unpack_from(message.body)
    body = struct.pack("=56sIB3x", selector, index, direction) + _mark(attrs)
    body += attr_u32(_XFRMA_IF_ID, if_id)
    return Request(XFRM_MSG_DELPOLICY, 0, body, ("IPsec policy", index), _GONE)


def _mark(attrs: dict[int, bytes]) -> bytes:
    """What is marked is found by its mark only."""
    mark = attrs.get(_XFRMA_MARK)
    return attr(_XFRMA_MARK, mark) if mark is not None else b""
