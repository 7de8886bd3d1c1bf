"""Others' firewall chains on this machine that stop pods, or what nodes send each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from ipaddress import ip_interface, ip_network
from itertools import chain, product

from limpet.agent.settings import Settings
from limpet.base.addresses import Address, InterfaceAddress, Prefix
from limpet.base.errors import LimpetError
from limpet.base.node_state import NodeState
from limpet.base.ownership import DNS_IFNAME
from limpet.cli.doctor.findings import Finding, error, ok, warn
from limpet.cli.doctor.firewall.trial import FirewallDrop, Packet, Rules, Trial, read_rules
from limpet.cli.doctor.target import InboundPort
from limpet.cli.owners import is_ours
from limpet.datapath.node.forward import (
    ForwardChain,
    HandleNftables,
    read_forward_chains,
    unreadable_legacy_tables,
)
from limpet.datapath.overlay.part import OverlayPart
from limpet.datapath.tunnel.owned import owned_by_tunnels
from limpet.linux.namespaces import in_new_namespace
from limpet.linux.netlink.link_codec import IFF_LOOPBACK
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.underlay import read_underlay

_MADE_UP = {4: ip_network("192.0.2.0/24"), 6: ip_network("2001:db8::/64")}
_END = re.compile(r"|(?:log .*)?(?:drop|reject(?: with [\w -]+)?)")
"""A rule for whatever gets to it; empty: the policy."""
_PODS_PORT = 41641
"""Port of packets between pods: one that no rule should be about."""
_NAMES_PORT = 53


@dataclass(frozen=True, slots=True)
class _Node:
    """What firewalls see of the node."""

    bridge: str
    state: NodeState
    ways: dict[str, tuple[str, ...]]
    """Links that pods' packets take, by what a person calls them."""
    uplinks: dict[str, tuple[InterfaceAddress, ...]]
    names: tuple[Address, ...]
    """Where pods ask for names, of the IP versions that they have."""

    @property
    def versions(self) -> list[int]:
        """Those that pods have."""
        state = self.state
        return sorted({each.version for each in (*state.segments, *state.cluster_cidrs)}) or [4]


@dataclass(slots=True)
class _Drops:
    """What drops packets."""

    pods: dict[FirewallDrop, list[str]] = field(default_factory=dict)
    """Pods' packets, with the ways that it stops."""
    ports: dict[FirewallDrop, list[InboundPort]] = field(default_factory=dict)
    """Those to ports of the node."""
    kept_in: dict[FirewallDrop, list[InboundPort]] = field(default_factory=dict)
    """The node's own, to which ports of others."""
    names: dict[FirewallDrop, list[Address]] = field(default_factory=dict)
    """Pods' questions for names, to which of its addresses."""


def examine_firewall(
    settings: Settings,
    state: NodeState,
    ports: Iterable[InboundPort],
    *,
    allowed: bool,
    running: bool,
) -> Iterator[Finding]:
    """What stops pods' packets, what others send to `ports`, and pods' questions for names. Changes
    nothing.

    `allowed`: accept rules are kept in chains that drop; `running`: they should be there already.
    """
    try:
        node = _read_node(settings, state)
        rules = read_rules()
        drops = in_new_namespace(lambda: _try_packets(node, rules, list(ports)))
        yield from _pods_findings(node, drops.pods, allowed=allowed, running=running)
        yield from _port_findings(drops.ports)
        yield from _kept_in_findings(drops.kept_in)
        yield from _names_findings(node, drops.names)
    except LimpetError as problem:
        yield warn(
            "firewall-unknown",
            f"others' firewall rules are not known: {problem}",
            "they may drop what pods and nodes send each other",
            "see nft list ruleset (package nftables)",
        )


def _read_node(settings: Settings, state: NodeState) -> _Node:
    folders, bridge = settings.folders, settings.pods.bridge
    with RouteSocket() as route:
        links = route.links().values()
        underlay = read_underlay(route, patterns=settings.peers.links, not_in=state.cluster_cidrs)
    uplinks = {link.ifname: link.addresses for link in underlay}
    ways = {}
    for words, owned in (
        ("through the tunnel", owned_by_tunnels(folders.run_dir)),
        ("through VXLAN", OverlayPart.owned(folders.run_dir)),
    ):
        ways[words] = tuple(link.ifname for link in links if owned.has(link))
    ways["over"] = tuple(uplinks)
    made_up = tuple(ip_interface(f"{cidr[1]}/{cidr.prefixlen}") for cidr in _MADE_UP.values())
    others = [link for link in links if not is_ours(link) and not link.flags & IFF_LOOPBACK]
    return _Node(
        bridge,
        state,
        {f"{words} {', '.join(sorted(names))}": names for words, names in ways.items() if names},
        uplinks or {link.ifname: made_up for link in others if link.ifname != bridge},
        settings.dns.listen if settings.dns.dns == "on" else (),
    )


# Packets.


def _try_packets(node: _Node, rules: Rules, ports: list[InboundPort]) -> _Drops:
    links = dict.fromkeys((node.bridge, *chain(*node.ways.values())), ()) | node.uplinks
    asked_at = tuple(ip_interface(each) for each in node.names if each.version in node.versions)
    links |= {DNS_IFNAME: asked_at} if asked_at else {}
    spans = ("{}-{}".format(*port.ends) for port in ports if port.untracked)
    drops = _Drops()
    with closing(Trial(rules, links, ", ".join(spans))) as trial:
        for words, names in node.ways.items():
            for dropped in dict.fromkeys(_stopped(trial, node, names)):
                drops.pods.setdefault(dropped, []).append(words)
        for port in ports:
            for dropped in _closed_by(trial, node, port):
                drops.ports.setdefault(dropped, []).append(port)
            for dropped in _kept_in_by(trial, node, port):
                drops.kept_in.setdefault(dropped, []).append(port)
        for own in asked_at:
            pod = _inside(node.state.segments, own.version)
            tried = (Packet(node.bridge, pod, own.ip, each, _NAMES_PORT) for each in ("udp", "tcp"))
            for dropped in dict.fromkeys(filter(None, map(trial.send, tried))):
                drops.names.setdefault(dropped, []).append(own.ip)
    return drops


def _stopped(trial: Trial, node: _Node, links: Iterable[str]) -> Iterator[FirewallDrop]:
    """By what, in both directions and of each IP version that pods have."""
    segments, cidrs = node.state.segments, node.state.cluster_cidrs
    for version in node.versions:
        pod = _inside(segments, version)
        far = _inside(cidrs, version, segments)
        for link, protocol in product(links, ("udp", "tcp")):
            trial.route(pod, node.bridge)
            trial.route(far, link)
            for name, source, target in ((node.bridge, pod, far), (link, far, pod)):
                dropped = trial.send(Packet(name, source, target, protocol, _PODS_PORT))
                if dropped is not None:
                    yield dropped


def _inside(prefixes: Iterable[Prefix], version: int, but_not: Iterable[Prefix] = ()) -> Address:
    """An address of the prefixes; a made-up one if there is none."""
    taken = [prefix for prefix in but_not if prefix.version == version]
    own = [prefix for prefix in prefixes if prefix.version == version]
    found = (prefix[at % prefix.num_addresses] for prefix in own for at in (2, -2))
    free = (address for address in found if not any(address in prefix for prefix in taken))
    return next(free, _MADE_UP[version][2])


def _closed_by(trial: Trial, node: _Node, port: InboundPort) -> Iterable[FirewallDrop]:
    """What drops packets to it on every uplink; a person may keep it to some of them."""
    found: dict[int, list[FirewallDrop | None]] = {}
    for name, own, near in _neighbours(node):
        packets = (
            Packet(name, near, own, port.protocol, number) for number in dict.fromkeys(port.ends)
        )
        dropped = next(filter(None, map(trial.send, packets)), None)
        found.setdefault(own.version, []).append(dropped)
    return _everywhere(found)


def _kept_in_by(trial: Trial, node: _Node, port: InboundPort) -> Iterable[FirewallDrop]:
    """What drops the node's own packets to that port of others, on every uplink."""
    found: dict[int, list[FirewallDrop | None]] = {}
    if port.from_any is not None:
        for name, own, near in _neighbours(node):
            packet = Packet(name, own, near, port.protocol, port.port)
            dropped = trial.send_out(packet, from_any=port.from_any)
            found.setdefault(own.version, []).append(dropped)
    return _everywhere(found)


def _everywhere(found: Mapping[int, list[FirewallDrop | None]]) -> Iterable[FirewallDrop]:
    return {each for all_ in found.values() if all(all_) for each in all_ if each}


def _neighbours(node: _Node) -> Iterator[tuple[str, Address, Address]]:
    """Each uplink with an address of the node and one of another machine there."""
    for name, addresses in node.uplinks.items():
        for own in addresses:
            size = own.network.num_addresses
            near = (own.network[-2 % size], own.network[1 % size], _MADE_UP[own.version][2])
            yield name, own.ip, next(address for address in near if address != own.ip)


# Findings.


def _pods_findings(
    node: _Node, stops: Mapping[FirewallDrop, list[str]], *, allowed: bool, running: bool
) -> Iterator[Finding]:
    with closing(HandleNftables()) as nft:
        chains = [each for each in read_forward_chains(nft) if each.cause]
    for each in chains:
        by = [dropped for dropped in stops if dropped.base == str(each)]
        if each.tool != "nft" or not node.ways or any(map(_is_end, by)):
            yield _closed(each, node.bridge, allowed=allowed, running=running)
        elif not by:
            yield ok(f"{each} drops ({each.cause}), but lets pods' packets of {node.bridge} pass")
    said = set(map(str, chains))
    for dropped, ways in stops.items():
        if dropped.base not in said or not _is_end(dropped):
            yield error(
                "firewall-drops-pods",
                f"{dropped.base} drops pods' packets {' and '.join(ways)}: {_cause(dropped)}",
                "pods of this node and others do not reach each other that way",
                "if no person wants that, take it out, or accept packets of "
                f"{node.bridge} before it (iifname and oifname)",
            )
    for command in unreadable_legacy_tables():
        yield warn(
            "iptables-unreadable",
            f"the kernel has {command} tables, but {command} is not installed",
            "a FORWARD chain there may drop what pods send, and nobody can see it",
            "install iptables, or find out what loaded those tables",
        )
    if not chains and not stops:
        yield ok("no FORWARD chain of others drops pods' packets")


def _closed(each: ForwardChain, bridge: str, *, allowed: bool, running: bool) -> Finding:
    """Finding about a chain that drops what no rule of it accepts."""
    drops, accepts = f"{each} drops ({each.cause})", each.accepts(bridge)
    if accepts and each.tool != "nft":
        return ok(f"{drops}, but for {bridge}: it has Limpet's accept rules")
    if allowed and not running:
        return ok(f"{drops}; accept rules for {bridge} will be kept in it")
    harm = "pods may reach nothing beyond their node"
    if accepts:
        return error(
            "forward-drops",
            f"{drops}, and Limpet's accept rules for {bridge} come too late",
            harm,
            f"see what stands before them: nft list chain {each.family} {each.table} {each.name}",
        )
    if allowed:
        return error(
            "forward-drops",
            f"{drops}, and the accept rules for {bridge} are not in it",
            harm,
            "the agent puts them there: see `limpet status` and the agent's log (journalctl -u "
            "limpet-agent; of a pod, kubectl logs)",
        )
    return error(
        "forward-drops",
        f"{drops} and has no accept rule of Limpet for {bridge}",
        f"{harm}, and on some nodes not even each other",
        "install with --allow-forward (allow_forward = true in the agent's configuration), "
        "which keeps one marked accept rule for each direction there",
    )


def _port_findings(closed: Mapping[FirewallDrop, list[InboundPort]]) -> Iterator[Finding]:
    for dropped, ports in closed.items():
        names, cause = _joined(ports), _cause(dropped)
        yield warn(
            "port-closed",
            f"{dropped.base} drops ({cause}), and no rule of it seems to let {names} in"
            if _is_end(dropped)
            else f"{dropped.base} drops what is sent to {names}: {cause}",
            "; ".join(dict.fromkeys(port.harm for port in ports)),
            "accept it there from the other nodes, unless a rule does so in another way",
        )


def _names_findings(node: _Node, drops: Mapping[FirewallDrop, list[Address]]) -> Iterator[Finding]:
    for dropped, addresses in drops.items():
        yield warn(
            "firewall-drops-names",
            f"{dropped.base} drops pods' questions for names at {' and '.join(map(str, addresses))}"
            f": {_cause(dropped)}",
            "pods that ask this node wait for each name in vain, although the node itself is "
            "answered",
            f"accept what comes in by {node.bridge} for UDP and TCP port {_NAMES_PORT} there, of "
            f"ufw: ufw allow in on {node.bridge} to any port {_NAMES_PORT}",
        )


def _kept_in_findings(kept_in: Mapping[FirewallDrop, list[InboundPort]]) -> Iterator[Finding]:
    for dropped, ports in kept_in.items():
        names, cause = _joined(ports), _cause(dropped)
        yield warn(
            "port-closed",
            f"{dropped.base} drops ({cause}), and no rule of it seems to let out what this node "
            f"sends to {names}"
            if _is_end(dropped)
            else f"{dropped.base} drops what this node sends to {names}: {cause}",
            "it reaches other nodes only where they have spoken first, and some not at all",
            "accept it there to the other nodes, unless a rule does so in another way",
        )


def _joined(ports: Iterable[InboundPort]) -> str:
    """`UDP port 7471 and 8472 and TCP port 443`."""
    found: dict[str, list[str]] = {}
    for port in ports:
        numbers = f"{port.port} to {port.last}" if port.last else str(port.port)
        found.setdefault(port.protocol.upper(), []).append(numbers)
    return " and ".join(f"{kind} port {' and '.join(all_)}" for kind, all_ in found.items())


def _is_end(dropped: FirewallDrop) -> bool:
    return _END.fullmatch(dropped.rule) is not None


def _cause(dropped: FirewallDrop) -> str:
    if not dropped.rule:
        return "policy drop"
    where = "" if dropped.base.endswith(f" {dropped.chain}") else f" in chain {dropped.chain}"
    return f"rule `{dropped.rule}`{where}"
