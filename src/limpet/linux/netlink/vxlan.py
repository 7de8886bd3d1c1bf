"""rtnetlink messages of VXLAN devices: bytes <-> values, no sockets.

Source: include/uapi/linux/if_link.h, drivers/net/vxlan/vxlan_core.c.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from limpet.linux.netlink.codec import Message, Request, attr, attr_u32, number
from limpet.linux.netlink.link_codec import new_link, parse_link_options

IFLA_VXLAN_ID, IFLA_VXLAN_GROUP, IFLA_VXLAN_LINK, IFLA_VXLAN_LOCAL = 1, 2, 3, 4
IFLA_VXLAN_LEARNING, IFLA_VXLAN_PORT = 7, 15
IFLA_VXLAN_GROUP6, IFLA_VXLAN_LOCAL6, IFLA_VXLAN_COLLECT_METADATA = 16, 17, 25


@dataclass(frozen=True, slots=True)
class VxlanOptions:
    """What a VXLAN device was made with."""

    vni: int
    port: int
    plain: bool
    """It learns nothing, hangs on no link, has no destination or source address of its own."""


def new_vxlan(
    *, ifname: str, underlay_version: int, vni: int, port: int, mac: str, mtu_bytes: int, group: int
) -> Request:
    """A VXLAN device, down, that finds no destination but by entries, and makes no address up.

    It hangs on no link: it outlives its uplinks, and each packet leaves as routing says.
    """
    options = attr_u32(IFLA_VXLAN_ID, vni)
    options += attr(IFLA_VXLAN_PORT, struct.pack(">H", port)) + attr(IFLA_VXLAN_LEARNING, b"\0")
    if underlay_version == 6:
        # The kernel takes the family of the underlay from an address, be it none at all.
        options += attr(IFLA_VXLAN_LOCAL6, bytes(16))
    return new_link(
        ifname=ifname,
        kind="vxlan",
        mac=mac,
        mtu_bytes=mtu_bytes,
        group=group,
        options=options,
        about=("VXLAN device", ifname, f"(VNI {vni}, port {port})"),
    )


def parse_vxlan(message: Message) -> VxlanOptions | None:
    """Options of a link message's device; None when it is no VXLAN device.

    The IP version of the underlay is not among them: the kernel does not tell it.
    """
    data = parse_link_options(message, "vxlan")
    if data is None:
        return None
    bound = (IFLA_VXLAN_LINK, IFLA_VXLAN_LEARNING, IFLA_VXLAN_COLLECT_METADATA)
    addressed = (IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6, IFLA_VXLAN_LOCAL, IFLA_VXLAN_LOCAL6)
    return VxlanOptions(
        number(data.get(IFLA_VXLAN_ID)),
        int.from_bytes(data.get(IFLA_VXLAN_PORT, b""), "big"),
        plain=not any(any(data.get(kind, b"")) for kind in (*bound, *addressed)),
    )
