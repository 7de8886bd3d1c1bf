"""Others' firewall chains on this machine that stop pods, or what nodes send each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from itertools import product

from limpet.agent.settings import Settings
from limpet.base.addresses import Address, InterfaceAddress, Prefix
from limpet.base.errors import LimpetError
from limpet.base.node_state import NodeState
from limpet.base.ownership import ALIAS, TUNNEL_GROUP, VXLAN_GROUPS
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.firewall.trial import Dropped, Packet, Rules, Trial, read_rules
from limpet.cli.install.joining import own_snapshot
from limpet.datapath.node.forward import (
    ForwardChain,
    HandleNftables,
    read_forward_chains,
    unreadable_legacy_tables,
)
from limpet.linux.namespaces import in_new_namespace
from limpet.linux.netlink.codec import IFF_LOOPBACK
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.underlay import read_underlay

_MADE_UP = {4: ip_network("192.0.2.0/24"), 6: ip_network("2001:db8::/64")}
_END = re.compile(r"|(?:log .*)?(?:drop|reject(?: with [\w -]+)?)")
_PODS_PORT = 41641
"""Of packets between pods: one that no rule should be about."""


@dataclass(frozen=True, slots=True)
class InboundPort:
    """Where others send to."""

    port: int
    harm: str
    """What does not work while it is closed."""
    protocol: str = "udp"
    untracked: bool = False
    """The node keeps it out of connection tracking."""
    last: int = 0
    """Of a range of ports."""

    def __str__(self) -> str:
        span = f"s {self.port} to {self.last}" if self.last else f" {self.port}"
        return f"{self.protocol.upper()} port{span}"


def peer_ports(settings: Settings) -> Iterator[InboundPort]:
    """Those of nodes of one site, as far as they are known."""
    harm = "other nodes may not reach this one, nor its pods"
    network = own_snapshot(settings).network
    yield InboundPort(settings.peers.port, harm)
    if network is not None:
        yield InboundPort(network.vxlan_port, harm)


@dataclass(frozen=True, slots=True)
class _Way:
    """Links that pods' packets take, and what a person calls them."""

    words: str
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Of this node, as far as firewalls are concerned."""

    bridge: str
    state: NodeState
    ways: tuple[_Way, ...]
    uplinks: dict[str, tuple[InterfaceAddress, ...]]


_Stops = dict[Dropped, list[_Way]]


def examine_firewall(
    settings: Settings,
    state: NodeState,
    ports: Iterable[InboundPort],
    *,
    allowed: bool,
    running: bool,
) -> Iterator[Finding]:
    """What stops pods' packets, and what others send to `ports`. Changes nothing."""
    try:
        place = _read_place(settings, state)
        rules = read_rules()
        stops, closed = in_new_namespace(lambda: _try_packets(place, rules, list(ports)))
        yield from _forward(place, stops, allowed=allowed, running=running)
        yield from _inbound(closed)
    except LimpetError as problem:
        yield warn(
            f"others' firewall rules are not known: {problem}",
            "they may drop what pods and nodes send each other",
            "see nft list ruleset (package nftables)",
        )


def _read_place(settings: Settings, state: NodeState) -> _Place:
    bridge = settings.pods.bridge
    with RouteSocket() as route:
        links = route.links().values()
        underlay = read_underlay(route, patterns=settings.peers.links, not_in=state.cluster_cidrs)
    tunnel = tuple(link.ifname for link in links if link.group == TUNNEL_GROUP)
    vxlan = tuple(link.ifname for link in links if link.group in VXLAN_GROUPS.values())
    uplinks = {link.ifname: link.addresses for link in underlay}
    ways = (_Way("through the tunnel", tunnel), _Way("through VXLAN", vxlan))
    made_up = tuple(ip_interface(f"{cidr[1]}/{cidr.prefixlen}") for cidr in _MADE_UP.values())
    others = [link for link in links if link.alias != ALIAS and not link.flags & IFF_LOOPBACK]
    return _Place(
        bridge,
        state,
        tuple(way for way in (*ways, _Way("over", tuple(uplinks))) if way.links),
        uplinks or {link.ifname: made_up for link in others if link.ifname != bridge},
    )


# Packets.


def _try_packets(
    place: _Place, rules: Rules, ports: list[InboundPort]
) -> tuple[_Stops, dict[Dropped, list[InboundPort]]]:
    """What drops pods' packets, and what those to the ports."""
    links = dict.fromkeys((place.bridge, *(n for w in place.ways for n in w.links)), ())
    spans = (f"{port.port}-{port.last or port.port}" for port in ports if port.untracked)
    with closing(Trial(rules, {**links, **place.uplinks}, ", ".join(spans))) as trial:
        stops: _Stops = {}
        for way in place.ways:
            for dropped in _stopped(trial, place, way):
                stops.setdefault(dropped, []).append(way)
        closed: dict[Dropped, list[InboundPort]] = {}
        for port in ports:
            for dropped in _closed_by(trial, place, port):
                closed.setdefault(dropped, []).append(port)
    return stops, closed


def _stopped(trial: Trial, place: _Place, way: _Way) -> Iterable[Dropped]:
    """By what, in both directions and of each IP version that pods have."""
    found = []
    bridge, state = place.bridge, place.state
    prefixes = (*state.segments, *state.cluster_cidrs)
    for version in sorted({each.version for each in prefixes}) or [4]:
        pod = _inside(state.segments, version)
        far = _inside(state.cluster_cidrs, version, state.segments)
        for link, protocol in product(way.links, ("udp", "tcp")):
            trial.route(pod, bridge)
            trial.route(far, link)
            for name, source, target in ((bridge, pod, far), (link, far, pod)):
                found.append(trial.send(Packet(name, source, target, protocol, _PODS_PORT)))
    return dict.fromkeys(each for each in found if each)


def _inside(prefixes: Iterable[Prefix], version: int, but_not: Iterable[Prefix] = ()) -> Address:
    """An address of the prefixes; a made-up one if there is none."""
    taken = [prefix for prefix in but_not if prefix.version == version]
    own = [prefix for prefix in prefixes if prefix.version == version]
    found = (prefix[at % prefix.num_addresses] for prefix in own for at in (2, -2))
    free = (address for address in found if not any(address in prefix for prefix in taken))
    return next(free, _MADE_UP[version][2])


def _closed_by(trial: Trial, place: _Place, port: InboundPort) -> Iterable[Dropped]:
    """What drops packets to it on every uplink; a person may keep it to some of them."""
    found: dict[int, list[Dropped | None]] = {}
    for name, own in ((name, own) for name, all_ in place.uplinks.items() for own in all_):
        size = own.network.num_addresses
        near = (own.network[-2 % size], own.network[1 % size], _MADE_UP[own.version][2])
        source = next(address for address in near if address != own.ip)
        packets = (
            Packet(name, source, own.ip, port.protocol, number)
            for number in dict.fromkeys((port.port, port.last or port.port))
        )
        dropped = next(filter(None, map(trial.send, packets)), None)
        found.setdefault(own.version, []).append(dropped)
    return {each for all_ in found.values() if all(all_) for each in all_ if each}


# Findings.


def _forward(place: _Place, stops: _Stops, *, allowed: bool, running: bool) -> Iterator[Finding]:
    nft = HandleNftables()
    try:
        chains = [chain for chain in read_forward_chains(nft) if chain.cause]
    finally:
        nft.close()
    bridge = place.bridge
    for chain in chains:
        by = [dropped for dropped in stops if dropped.base == str(chain)]
        if chain.tool != "nft" or not place.ways or any(map(_is_end, by)):
            yield _closed(chain, bridge, allowed=allowed, running=running)
        elif not by:
            yield ok(f"{chain} drops ({chain.cause}), but lets pods' packets of {bridge} pass")
    said = {str(chain) for chain in chains}
    for dropped, ways in stops.items():
        if dropped.base in said and _is_end(dropped):
            continue
        through = " and ".join(f"{way.words} {', '.join(sorted(way.links))}" for way in ways)
        yield error(
            f"{dropped.base} drops pods' packets {through}: {_cause(dropped)}",
            "pods of this node and others do not reach each other that way",
            f"if no person wants that, take it out, or accept packets of {bridge} before it "
            "(iifname and oifname)",
        )
    for command in unreadable_legacy_tables():
        yield warn(
            f"the kernel has {command} tables, but {command} is not installed",
            "a FORWARD chain there may drop what pods send, and nobody can see it",
            "install iptables, or find out what loaded those tables",
        )
    if not chains and not stops:
        yield ok("no FORWARD chain of others drops pods' packets")


def _closed(chain: ForwardChain, bridge: str, *, allowed: bool, running: bool) -> Finding:
    """Of a chain that drops what no rule of it accepts."""
    if chain.tool != "nft" and chain.accepts(bridge):
        return ok(f"{chain} drops ({chain.cause}), but for {bridge}: it has Limpet's accept rules")
    if allowed and not running:
        return ok(f"{chain} drops ({chain.cause}); accept rules for {bridge} will be kept in it")
    if chain.accepts(bridge):
        return error(
            f"{chain} drops ({chain.cause}), and Limpet's accept rules for {bridge} come too late",
            "pods may reach nothing beyond their node",
            f"see what stands before them: nft list chain {chain.family} {chain.table} "
            f"{chain.name}",
        )
    if allowed:
        return error(
            f"{chain} drops ({chain.cause}), and the accept rules for {bridge} are not in it",
            "pods may reach nothing beyond their node",
            "the agent puts them there: see `limpet status`, journalctl -u limpet-agent",
        )
    return error(
        f"{chain} drops ({chain.cause}) and has no accept rule of Limpet for {bridge}",
        "pods may reach nothing beyond their node, and on some nodes not even each other",
        "install with --allow-forward (allow_forward = true in the agent's configuration), "
        "which keeps one marked accept rule for each direction there",
    )


def _inbound(closed: Mapping[Dropped, list[InboundPort]]) -> Iterator[Finding]:
    for dropped, ports in closed.items():
        names = _joined(ports)
        what = f"{dropped.base} drops what is sent to {names}: {_cause(dropped)}"
        if _is_end(dropped):
            ends = f"{dropped.base} drops ({_cause(dropped)})"
            what = f"{ends}, and no rule of it seems to let {names} in"
        yield warn(
            what,
            "; ".join(dict.fromkeys(port.harm for port in ports)),
            "accept it there from the other nodes, unless a rule does so in another way",
        )


def _joined(ports: Iterable[InboundPort]) -> str:
    """`UDP port 7471 and 8472 and TCP port 443`."""
    found: dict[str, list[str]] = {}
    for port in ports:
        kind, _, numbers = str(port).partition(" port")
        found.setdefault(kind, []).append(numbers.removeprefix("s").strip())
    return " and ".join(f"{kind} port {' and '.join(all_)}" for kind, all_ in found.items())


def _is_end(dropped: Dropped) -> bool:
    """The policy, or a rule for whatever gets there."""
    return _END.fullmatch(dropped.rule) is not None


def _cause(dropped: Dropped) -> str:
    if not dropped.rule:
        return "policy drop"
    where = "" if dropped.base.endswith(f" {dropped.chain}") else f" in chain {dropped.chain}"
    return f"rule `{dropped.rule}`{where}"
