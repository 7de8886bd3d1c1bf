"""Links by which routers configure this node, for as long as it does not forward. A kernel that
forwards IPv6 takes advertisements only where `accept_ra` is 2, and asks for none elsewhere.

Source: ipv6_accept_ra in include/net/addrconf.h, addrconf_dad_completed and
addrconf_fixup_forwarding in net/ipv6/addrconf.c.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from limpet.base.ownership import ALIAS, DYING_GROUP, POD_GROUP
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import link_codec
from limpet.linux.netlink.link_codec import OUTWARD_KINDS, LinkInfo

FORWARDING = "net/ipv6/conf/all/forwarding"


class Uplinks:
    """What is known of them since the last look, to tell one that comes up."""

    def __init__(self) -> None:
        self._up: set[int] = set()

    def look(self, links: Mapping[str, LinkInfo]) -> None:
        self._up = {link.ifindex for link in links.values() if link.up}

    def hear(self, message: wire.Message) -> str:
        """Name of the link that has just come up and may lead out; "": none has."""
        ifindex = link_codec.link_ifindex(message)
        if message.type == wire.RTM_DELLINK or link_codec.link_is_down(message):
            self._up.discard(ifindex)
            return ""
        if ifindex in self._up:
            return ""
        self._up.add(ifindex)
        link = link_codec.parse_link(message)
        return link.ifname if _is_foreign(link) and link.kind in OUTWARD_KINDS | {"bridge"} else ""


def listening_uplinks(
    links: Mapping[str, LinkInfo],
    advertised: Collection[str],
    read: Callable[[str], str | None],
    *,
    own_forwarding: bool,
) -> frozenset[str]:
    """Links that take advertisements now, or would if this node did not forward for us.

    `advertised`: those with a default route of one. `read`: a setting of the kernel.
    `own_forwarding`: the node did not forward IPv6 before us. Where it did, it is a router that
    takes none, and stays one.
    """
    devices = {
        link.ifindex: link
        for link in links.values()
        if link.kind in OUTWARD_KINDS and not link.flags & link_codec.IFF_LOOPBACK
    }
    bridged = {link.master_ifindex for link in devices.values()}
    masters = {link.ifindex for link in links.values() if link.kind != "vrf"}

    def listens(link: LinkInfo) -> bool:
        if not _is_foreign(link) or link.master_ifindex in masters:
            return False
        if read(f"net/ipv6/conf/{link.ifname}/accept_ra") != "1":
            return False
        if link.ifname in advertised:
            return True
        is_deaf = read(f"net/ipv6/conf/{link.ifname}/forwarding") != "0"
        if link.ifindex in devices or (link.kind == "bridge" and link.ifindex in bridged):
            return own_forwarding or not is_deaf
        # In a container a veth is all that leads out.
        return link.kind == "veth" and not devices and not is_deaf

    return frozenset(link.ifname for link in links.values() if listens(link))


def _is_foreign(link: LinkInfo) -> bool:
    ours = link.alias == ALIAS or link.group in (POD_GROUP, DYING_GROUP)
    return not ours and not link.flags & link_codec.IFF_LOOPBACK
