"""The link that holds the addresses where this node answers names.

A bridge without ports: every kernel that Limpet runs on has it (`dummy` is missing on some), its
addresses answer without a carrier, and taking it away takes all with it. Pods reach it by their
gateway, the node and pods in its network directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_interface

from limpet.base.addresses import Address, InterfaceAddress
from limpet.base.ownership import DNS_GROUP, DNS_IFNAME
from limpet.linux.netlink import address_codec, link_codec
from limpet.linux.netlink.codec import Request
from limpet.linux.netlink.link_codec import LinkInfo
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.owned import LinkMark, Owned

OWNED = Owned(links=(LinkMark(kind="bridge", group=DNS_GROUP),))
_UNIVERSE = 0


def keep_device(addresses: Sequence[Address]) -> list[str]:
    """The link is there, up, and has these addresses alone; what was done for it, in words.

    One family may be turned off on this node; the other is served, and what the kernel refused is
    told with what was done. Raises: KernelError, also where none of the addresses is there.
    """
    wanted = {ip_interface(address) for address in addresses}
    with RouteSocket() as route:
        done: list[str] = []
        link = _find(route)
        if link is None:
            request = link_codec.new_link(
                ifname=DNS_IFNAME, kind="bridge", group=DNS_GROUP, about=("link", DNS_IFNAME)
            )
            route.apply(request)
            # Refused where IPv6 is turned off, and then there are none anyway.
            route.try_each([link_codec.no_made_up_addresses(DNS_IFNAME)])
            done.append(f"link {DNS_IFNAME} made")
            link = _find(route)
            assert link is not None
        requests = _changes(link, _there(route, link), wanted)
        refused = route.try_each(requests)
        if not link.up:
            up = link_codec.set_link(link.ifindex, what=f"link {link.ifname}", up=True)
            route.apply(up)
            done.append(up.what)
        failures = [error for error in refused if error is not None]
        if failures and not wanted & _there(route, link):
            raise failures[0]
    done += [request.what for request, error in zip(requests, refused, strict=True) if not error]
    return [*done, *(f"refused: {error}" for error in failures)] if done else []


def remove_device() -> list[str]:
    """The link is gone; what was done for it, in words. Raises: KernelError."""
    with RouteSocket() as route:
        link = _find(route)
        if link is None:
            return []
        route.apply(link_codec.delete_link(link.ifindex, what=f"link {link.ifname}"))
        return [f"link {link.ifname}: removed"]


def _find(route: RouteSocket) -> LinkInfo | None:
    # By its name: a list of all costs milliseconds on a node of many pods, while somebody waits.
    link = route.link(DNS_IFNAME)
    return link if link is not None and OWNED.has(link) else None


def _there(route: RouteSocket, link: LinkInfo) -> set[InterfaceAddress]:
    found = (
        address_codec.parse_address(message)
        for message in route.dump(address_codec.dump_addresses())
        if address_codec.address_ifindex(message) == link.ifindex
    )
    return {each.interface for each in found if each.scope == _UNIVERSE}


def _changes(
    link: LinkInfo, there: set[InterfaceAddress], wanted: set[InterfaceAddress]
) -> Sequence[Request]:
    return [
        *(
            # The node must not send from it to others, who have one of the same.
            address_codec.new_address(link.ifindex, each, on=link.ifname, deprecated=True)
            for each in sorted(wanted - there, key=str)
        ),
        *(
            address_codec.delete_address(link.ifindex, each, on=link.ifname)
            for each in sorted(there - wanted, key=str)
        ),
    ]
