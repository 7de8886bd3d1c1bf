"""What the tunnel's device has beside itself, whatever makes it: addresses, and two rules."""

from __future__ import annotations

import errno
from collections.abc import Collection

from limpet.base.addresses import InterfaceAddress
from limpet.base.ownership import TUNNEL_MARK, TUNNEL_RULE_PRIORITY
from limpet.linux.netlink import address_codec, route_codec
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink.socket import RouteSocket

VERSIONS = (4, 6)


def marked_rules(route: RouteSocket) -> frozenset[int]:
    """IP versions that have our rule. Raises: KernelError."""
    ours = {_rule(version): version for version in VERSIONS}
    return frozenset(ours[rule] for rule in route.rules() if rule in ours)


def _rule(version: int) -> route_codec.RuleInfo:
    """Marked packets are looked up in main."""
    table = route_codec.RT_TABLE_MAIN
    return route_codec.RuleInfo(version, TUNNEL_RULE_PRIORITY, table, TUNNEL_MARK)


def needed_rules(route: RouteSocket, *, wanted: bool) -> list[wire.Request]:
    """What makes our rules be there, or not be there. Raises: KernelError."""
    found = marked_rules(route)
    return [
        route_codec.rule(
            version,
            priority=TUNNEL_RULE_PRIORITY,
            table=route_codec.RT_TABLE_MAIN,
            mark=TUNNEL_MARK,
            delete=not wanted,
            ignore_errno=(errno.EEXIST if wanted else errno.ENOENT,),
        )
        for version in sorted(set(VERSIONS) - found if wanted else found)
    ]


def needed_addresses(
    route: RouteSocket, ifname: str, wanted: Collection[InterfaceAddress]
) -> list[wire.Request]:
    """What gives the device these addresses and no others. Raises: KernelError.

    New ones first: with its last IPv4 address a link loses its routes.
    """
    link = route.link(ifname)
    if link is None:
        return []
    held = {
        info.interface
        for info in route.addresses()
        if info.ifindex == link.ifindex and info.scope != route_codec.RT_SCOPE_LINK
    }
    return [
        *(
            address_codec.new_address(link.ifindex, each, on=ifname, prefix_route=False)
            for each in sorted(set(wanted) - held, key=_order)
        ),
        *(
            address_codec.delete_address(link.ifindex, each, on=ifname)
            for each in sorted(held - set(wanted), key=_order)
        ),
    ]


def _order(address: InterfaceAddress) -> tuple[int, int]:
    return address.version, int(address)
