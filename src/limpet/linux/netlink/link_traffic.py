"""What a link says of its traffic. Source: include/uapi/linux/if_link.h, rtnl_link_stats64."""

from __future__ import annotations

import struct

from limpet.linux.netlink.codec import Message, parse_attrs

_IFINFO_BYTES = 16
_IFLA_STATS64 = 23
_PACKETS = struct.Struct("=QQ")


def parse_link_packets(message: Message) -> tuple[int, int]:
    """Packets that were received and sent, of a link message; zeros if it does not say."""
    stats = parse_attrs(message.body, _IFINFO_BYTES).get(_IFLA_STATS64, b"")
    if len(stats) < _PACKETS.size:
        return 0, 0
    received, sent = _PACKETS.unpack_from(stats)
    return received, sent
