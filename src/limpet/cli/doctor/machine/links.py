"""Links, addresses, routes and rules of the node: whether they leave room for pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from limpet.base.node_state import NodeState
from limpet.base.ownership import ROUTE_TABLE, RULE_PRIORITY
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.target import Installation
from limpet.cli.install.overlaps import HeldAddress, HeldRoute, find_overlaps, without_own
from limpet.cli.owners import is_ours
from limpet.datapath.node.plan import bridge_of_segments
from limpet.linux.netlink import link_codec, route_codec
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.underlay import read_open_links

_RT_TABLE_LOCAL = 255


def examine_node(target: Installation) -> Iterator[Finding]:
    bridge, state = target.settings.pods.bridge, target.state
    with RouteSocket() as route:
        links = route.links()
        names = {link.ifindex: link.ifname for link in links.values()}
        own = {link.ifname for link in links.values() if is_ours(link)}
        own |= set(target.replaced_links)
        if not target.installed:
            yield from _bridge_name(bridge, links)
        addresses = [
            HeldAddress(names.get(info.ifindex, "?"), info.interface) for info in route.addresses()
        ]
        routes = route.routes()
        yield from _own_table(target, own, routes, route.rules())
    # Another's bridge that is to be used already has the gateway address, and a route for it.
    gateways = {
        HeldAddress(bridge, gateway)
        for gateway in bridge_of_segments(bridge, state.segments).gateways
    }
    clashes = find_overlaps(
        state.segments,
        state.cluster_cidrs,
        [held for held in without_own(addresses, own) if held not in gateways],
        [_held(info, names) for info in routes if _is_another_s(info, names, {*own, bridge})],
    )
    yield from clashes
    if not clashes and state.segments:
        yield ok("no address or route of the node overlaps the pods'")


def examine_bridges(bridges: Iterable[str], state: NodeState) -> Iterator[Finding]:
    """`bridges`: names of those of our pods; others' pods have no addresses of the cluster."""
    if not state.in_cluster:
        return
    with RouteSocket() as route:
        open_links = {name for name, _ in read_open_links(route, not_in=state.cluster_cidrs)}
    for name in sorted(open_links.intersection(bridges)):
        yield error(
            "bridge-leads-out",
            f"pods are on bridge {name}, which is also a link to other machines",
            "by such a link nothing comes in from an address of the cluster, since anybody there "
            "could write one: its pods reach each other, and nobody else",
            "name another bridge where this one is named (bridge in the agent's configuration, or "
            "in that of the network) and make its pods anew",
        )


def _bridge_name(bridge: str, links: dict[str, link_codec.LinkInfo]) -> Iterator[Finding]:
    link = links.get(bridge)
    if link is None or is_ours(link):
        return
    if link.kind == "bridge":
        yield warn(
            "bridge-of-others",
            f"bridge {bridge} is there and was not made by Limpet",
            "it is used as it is, and stays when Limpet is uninstalled",
            "if that is not meant, set another name in the agent's configuration",
        )
    else:
        yield error(
            "bridge-name-taken",
            f"{bridge} is there and is a {link.kind or 'physical'} link",
            "the pods' bridge needs that name",
            'set another name in the agent\'s configuration (bridge = "limpet1")',
        )


def _own_table(
    target: Installation,
    own: set[str],
    routes: list[route_codec.RouteInfo],
    rules: list[route_codec.RuleInfo],
) -> Iterator[Finding]:
    """Our table and priority have to be nobody else's."""
    if target.installed or own:
        return
    if any(info.table == ROUTE_TABLE for info in routes):
        yield error(
            "table-taken",
            f"routing table {ROUTE_TABLE} is not empty",
            "Limpet owns that table and would remove what is in it",
            f"see ip route show table {ROUTE_TABLE}; move those routes to another table",
        )
    if any(rule.priority == RULE_PRIORITY for rule in rules):
        yield error(
            "rule-taken",
            f"there is a rule of priority {RULE_PRIORITY}",
            "Limpet puts its own rule there",
            f"see ip rule show; give it another priority than {RULE_PRIORITY}",
        )


def _is_another_s(info: route_codec.RouteInfo, names: dict[int, str], own: set[str]) -> bool:
    prefix = info.prefix
    of_every_link = prefix.is_link_local or prefix.is_multicast or prefix.is_loopback
    return (
        info.table not in (ROUTE_TABLE, _RT_TABLE_LOCAL)
        and info.prefix_length > 0
        and names.get(info.ifindex) not in own
        and not of_every_link
    )


def _held(info: route_codec.RouteInfo, names: dict[int, str]) -> HeldRoute:
    return HeldRoute(info.prefix, names.get(info.ifindex, ""))
