"""Services and EndpointSlices of an API server, read into the values that a node works with.

What no node can use is left out, and never an error: an object may be made by hand.
Source: k8s.io/api/core/v1/types.go, discovery/v1/types.go.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address, ip_network
from sys import intern

import msgspec

from limpet.kubernetes.objects import Resource, Viewed
from limpet.services.values import (
    NONE,
    NOT_EXPOSED,
    READY,
    SERVING,
    TERMINATING,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Exposure,
    Service,
    ServicePort,
)

SERVICE_LABEL = "kubernetes.io/service-name"
"""Of an EndpointSlice: whose endpoints it has."""
PROXY_LABEL = "service.kubernetes.io/service-proxy-name"
"""Somebody else serves what carries it."""
DISTRIBUTION_ANNOTATION = "limpet.dev/traffic-distribution"
_DEFAULT_AFFINITY_S, _MOST_AFFINITY_S = 10800, 86400
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_NOBODYS = r"0\.0\.0\.0|127\.|169\.254\.|255\.255\.255\.255|22[4-9]\.|23[0-9]\."
"""How addresses of IPv4 begin that are of no pod and no Service."""
_IPV4 = re.compile(rf"(?!{_NOBODYS}){_OCTET}(?:\.{_OCTET}){{3}}")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_VERSIONS = {"IPv4": 4, "IPv6": 6}
_MOST_PORT = (1 << 16) - 1
_BROADCAST = ip_address("255.255.255.255")
_NOBODY = ("0.0.0.0/32", "::/128")
"""Prefixes that nobody writes from."""


class PortView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    node_port: int | None = None


class ClientIpView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    timeout_seconds: int | None = None


class AffinityView(msgspec.Struct, frozen=True, gc=False):
    client_ip: ClientIpView | None = msgspec.field(default=None, name="clientIP")


class ServiceSpecView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(default="", name="clusterIP")
    cluster_ips: list[str] | None = msgspec.field(default=None, name="clusterIPs")
    ports: list[PortView] | None = None
    external_ips: list[str] | None = msgspec.field(default=None, name="externalIPs")
    external_name: str = ""
    session_affinity: str = ""
    session_affinity_config: AffinityView | None = None
    internal_traffic_policy: str | None = None
    external_traffic_policy: str | None = None
    health_check_node_port: int = 0
    traffic_distribution: str | None = None
    publish_not_ready_addresses: bool = False
    load_balancer_source_ranges: list[str] | None = None


class IngressView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    ip: str = ""
    ip_mode: str | None = None


class BalancerView(msgspec.Struct, frozen=True, gc=False):
    ingress: list[IngressView] | None = None


class ServiceStatusView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    load_balancer: BalancerView = BalancerView()


class ServiceView(Viewed, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    spec: ServiceSpecView = ServiceSpecView()
    status: ServiceStatusView = ServiceStatusView()


class ConditionsView(msgspec.Struct, frozen=True, gc=False):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetView(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    name: str = ""


class HintView(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class HintsView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    for_zones: list[HintView] | None = None
    for_nodes: list[HintView] | None = None


_NO_HINTS = HintsView()


class EndpointView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    addresses: list[str] | None = None
    conditions: ConditionsView = ConditionsView()
    hostname: str | None = None
    node_name: str | None = None
    zone: str | None = None
    target_ref: TargetView | None = None
    hints: HintsView | None = None


class SliceView(Viewed, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    address_type: str = ""
    endpoints: list[EndpointView] | None = None
    ports: list[PortView] | None = None


SERVICES = Resource("Service", "services", ServiceView, namespaced=True)
ENDPOINT_SLICES = Resource(
    "EndpointSlice", "endpointslices", SliceView, "discovery.k8s.io", namespaced=True
)


def service_of(view: ServiceView) -> Service | None:
    """None: somebody else serves it."""
    spec, labels = view.spec, view.metadata.labels or {}
    if PROXY_LABEL in labels:
        return None
    addresses = spec.cluster_ips or [spec.cluster_ip]
    is_name = spec.type == "ExternalName"
    annotated = (view.metadata.annotations or {}).get(DISTRIBUTION_ANNOTATION, "")
    return Service(
        namespace=intern(view.metadata.namespace),
        name=intern(view.metadata.name),
        type=intern(spec.type),
        cluster_ips=(NONE,) if NONE in addresses else () if is_name else _addresses(addresses),
        ports=tuple(_service_port(each) for each in spec.ports or () if _is_usable(each)),
        exposure=_exposure(view),
        external_name=spec.external_name if is_name else "",
        affinity_s=_affinity_s(spec),
        is_internal_local=spec.internal_traffic_policy == "Local",
        distribution=intern(annotated or spec.traffic_distribution or ""),
        publish_not_ready=spec.publish_not_ready_addresses,
    )


def slice_of(view: SliceView) -> EndpointSlice:
    """Endpoints without an address, or with one of another family, are left out."""
    version = _VERSIONS.get(view.address_type, 0)
    return EndpointSlice(
        namespace=intern(view.metadata.namespace),
        name=view.metadata.name,
        service=intern((view.metadata.labels or {}).get(SERVICE_LABEL, "")),
        version=version,
        ports=tuple(
            EndpointPort(intern(each.name or ""), intern(each.protocol or "TCP"), each.port or 0)
            for each in view.ports or ()
            if _is_usable(each)
        ),
        endpoints=tuple(
            found
            for each in view.endpoints or ()
            if (found := _endpoint(each, version)) is not None
        ),
    )


def _exposure(view: ServiceView) -> Exposure:
    spec = view.spec
    ingress = view.status.load_balancer.ingress or ()
    balanced = [each.ip for each in ingress if each.ip_mode in (None, "", "VIP")]
    found = Exposure(
        external_ips=_addresses(spec.external_ips or ()),
        load_balancer_ips=_addresses(balanced) if spec.type == "LoadBalancer" else (),
        source_ranges=_prefixes(spec.load_balancer_source_ranges or ()),
        is_local=spec.external_traffic_policy == "Local",
        health_check_node_port=_port_or_none(spec.health_check_node_port),
    )
    return NOT_EXPOSED if found == NOT_EXPOSED else found


def _affinity_s(spec: ServiceSpecView) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    configured = spec.session_affinity_config
    client_ip = configured.client_ip if configured is not None else None
    timeout_s = client_ip.timeout_seconds if client_ip is not None else None
    return min(timeout_s, _MOST_AFFINITY_S) if timeout_s and timeout_s > 0 else _DEFAULT_AFFINITY_S


def _is_usable(port: PortView) -> bool:
    return (port.protocol or "TCP") in _PROTOCOLS and bool(_port_or_none(port.port))


def _port_or_none(number: int | None) -> int:
    return number if number is not None and 0 < number <= _MOST_PORT else 0


def _service_port(view: PortView) -> ServicePort:
    return ServicePort(
        intern(view.name or ""),
        intern(view.protocol or "TCP"),
        view.port or 0,
        _port_or_none(view.node_port),
    )


def _endpoint(view: EndpointView, version: int) -> Endpoint | None:
    """Of several addresses the first counts, as the API says."""
    address = view.addresses[0] if view.addresses else ""
    if version:
        address = _address(address, version)
    if not address:
        return None
    seen = view.conditions
    ready = seen.ready is not False
    serving = ready if seen.serving is None else seen.serving
    target = view.target_ref
    hints = view.hints or _NO_HINTS
    return Endpoint(
        address,
        READY * ready + SERVING * serving + TERMINATING * bool(seen.terminating),
        intern(view.node_name or ""),
        intern(view.zone or ""),
        view.hostname or "",
        target.name if target is not None and target.kind == "Pod" else "",
        _hinted(hints.for_zones),
        _hinted(hints.for_nodes),
    )


def _hinted(hints: list[HintView] | None) -> tuple[str, ...]:
    return tuple(intern(each.name) for each in hints if each.name) if hints else ()


def _address(text: str, version: int = 0) -> str:
    """As it is written shortest; empty: it is none, or one that belongs to no pod and no Service:
    the API server lets none of those in either, but lists may come from elsewhere."""
    if ":" not in text:
        # There may be 50,000 at once: a quarter of the time.
        return text if version in (0, 4) and _IPV4.fullmatch(text) else ""
    try:
        found = ip_address(text)
    except ValueError:
        return ""
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    unusable = (
        found.is_unspecified
        or found.is_multicast
        or found.is_loopback
        or found.is_link_local
        or found == _BROADCAST
        or "%" in text
    )
    return "" if unusable or version not in (0, found.version) else str(found)


def _addresses(texts: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found for each in texts if (found := _address(each))))


def _prefixes(texts: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """What cannot be read lets nobody in; where nothing can be, nobody is let in."""
    found = []
    for text in texts:
        try:
            prefix = ip_network(text.strip(), strict=False)
        except ValueError:
            continue
        if "%" not in text:
            found.append(str(prefix))
    return tuple(found) if found or not texts else _NOBODY
