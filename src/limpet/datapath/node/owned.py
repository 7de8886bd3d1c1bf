"""What the node's part has in the kernel, by its marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from ipaddress import ip_address

from limpet.base.ownership import (
    ALIAS,
    DYING_GROUP,
    DYING_IFNAME_PREFIX,
    NFT_TABLE,
    POD_GROUP,
    POD_IFNAME_PREFIX,
    ROUTE_TABLE,
    RULE_PRIORITY,
)
from limpet.datapath.node.apply import is_pod_link
from limpet.datapath.node.forward import HandleNftables, remove_forward_accept
from limpet.linux.netlink import codec as wire
from limpet.linux.netlink import route_codec
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.owned import LinkMark, Owned


def owned_by_node() -> Owned:
    """Pods' host ends and ifbs, living or dying, bridges, the routing table with its rules."""
    return Owned(
        links=(
            LinkMark(group=POD_GROUP, ifname_prefix=POD_IFNAME_PREFIX),
            LinkMark(group=DYING_GROUP, ifname_prefix=DYING_IFNAME_PREFIX),
            LinkMark(kind="bridge", alias=ALIAS),
        ),
        nft_tables=(NFT_TABLE,),
        sysctls={
            "ip_forward": ("1",),
            "forwarding": ("1",),
            "send_redirects": ("0",),
            "promote_secondaries": ("1",),
            "route_localnet": ("1",),
            "disable_ipv6": ("0",),
            "accept_ra": ("0", "2"),
            # Not planned: it changes with ip_forward, both ways.
            "accept_redirects": ("0", "1"),
        },
        deletions=_rules_and_routes,
        ends=(_accept_rules,),
    )


def pod_links() -> set[str]:
    """Names of pods' host ends, which are there for as long as the pods are: also of those that no
    record tells of. Raises: KernelError."""
    with RouteSocket() as route:
        return {link.ifname for link in route.links().values() if is_pod_link(link)}


def _rules_and_routes(route: RouteSocket) -> Sequence[wire.Request]:
    return [
        *(
            route_codec.rule(rule.version, priority=rule.priority, table=rule.table, delete=True)
            for rule in route.rules()
            if (rule.priority, rule.table) == (RULE_PRIORITY, ROUTE_TABLE)
        ),
        *(_route_deletion(info) for info in route.routes(table=ROUTE_TABLE)),
    ]


def _route_deletion(info: route_codec.RouteInfo) -> wire.Request:
    return route_codec.route(
        info.prefix,
        ifindex=info.ifindex if info.type == route_codec.RTN_UNICAST else None,
        gateway=ip_address(info.gateway) if info.gateway else None,
        table=info.table,
        metric=info.metric,
        unreachable=info.type == route_codec.RTN_UNREACHABLE,
        delete=True,
    )


def _accept_rules(_route: RouteSocket) -> Iterator[str]:
    with closing(HandleNftables()) as nft:
        for chain in remove_forward_accept(nft):
            yield f"{chain}: accept rules removed"
