"""diff: the ordered changes that turn what is into what should be. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from limpet.base.addresses import InterfaceAddress
from limpet.datapath.node.state import Bridge, NodePlan, Port, Route, Rule


@dataclass(frozen=True, slots=True)
class PutSysctl:
    path: str
    value: str


@dataclass(frozen=True, slots=True)
class PutBridge:
    """Make the bridge, or set what differs on it; addresses are changes of their own."""

    bridge: Bridge


@dataclass(frozen=True, slots=True)
class PutAddress:
    bridge: str
    address: InterfaceAddress


@dataclass(frozen=True, slots=True)
class DropAddress:
    bridge: str
    address: InterfaceAddress


@dataclass(frozen=True, slots=True)
class PutRoute:
    route: Route


@dataclass(frozen=True, slots=True)
class DropRoute:
    route: Route


@dataclass(frozen=True, slots=True)
class PutRule:
    rule: Rule


@dataclass(frozen=True, slots=True)
class DropRule:
    rule: Rule


@dataclass(frozen=True, slots=True)
class PutPort:
    """Put an existing host end on its bridge with its settings."""

    port: Port


@dataclass(frozen=True, slots=True)
class MissingPort:
    """A pod's host end is gone; the pod's interface has to be made anew, or the pod is gone too."""

    ifname: str


@dataclass(frozen=True, slots=True)
class DropPort:
    """A host end of ours that belongs to no pod."""

    ifname: str


@dataclass(frozen=True, slots=True)
class PutRuleset:
    text: str


Change = (
    PutSysctl
    | PutBridge
    | PutAddress
    | DropAddress
    | PutRoute
    | DropRoute
    | PutRule
    | DropRule
    | PutPort
    | MissingPort
    | DropPort
    | PutRuleset
)


def diff_node(want: NodePlan, have: NodePlan) -> list[Change]:
    """Changes from `have` to `want`: first what adds reach, last what removes it.

    Bridges are never removed (others may have ports on them), only our addresses on them.
    """
    return [
        *_new_bridges(want, have),
        # Before route_localnet, which it makes up for.
        *([PutRuleset(want.ruleset)] if want.ruleset != have.ruleset else []),
        *(
            PutSysctl(path, value)
            for path, value in want.sysctls.items()
            if have.sysctls.get(path) != value
        ),
        *_put_addresses(want, have),
        *map(PutRoute, _sorted_routes(want.routes - have.routes)),
        *(PutRule(rule) for rule in _sorted_rules(want.rules - have.rules)),
        *_ports(want, have),
        *(DropRule(rule) for rule in _sorted_rules(have.rules - want.rules)),
        *map(DropRoute, _sorted_routes(_unwanted(want.routes, have.routes))),
        *_drop_addresses(want, have),
        *(DropPort(ifname) for ifname in sorted(have.ports.keys() - want.ports.keys())),
    ]


def _new_bridges(want: NodePlan, have: NodePlan) -> Iterable[PutBridge]:
    for ifname, bridge in sorted(want.bridges.items()):
        found = have.bridges.get(ifname)
        same = found is not None and found.up and found.promisc >= bridge.promisc
        if not same or (bridge.ours and found is not None and found.mac != bridge.mac):
            yield PutBridge(bridge)


def _put_addresses(want: NodePlan, have: NodePlan) -> Iterable[PutAddress]:
    for ifname, bridge in sorted(want.bridges.items()):
        held = have.bridges[ifname].addresses if ifname in have.bridges else frozenset()
        for address in sorted(bridge.addresses - held, key=_address_key):
            yield PutAddress(ifname, address)


def _drop_addresses(want: NodePlan, have: NodePlan) -> Iterable[DropAddress]:
    """Only on bridges that we made: on another's, a foreign address is not ours to judge."""
    for ifname, found in sorted(have.bridges.items()):
        wanted = want.bridges.get(ifname)
        if wanted is None or not wanted.ours:
            continue
        for address in sorted(found.addresses - wanted.addresses, key=_address_key):
            yield DropAddress(ifname, address)


def _address_key(address: InterfaceAddress) -> tuple[int, int]:
    return address.version, int(address)


def _ports(want: NodePlan, have: NodePlan) -> Iterable[PutPort | MissingPort]:
    for ifname, port in sorted(want.ports.items()):
        found = have.ports.get(ifname)
        if found is None:
            yield MissingPort(ifname)
        elif found != port:
            yield PutPort(port)


def _unwanted(want: frozenset[Route], have: frozenset[Route]) -> list[Route]:
    """Routes that no put replaces; one with a wanted key is overwritten in place."""
    wanted = {route_key(route) for route in want}
    return [route for route in have if route_key(route) not in wanted]


def route_key(route: Route) -> tuple[int, int, int, int, int]:
    """What the kernel takes for the identity of a route. Source: fib_table_insert, fib6_add."""
    prefix = route.prefix
    return (
        prefix.version,
        int(prefix.network_address),
        prefix.prefixlen,
        route.metric,
        route.table,
    )


def _sorted_routes(routes: Iterable[Route]) -> list[Route]:
    return sorted(routes, key=route_key)


def _sorted_rules(rules: Iterable[Rule]) -> list[Rule]:
    return sorted(rules, key=lambda rule: (rule.version, rule.priority, rule.table))
