"""diff: the ordered changes that turn what is into what should be. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from limpet.datapath.change import Drop, LinkAddress, Put, on_link
from limpet.datapath.node.state import Bridge, NodePlan, Port, Route, Rule


@dataclass(frozen=True, slots=True)
class PutSysctl:
    """A setting below /proc/sys."""

    path: str
    value: str


@dataclass(frozen=True, slots=True)
class PutRuleset:
    """Our nftables table, in nft's syntax."""

    text: str


@dataclass(frozen=True, slots=True)
class MissingPort:
    """A pod's host end is gone; the pod's interface has to be made anew, or the pod is gone too."""

    ifname: str


Change = (
    Put[Bridge | LinkAddress | Route | Rule | Port]
    | Drop[LinkAddress | Route | Rule | Port]
    | PutSysctl
    | PutRuleset
    | MissingPort
)
"""A bridge is put without its addresses; a port is put where its link is there."""


def diff_node(want: NodePlan, have: NodePlan) -> list[Change]:
    """Changes from `have` to `want`: first what adds reach, last what removes it.

    Bridges are never removed (others may have ports on them), only our addresses on them.
    """
    wanted_keys = {route_key(route) for route in want.routes}
    # One with a wanted key is overwritten in place.
    unwanted = [route for route in have.routes if route_key(route) not in wanted_keys]
    return [
        *map(Put, _new_bridges(want, have)),
        # Before route_localnet, which it makes up for.
        *([PutRuleset(want.ruleset)] if want.ruleset != have.ruleset else []),
        *(
            PutSysctl(path, value)
            for path, value in want.sysctls.items()
            if have.sysctls.get(path) != value
        ),
        *map(Put, _new_addresses(want, have)),
        *map(Put, sorted(want.routes - have.routes, key=route_key)),
        *map(Put, sorted(want.rules - have.rules)),
        *_ports(want, have),
        *map(Drop, sorted(have.rules - want.rules)),
        *map(Drop, sorted(unwanted, key=route_key)),
        *map(Drop, _old_addresses(want, have)),
        *(Drop(have.ports[ifname]) for ifname in sorted(have.ports.keys() - want.ports.keys())),
    ]


def _new_bridges(want: NodePlan, have: NodePlan) -> Iterator[Bridge]:
    for ifname, bridge in sorted(want.bridges.items()):
        found = have.bridges.get(ifname)
        same = found is not None and found.up and found.promisc >= bridge.promisc
        if not same or (bridge.ours and found is not None and _differs(bridge, found)):
            yield bridge


def _differs(bridge: Bridge, found: Bridge) -> bool:
    """In what is for us to say of a bridge that we made."""
    return (found.mac, found.learns_link_local) != (bridge.mac, bridge.learns_link_local)


def _new_addresses(want: NodePlan, have: NodePlan) -> Iterator[LinkAddress]:
    for ifname, bridge in sorted(want.bridges.items()):
        held = have.bridges[ifname].addresses if ifname in have.bridges else frozenset()
        yield from on_link(ifname, bridge.addresses - held)


def _old_addresses(want: NodePlan, have: NodePlan) -> Iterator[LinkAddress]:
    """Only on bridges that we made: on another's, a foreign address is not ours to judge."""
    for ifname, found in sorted(have.bridges.items()):
        wanted = want.bridges.get(ifname)
        if wanted is not None and wanted.ours:
            yield from on_link(ifname, found.addresses - wanted.addresses)


def _ports(want: NodePlan, have: NodePlan) -> Iterator[Put[Port] | MissingPort]:
    for ifname, port in sorted(want.ports.items()):
        found = have.ports.get(ifname)
        if found is None:
            yield MissingPort(ifname)
        elif found != port:
            yield Put(port)


def route_key(route: Route) -> tuple[int, int, int, int]:
    """What the kernel takes for the identity of a route. Source: fib_table_insert, fib6_add."""
    prefix = route.prefix
    return prefix.version, int(prefix.network_address), prefix.prefixlen, route.metric
