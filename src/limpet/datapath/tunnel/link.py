"""What the tunnel's device has beside itself, whatever makes it: addresses, and two rules."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Interface, IPv6Interface

from limpet.base.addresses import InterfaceAddress
from limpet.base.ownership import TUNNEL_MARK, TUNNEL_RULE_PRIORITY
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.netlink.tunnel_rule import delete_mark_rule, parse_mark_rule, put_mark_rule

VERSIONS = (4, 6)


def marked_rules(route: RouteSocket) -> frozenset[int]:
    """IP versions that have our rule. Raises: KernelError."""
    ours = {(version, TUNNEL_RULE_PRIORITY, TUNNEL_MARK): version for version in VERSIONS}
    found = map(parse_mark_rule, route.dump(wire.dump_rules()))
    return frozenset(ours[rule] for rule in found if rule in ours)


def needed_rules(route: RouteSocket, *, wanted: bool) -> list[wire.Request]:
    """What makes our rules be there, or not be there. Raises: KernelError."""
    fields = {"priority": TUNNEL_RULE_PRIORITY, "mark": TUNNEL_MARK}
    found = marked_rules(route)
    if wanted:
        return [put_mark_rule(version, **fields) for version in sorted(set(VERSIONS) - found)]
    return [delete_mark_rule(version, **fields) for version in sorted(found)]


def needed_addresses(
    route: RouteSocket, ifname: str, wanted: Collection[InterfaceAddress]
) -> list[wire.Request]:
    """What gives the device these addresses and no others. Raises: KernelError.

    New ones first: with its last IPv4 address a link loses its routes.
    """
    link = route.link(ifname)
    if link is None:
        return []
    held: set[InterfaceAddress] = {
        (IPv4Interface if len(info.packed) == 4 else IPv6Interface)(
            (info.packed, info.prefix_length)
        )
        for info in route.addresses()
        if info.ifindex == link.ifindex and info.scope != wire.RT_SCOPE_LINK
    }
    return [
        *(
            wire.new_address(link.ifindex, each, on=ifname, prefix_route=False)
            for each in sorted(set(wanted) - held, key=_order)
        ),
        *(
            wire.delete_address(link.ifindex, each, on=ifname)
            for each in sorted(held - set(wanted), key=_order)
        ),
    ]


def _order(address: InterfaceAddress) -> tuple[int, int]:
    return address.version, int(address)
