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


def put_marked_rules(route: RouteSocket) -> list[str]:
    """The rules that are there now and were not, in words. Raises: KernelError."""
    missing = sorted(set(VERSIONS) - marked_rules(route))
    fields = {"priority": TUNNEL_RULE_PRIORITY, "mark": TUNNEL_MARK}
    requests = [put_mark_rule(version, **fields) for version in missing]
    route.apply(*requests)
    return [request.what for request in requests]


def drop_marked_rules(route: RouteSocket) -> list[str]:
    """The rules that were there, in words. Raises: KernelError."""
    fields = {"priority": TUNNEL_RULE_PRIORITY, "mark": TUNNEL_MARK}
    requests = [delete_mark_rule(version, **fields) for version in sorted(marked_rules(route))]
    route.apply(*requests)
    return [request.what for request in requests]


def put_addresses(
    route: RouteSocket, ifname: str, wanted: Collection[InterfaceAddress]
) -> list[str]:
    """The device has these and no others; what was changed, in words. Raises: KernelError.

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
    requests = [
        *(
            wire.new_address(link.ifindex, each, on=ifname, prefix_route=False)
            for each in sorted(set(wanted) - held, key=_order)
        ),
        *(
            wire.delete_address(link.ifindex, each, on=ifname)
            for each in sorted(held - set(wanted), key=_order)
        ),
    ]
    route.apply(*requests)
    return [request.what for request in requests]


def _order(address: InterfaceAddress) -> tuple[int, int]:
    return address.version, int(address)
