"""plan_node: everything that a node's kernel should hold for its pods. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Interface, ip_interface

from limpet.base.addresses import (
    Address,
    InterfaceAddress,
    Prefix,
    is_plain_name,
    link_local_of,
)
from limpet.base.node_state import PORTS_OF_A_NODE, NodeState
from limpet.base.ownership import POD_IFNAME_PREFIX, SEGMENT_METRIC, UNREACHABLE_METRIC
from limpet.datapath.node.basis import PlanBasis
from limpet.datapath.node.pod.attachment import Attachment, BridgeSpec
from limpet.datapath.node.ruleset import plan_host_ports_of, plan_ruleset
from limpet.datapath.node.state import Bridge, NodePlan, Port, Route, Rule
from limpet.datapath.node.uplinks import FORWARDING
from limpet.ipam.leases import Holder, segment_range


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the plan has to know of the node beside its pods."""

    foreign_bridges: frozenset[str] = frozenset()
    """Bridges that somebody else made; we use them, and leave their MAC and lifetime alone."""
    own_bridge_exists: bool = False
    """The bridge of the segments was made before: it stays, with or without pods."""
    own_bridges: Mapping[str, str] = field(default_factory=dict)
    """MACs of the bridges that we made before, by name."""
    no_bridges: Mapping[str, str] = field(default_factory=dict)
    """Names of bridges that links of another kind have, and why they cannot be used: nothing is
    planned on those."""
    routes_localhost: bool = False
    """A bridge takes packets for 127.0.0.0/8 already: an earlier hostPort, or others, asked."""
    unfiltered: frozenset[int] = frozenset()
    """IP versions of which bridges show nftables nothing that goes from pod to pod."""
    listening_uplinks: frozenset[str] = frozenset()
    """Links that listen to router advertisements: forwarding must not end that."""
    uplink_mtu_bytes: int | None = None
    """The smallest MTU of the links with a default route in main; None without any."""


def bridges_of(bridge: str, basis: PlanBasis, attachments: Iterable[Attachment]) -> set[str]:
    """Names of all that a plan may be of; `bridge`: that of the segments."""
    wanted = {bridge, *(spec.ifname for spec in basis.bridges)}
    return wanted | {each.bridge.ifname for each in attachments if each.bridge is not None}


def plan_by(
    bridge: str, basis: PlanBasis, attachments: Iterable[Attachment], facts: NodeFacts
) -> NodePlan:
    """As `plan_node`; `facts` are of `bridges_of`."""
    exists = basis.state.in_cluster or bridge in facts.own_bridges
    return plan_node(
        bridge,
        basis.state,
        attachments,
        basis.bridges,
        replace(facts, own_bridge_exists=exists),
        localhost_ports=basis.host_ports_expected,
        names_at=basis.names_at,
    )


def plan_node(
    bridge: str,
    state: NodeState,
    attachments: Iterable[Attachment],
    specs: Iterable[BridgeSpec] = (),
    facts: NodeFacts = NodeFacts(),
    *,
    localhost_ports: bool = False,
    names_at: Collection[Address] = (),
) -> NodePlan:
    """What should be; `bridge`: the name of that of the segments.

    The bridge of the segments, and with it our hold on the cluster's prefixes, comes with the first
    pod on it: under another main plugin the segments' addresses are on that one's interfaces.
    `specs`: bridges wanted whether or not a pod is on them yet. `localhost_ports`: hostPorts are to
    be reached over 127.0.0.1 too. `names_at`: where pods ask this node for names.
    """
    pods = [attachment for attachment in attachments if attachment.bridge is not None]
    wanted = {*specs, *(pod.bridge for pod in pods if pod.bridge is not None)}
    if facts.own_bridge_exists and state.segments:
        wanted.add(bridge_of_segments(bridge, state.segments))
    wanted = {spec for spec in wanted if spec.ifname not in facts.no_bridges}
    ours = bridge in {spec.ifname for spec in wanted}
    barrier = (*state.cluster_cidrs, *state.behind.barriers) if ours else ()
    reached = (*state.cluster_cidrs, *state.behind.peers, *state.behind.here)
    gateways = {spec.ifname: _union(spec, wanted) for spec in wanted}
    prefixes = {gateway.network for held in gateways.values() for gateway in held}
    host_ports = plan_host_ports_of(pods)
    localhost_ports = localhost_ports or bool(host_ports)
    guarded = gateways if localhost_ports or facts.routes_localhost else ()
    families: set[int] = {prefix.version for prefix in prefixes}
    macs = {
        ifname: bridge_mac(ifname, held, now=facts.own_bridges.get(ifname))
        for ifname, held in gateways.items()
    }
    return NodePlan(
        bridges={
            ifname: Bridge(
                ifname,
                mac=macs[ifname],
                addresses=frozenset(held)
                | (
                    _link_local(macs[ifname], held)
                    if ifname not in facts.foreign_bridges
                    else set()
                ),
                promisc=any(spec.promisc for spec in wanted if spec.ifname == ifname),
                ours=ifname not in facts.foreign_bridges,
            )
            for ifname, held in gateways.items()
        },
        ports={
            pod.link.host_ifname: Port(
                pod.link.host_ifname, pod.bridge.ifname, pod.link.hairpin, pod.link.isolated
            )
            for pod in pods
            if pod.bridge is not None
        },
        routes=_routes(barrier, gateways),
        rules=frozenset(Rule(v) for v in families | {prefix.version for prefix in barrier}),
        sysctls=_sysctls(gateways, families, facts, localhost_ports=localhost_ports),
        ruleset=plan_ruleset(
            masquerade=[prefix for spec in wanted for prefix in spec.masquerade],
            cluster=[*reached, *prefixes],
            pods=prefixes,
            host_ports=host_ports,
            expect_host_ports=localhost_ports,
            bridges=[ifname for ifname in guarded if is_plain_name(ifname)],
            names_at=names_at,
            own_ports=PORTS_OF_A_NODE | state.own_ports,
            unfiltered=facts.unfiltered,
        ),
    )


def bridge_of_segments(
    ifname: str, segments: tuple[Prefix, ...], *, masquerade: bool = False
) -> BridgeSpec:
    """The bridge that holds the gateway of each of the node's segments."""
    return BridgeSpec(
        ifname,
        tuple(
            ip_interface((segment_range(segment).gateway, segment.prefixlen))
            for segment in segments
        ),
        masquerade=segments if masquerade else (),
    )


def _union(spec: BridgeSpec, wanted: Iterable[BridgeSpec]) -> tuple[InterfaceAddress, ...]:
    """Gateways of every network on one bridge; in one order, so that the plan is the same."""
    held = {
        gateway for other in wanted if other.ifname == spec.ifname for gateway in other.gateways
    }
    return tuple(sorted(held, key=lambda gateway: (gateway.version, int(gateway))))


def _routes(
    barrier: Iterable[Prefix], gateways: dict[str, tuple[InterfaceAddress, ...]]
) -> frozenset[Route]:
    local: dict[Prefix, Route] = {}
    for ifname, held in sorted(gateways.items()):
        for gateway in held:
            source: Address = gateway.ip
            route = Route(gateway.network, ifname, SEGMENT_METRIC, source)
            local.setdefault(gateway.network, route)
    return frozenset(local.values()) | {
        Route(prefix, None, UNREACHABLE_METRIC) for prefix in barrier
    }


def _sysctls(
    gateways: dict[str, tuple[InterfaceAddress, ...]],
    families: set[int],
    facts: NodeFacts,
    *,
    localhost_ports: bool,
) -> dict[str, str]:
    values: dict[str, str] = {}
    if 4 in families:
        values["net/ipv4/ip_forward"] = "1"
        # The kernel sends redirects when either of the two says so: in_dev->cnf and all.
        values["net/ipv4/conf/all/send_redirects"] = "0"
    if 6 in families:
        # Before forwarding: a forwarding node ignores router advertisements unless this is 2.
        for ifname in sorted(facts.listening_uplinks):
            values[f"net/ipv6/conf/{ifname}/accept_ra"] = "2"
        values[FORWARDING] = "1"
    for ifname, held in sorted(gateways.items()):
        versions = {gateway.version for gateway in held}
        if 4 in versions:
            values[f"net/ipv4/conf/{ifname}/send_redirects"] = "0"
            # Or an address takes the others of its subnet with it when it goes.
            values[f"net/ipv4/conf/{ifname}/promote_secondaries"] = "1"
            if localhost_ports and is_plain_name(ifname):
                values[f"net/ipv4/conf/{ifname}/route_localnet"] = "1"
        if 6 in versions:
            values[f"net/ipv6/conf/{ifname}/accept_ra"] = "0"
            values[f"net/ipv6/conf/{ifname}/disable_ipv6"] = "0"
    return values


def bridge_mac(ifname: str, gateways: Iterable[InterfaceAddress], *, now: str | None = None) -> str:
    """A MAC that is the same after every restart: from the first gateway, else from the name.

    `now`: what the bridge has. It stays if it is that of any of the gateways, or of the name: pods
    remember it, and would lose their gateway when a segment is put before the first one.
    """
    right = [*(derived_mac(gateway.ip) for gateway in gateways), derived_mac(ifname)]
    return now if now in right else right[0]


def _link_local(mac: str, gateways: Iterable[InterfaceAddress]) -> set[InterfaceAddress]:
    """What the kernel gives a link, and does not give again when somebody has flushed it.

    Without one it asks no pod for its MAC on behalf of packets from elsewhere, and drops those
    once it has forgotten the MAC. Source: ndisc_send_ns in net/ipv6/ndisc.c.
    """
    if all(gateway.version == 4 for gateway in gateways):
        return set()
    return {IPv6Interface((link_local_of(mac), 64))}


def derived_mac(source: Address | str) -> str:
    """Locally administered, unicast: 0a:58 and the IPv4 address, else a hash.

    The address gives the MAC, so an address that is used again meets no stale neighbour entry, but
    where a pod had it that had asked for another MAC.
    """
    if not isinstance(source, str) and source.version == 4:
        return (b"\x0a\x58" + source.packed).hex(":")
    seed = source.encode() if isinstance(source, str) else source.packed
    return (b"\x0a\x59" + hashlib.sha256(seed).digest()[:4]).hex(":")


def host_ifname(network: str, holder: Holder) -> str:
    """Name of the host end of a pod's interface: 15 characters, as many as the kernel takes."""
    seed = "\0".join((network, holder.container_id, holder.ifname)).encode()
    return POD_IFNAME_PREFIX + hashlib.sha256(seed).hexdigest()[: 15 - len(POD_IFNAME_PREFIX)]


def host_mac(host_name: str) -> str:
    """MAC of a pod's host end. Given explicitly: udev rewrites those that the kernel made up."""
    return (b"\x0e\x58" + hashlib.sha256(host_name.encode()).digest()[:4]).hex(":")
