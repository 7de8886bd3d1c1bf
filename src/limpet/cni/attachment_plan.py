"""plan_attachment: a pod's interface out of a request, the node's state and leased addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_interface, ip_network

from limpet.base.addresses import Address, InterfaceAddress, Prefix, bounds_of
from limpet.base.errors import CniCode, CniError
from limpet.base.node_state import NodeState
from limpet.base.settings import PodSettings
from limpet.cni.protocol.values import (
    CniRequest,
    CniResult,
    Dns,
    NetworkConf,
    ResultAddress,
    ResultInterface,
)
from limpet.datapath.node.plan import bridge_of_segments, derived_mac, host_ifname, host_mac
from limpet.datapath.node.pod.attachment import (
    AllowedSources,
    Attachment,
    BridgeSpec,
    Netns,
    PodLink,
    PodName,
    RouteSpec,
)
from limpet.ipam.leases import Range, RangeSet, segment_range_sets

_DEFAULT_ROUTES = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}
_REFERENCE_MTU_BYTES = 1500
"""What a bridge without ports has, and so the reference plugin's pods."""
_LEAST_IPV6_MTU_BYTES = 1280
"""Source: RFC 8200, section 5; below it Linux takes IPv6 off a link."""


@dataclass(frozen=True, slots=True)
class PlannedNetwork:
    """A network configuration put together with the agent's settings."""

    name: str
    range_sets: tuple[RangeSet, ...]
    from_segments: bool
    """The addresses are out of the node's own segments."""
    shares_segments: bool
    """The addresses may be in the node's own segments, which other networks draw on as well."""
    bridge: BridgeSpec | None
    """None in IPAM mode."""
    mtu_bytes: int


def plan_network(
    conf: NetworkConf, settings: PodSettings, state: NodeState, *, uplink_mtu_bytes: int
) -> PlannedNetwork:
    """Raises: CniError (7: the configuration contradicts the agent's; 11: no segment yet)."""
    from_segments = not conf.ipam.range_sets
    range_sets = conf.ipam.range_sets or segment_range_sets(state.segments)
    if not range_sets:
        raise CniError(
            CniCode.TRY_AGAIN_LATER,
            f"network {conf.name}: this node has no address segment",
            (
                "the cluster has granted it none yet: `limpet status` says why"
                if state.in_cluster
                else 'set segments = ["10.244.7.0/24"] in the agent\'s configuration and restart it'
            )
            + ", or give the network ipam.ranges",
        )
    network = PlannedNetwork(
        conf.name,
        range_sets,
        from_segments,
        from_segments or _overlap(range_sets, state.segments),
        None if conf.ipam_only else _bridge(conf, settings.bridge, state, range_sets),
        conf.main.mtu_bytes or _mtu_bytes(settings, from_segments, uplink_mtu_bytes),
    )
    _check_mtu(network, settings.bridge, state)
    return network


def _overlap(range_sets: Sequence[RangeSet], segments: Sequence[Prefix]) -> bool:
    return any(
        range_.subnet.version == segment.version and range_.subnet.overlaps(segment)
        for range_set in range_sets
        for range_ in range_set
        for segment in segments
    )


def _check_mtu(network: PlannedNetwork, bridge: str, state: NodeState) -> None:
    """A bridge has the MTU of its smallest port: one pod could end IPv6 for all."""
    if network.bridge is None or network.mtu_bytes >= _LEAST_IPV6_MTU_BYTES:
        return
    versions = {range_set[0].subnet.version for range_set in network.range_sets}
    if network.bridge.ifname == bridge:
        versions |= {segment.version for segment in state.segments}
    if 6 in versions:
        raise CniError(
            CniCode.INVALID_NETWORK_CONFIG,
            f"network {network.name}: MTU {network.mtu_bytes} is too small for IPv6 "
            f"on bridge {network.bridge.ifname}",
            f"set `mtu` of the network, or `mtu_bytes` of the agent's configuration, to "
            f"{_LEAST_IPV6_MTU_BYTES} or more",
        )


def _mtu_bytes(settings: PodSettings, from_segments: bool, uplink_mtu_bytes: int) -> int:
    if settings.mtu_bytes is None and not from_segments:
        return _REFERENCE_MTU_BYTES
    return pod_mtu_bytes(settings, uplink_mtu_bytes)


def pod_mtu_bytes(settings: PodSettings, uplink_mtu_bytes: int) -> int:
    """MTU of a pod of the segments: room for an overlay is left, and IPv6 works."""
    return settings.mtu_bytes or max(uplink_mtu_bytes - settings.overlay_bytes, 1280)


def _bridge(
    conf: NetworkConf, bridge: str, state: NodeState, range_sets: Sequence[RangeSet]
) -> BridgeSpec:
    if not conf.ipam.range_sets:
        if conf.main.bridge not in (None, bridge):
            raise CniError(
                CniCode.INVALID_NETWORK_CONFIG,
                f"network {conf.name}: bridge {conf.main.bridge} is not the agent's, {bridge}, "
                "which holds the gateways of its segments",
                "leave `bridge` out, or set it in the agent's configuration, "
                "or give the network ranges of its own",
            )
        own = bridge_of_segments(bridge, state.segments, masquerade=conf.main.ip_masq)
        return BridgeSpec(own.ifname, own.gateways, own.masquerade, conf.main.promisc_mode)
    ranges = [each for ranges in range_sets for each in ranges]
    with_gateway = conf.main.is_gateway or conf.main.is_default_gateway or conf.main.ip_masq
    return BridgeSpec(
        conf.main.bridge or bridge,
        gateways=tuple(dict.fromkeys(map(_gateway, ranges))) if with_gateway else (),
        masquerade=tuple(dict.fromkeys(r.subnet for r in ranges)) if conf.main.ip_masq else (),
        promisc=conf.main.promisc_mode,
    )


def _gateway(range_: Range) -> InterfaceAddress:
    return ip_interface((range_.gateway, range_.subnet.prefixlen))


def plan_routes(conf: NetworkConf, gateways: Sequence[Address]) -> tuple[RouteSpec, ...]:
    """Routes of a pod, gateways filled in; a route of a family that the pod lacks is left out.

    `gateways`: of the pod's addresses, in order.
    """
    of_family = {gateway.version: gateway for gateway in reversed(gateways)}
    routes = {
        (route.destination, route.priority, route.table): RouteSpec(
            route.destination,
            # A route with a scope of link or host has no gateway by its meaning.
            gateway=route.gateway
            or (None if route.scope else of_family[route.destination.version]),
            mtu=route.mtu,
            advmss=route.advmss,
            priority=route.priority,
            table=route.table,
            scope=route.scope,
        )
        for route in conf.ipam.routes
        if route.destination.version in of_family
    }
    if conf.main.is_default_gateway:
        for version, gateway in of_family.items():
            destination = _DEFAULT_ROUTES[version]
            if not any(
                (route.destination, route.table) == (destination, None) for route in routes.values()
            ):
                routes[destination, None, None] = RouteSpec(destination, gateway)
    return tuple(routes.values())


def plan_attachment(
    request: CniRequest,
    network: PlannedNetwork,
    *,
    addresses: tuple[InterfaceAddress, ...],
    gateways: tuple[Address, ...],
    netns_id: tuple[int, int],
) -> Attachment:
    """The pod's interface as it should be; in IPAM mode only its addresses."""
    conf = request.conf
    host = host_ifname(conf.name, request.holder)
    return Attachment(
        network=conf.name,
        holder=request.holder,
        netns=Netns(request.netns, *netns_id),
        pod=PodName(request.pod_namespace, request.pod_name, request.wishes.labels),
        addresses=addresses,
        gateways=gateways,
        data_dir=conf.ipam.data_dir,
        bridge=network.bridge,
        link=PodLink(
            host,
            host_mac(host),
            request.wishes.mac or derived_mac(addresses[0].ip),
            network.mtu_bytes,
            # With br_netfilter a pod's way to its own hostPort is bridged, back out of its port.
            hairpin=conf.main.hairpin_mode
            or (bool(request.wishes.port_mappings) and not conf.main.promisc_mode),
            isolated=conf.main.port_isolation,
            allowed=replace(request.wishes.allowed, unchecked=not conf.main.port_security),
        ),
        routes=plan_routes(conf, gateways),
        port_mappings=request.wishes.port_mappings,
        bandwidth=request.wishes.bandwidth,
    )


def check_allowed(allowed: AllowedSources, settings: PodSettings) -> None:
    """Raises: CniError (7) where the node does not grant a pod what it may send from."""
    granted = settings.pod_extra_addresses
    for prefix in allowed.prefixes:
        if not any(_covers(each, prefix) for each in granted):
            raise CniError(
                CniCode.INVALID_NETWORK_CONFIG,
                f"allowed addresses: {prefix} is not what a pod of this node may ask for "
                f"({', '.join(map(str, granted)) or 'there is nothing'})",
                f'pod_extra_addresses = ["{prefix}"] in the agent\'s configuration grants it',
            )
    for mac in allowed.macs:
        if not mac.startswith(settings.pod_extra_macs or ("none",)):
            raise CniError(
                CniCode.INVALID_NETWORK_CONFIG,
                f"allowed MACs: {mac} is not what a pod of this node may ask for "
                f"({', '.join(settings.pod_extra_macs) or 'there is nothing'})",
                f'pod_extra_macs = ["{mac}"] in the agent\'s configuration grants it',
            )


def _covers(wider: Prefix, prefix: Prefix) -> bool:
    first, last = bounds_of(wider)
    return wider.version == prefix.version and (
        first <= int(prefix.network_address) and bounds_of(prefix)[1] <= last
    )


def plan_result(attachment: Attachment, *, bridge_mac: str, dns: Dns) -> CniResult:
    """What ADD answers: bridge, host end and pod's end, or bare addresses in IPAM mode."""
    bridge = attachment.bridge
    interfaces: tuple[ResultInterface, ...] = ()
    if bridge is not None:
        mtu = attachment.link.mtu_bytes
        interfaces = (
            ResultInterface(bridge.ifname, bridge_mac),
            ResultInterface(attachment.link.host_ifname, attachment.link.host_mac, mtu),
            ResultInterface(
                attachment.holder.ifname, attachment.link.mac, mtu, attachment.netns.path
            ),
        )
    return CniResult(
        interfaces,
        tuple(
            ResultAddress(address, gateway, None if bridge is None else 2)
            for address, gateway in zip(attachment.addresses, attachment.gateways, strict=True)
        ),
        attachment.routes,
        dns,
    )


def merge_results(before: CniResult | None, ours: CniResult) -> CniResult:
    """Ours behind what plugins earlier in the chain have made.

    Source: CNI SPEC.md, section 'ADD': a plugin passes prevResult through, or modifies it.
    """
    if before is None:
        return ours
    shift = len(before.interfaces)
    addresses = tuple(
        replace(address, interface=address.interface + shift)
        if address.interface is not None
        else address
        for address in ours.addresses
    )
    return CniResult(
        before.interfaces + ours.interfaces,
        before.addresses + addresses,
        before.routes + ours.routes,
        ours.dns if ours.dns != Dns() else before.dns,
    )
