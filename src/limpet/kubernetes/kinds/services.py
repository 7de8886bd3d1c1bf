"""Services and EndpointSlices of an API server, read into the values that a node works with.

What no node can use is left out, and never an error: an object may be made by hand. Each says in
words what that was.
Source: k8s.io/api/core/v1/types.go, discovery/v1/types.go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Annotated

import msgspec

from limpet.base.bounds.tenants import (
    ENDPOINT_ADDRESSES,
    ENDPOINT_HINTS,
    SERVICE_ADDRESSES,
    SOURCE_RANGES,
)
from limpet.base.bounds.words import NAME, SERVICE_PORTS, SLICE_ENDPOINTS
from limpet.base.text.shared import share
from limpet.kubernetes.kinds.left_out import LeftOut
from limpet.kubernetes.kinds.objects import Resource, Viewed
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
"""Label of an EndpointSlice: the Service whose endpoints it has."""
PROXY_LABEL = "service.kubernetes.io/service-proxy-name"
HEADLESS_LABEL = "service.kubernetes.io/headless"
_LEFT = frozenset((PROXY_LABEL, HEADLESS_LABEL))
"""Labels of what somebody else serves, or nobody. Source: cmd/kube-proxy/app/server.go."""
DISTRIBUTION_ANNOTATION = "limpet.dev/traffic-distribution"
_DEFAULT_AFFINITY_S, _MOST_AFFINITY_S = 10800, 86400
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_NOBODYS = r"0\.0\.0\.0|127\.|169\.254\.|255\.255\.255\.255|22[4-9]\.|23[0-9]\."
"""How addresses of IPv4 begin that are of no pod and no Service."""
_IPV4 = re.compile(rf"(?!{_NOBODYS}){_OCTET}(?:\.{_OCTET}){{3}}")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_VERSIONS = {"IPv4": 4, "IPv6": 6}
_FQDN = "FQDN"
_MOST_PORT = (1 << 16) - 1
_BROADCAST = ip_address("255.255.255.255")
_NOBODY = ("0.0.0.0/32", "::/128")
"""Prefixes that nobody writes from."""
_NO_ADDRESS = "no address that a pod or a Service can have"

Word = Annotated[str, msgspec.Meta(max_length=NAME.most)]
"""What an API server lets nobody make longer: an object with more is none of its."""
Addresses = Annotated[list[Word], msgspec.Meta(max_length=SERVICE_ADDRESSES.most)]


class ServicePortView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: Word | None = None
    protocol: Word | None = None
    port: int | None = None
    node_port: int | None = None


class ClientIpView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    timeout_seconds: int | None = None


class AffinityView(msgspec.Struct, frozen=True, gc=False):
    client_ip: ClientIpView | None = msgspec.field(default=None, name="clientIP")


class ServiceSpecView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    type: Word = "ClusterIP"
    cluster_ip: Word = msgspec.field(default="", name="clusterIP")
    cluster_ips: Addresses | None = msgspec.field(default=None, name="clusterIPs")
    ports: list[ServicePortView] | None = None
    external_ips: Addresses | None = msgspec.field(default=None, name="externalIPs")
    external_name: Word = ""
    session_affinity: Word = ""
    session_affinity_config: AffinityView | None = None
    internal_traffic_policy: str | None = None
    external_traffic_policy: str | None = None
    health_check_node_port: int = 0
    traffic_distribution: Word | None = None
    publish_not_ready_addresses: bool = False
    load_balancer_source_ranges: (
        Annotated[list[Word], msgspec.Meta(max_length=SOURCE_RANGES.most)] | None
    ) = None


class IngressView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    ip: Word = ""
    ip_mode: Word | None = None


class BalancerView(msgspec.Struct, frozen=True, gc=False):
    ingress: (
        Annotated[list[IngressView], msgspec.Meta(max_length=SERVICE_ADDRESSES.most)] | None
    ) = None


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
    kind: Word = ""
    name: Word = ""


class HintView(msgspec.Struct, frozen=True, gc=False):
    name: Word = ""


Hints = Annotated[list[HintView], msgspec.Meta(max_length=ENDPOINT_HINTS.most)]


class HintsView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    for_zones: Hints | None = None
    for_nodes: Hints | None = None


_NO_HINTS = HintsView()


class EndpointView(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    addresses: Annotated[list[Word], msgspec.Meta(max_length=ENDPOINT_ADDRESSES.most)] | None = None
    conditions: ConditionsView = ConditionsView()
    hostname: Word | None = None
    node_name: Word | None = None
    zone: Word | None = None
    target_ref: TargetView | None = None
    hints: HintsView | None = None


class SliceView(Viewed, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    address_type: str = ""
    endpoints: list[EndpointView] | None = None
    ports: list[ServicePortView] | None = None


SERVICES = Resource("Service", "services", ServiceView, namespaced=True)
ENDPOINT_SLICES = Resource(
    "EndpointSlice", "endpointslices", SliceView, "discovery.k8s.io", namespaced=True
)


def service_of(view: ServiceView) -> Service:
    spec = view.spec
    out = LeftOut()
    addresses = spec.cluster_ips or [spec.cluster_ip]
    is_name = spec.type == "ExternalName"
    annotated = (view.metadata.annotations or {}).get(DISTRIBUTION_ANNOTATION, "")
    return Service(
        namespace=share(view.metadata.namespace),
        name=share(view.metadata.name),
        type=share(spec.type),
        cluster_ips=(
            (NONE,)
            if NONE in addresses
            else ()
            if is_name
            else _addresses(addresses, "clusterIPs", out)
        ),
        ports=_service_ports(spec.ports or (), out),
        exposure=_exposure(view, out),
        external_name=spec.external_name if is_name else "",
        affinity_s=_affinity_s(spec, out),
        is_internal_local=spec.internal_traffic_policy == "Local",
        distribution=share(annotated[: NAME.most] or spec.traffic_distribution or ""),
        publish_not_ready=spec.publish_not_ready_addresses,
        left_out=out.words,
    )


def slice_of(view: SliceView) -> EndpointSlice:
    """Endpoints without an address, or with one of another family, are left out."""
    version = _VERSIONS.get(view.address_type, 0)
    ports = tuple(
        EndpointPort(share(each.name or ""), share(each.protocol or "TCP"), each.port or 0)
        for each in (view.ports or ())[: SERVICE_PORTS.most]
        if not _port_problem(each)
    )
    endpoints = tuple(
        found
        for each in (view.endpoints or ())[: SLICE_ENDPOINTS.most]
        if (found := _endpoint(each, version)) is not None
    )
    is_whole = (
        len(ports) == len(view.ports or ())
        and len(endpoints) == len(view.endpoints or ())
        and (version or view.address_type == _FQDN)
    )
    return EndpointSlice(
        namespace=share(view.metadata.namespace),
        name=share(view.metadata.name),
        service=share((view.metadata.labels or {}).get(SERVICE_LABEL, "")),
        version=version,
        ports=ports,
        endpoints=endpoints,
        left_out=() if is_whole else _left_out_of(view, version),
    )


def _left_out_of(view: SliceView, version: int) -> tuple[str, ...]:
    """Looked for where something is missing only: there may be 50,000 endpoints at once."""
    out = LeftOut()
    if not version and view.address_type != _FQDN:
        why = "none of IPv4, IPv6 and FQDN, so nothing is sent to its endpoints"
        out.note("addressType", view.address_type, why)
    for index, port in enumerate((view.ports or ())[: SERVICE_PORTS.most]):
        if port.port is not None and (problem := _port_problem(port)):
            _note_port(f"ports[{index}]", port, problem, out)
    for index, endpoint in enumerate((view.endpoints or ())[: SLICE_ENDPOINTS.most]):
        if _endpoint(endpoint, version) is None:
            address = endpoint.addresses[0] if endpoint.addresses else None
            why = f"no address of {view.address_type} that a pod can have"
            out.note(f"endpoints[{index}]", address, why if address else "it has no address")
    _note_more_ports(view.ports or (), out)
    if view.endpoints and len(view.endpoints) > SLICE_ENDPOINTS.most:
        why = f"no EndpointSlice has more than {SLICE_ENDPOINTS.most} endpoints"
        out.note("endpoints", len(view.endpoints), f"{why}: the rest of them")
    return out.words


def _exposure(view: ServiceView, out: LeftOut) -> Exposure:
    spec = view.spec
    ingress = view.status.load_balancer.ingress or ()
    balanced = [each.ip for each in ingress if each.ip_mode in (None, "", "VIP")]
    if spec.type != "LoadBalancer":
        balanced = []
    external_ips = _addresses(spec.external_ips or (), "externalIPs", out)
    load_balancer_ips = _addresses(balanced, "status.loadBalancer.ingress", out)
    made = view.metadata.creation_timestamp or ""
    found = Exposure(
        external_ips=external_ips,
        load_balancer_ips=load_balancer_ips,
        source_ranges=_prefixes(spec.load_balancer_source_ranges or (), out),
        is_local=spec.external_traffic_policy == "Local",
        health_check_node_port=_port_or_none(
            spec.health_check_node_port, "healthCheckNodePort", out
        ),
        is_others=not _LEFT.isdisjoint(view.metadata.labels or ()),
        since=made[: NAME.most] if external_ips or load_balancer_ips else "",
    )
    return NOT_EXPOSED if found == NOT_EXPOSED else found


def _affinity_s(spec: ServiceSpecView, out: LeftOut) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    configured = spec.session_affinity_config
    client_ip = configured.client_ip if configured is not None else None
    timeout_s = client_ip.timeout_seconds if client_ip is not None else None
    timeout_s = _DEFAULT_AFFINITY_S if timeout_s is None else timeout_s
    if 0 < timeout_s <= _MOST_AFFINITY_S:
        return timeout_s
    taken_s = _MOST_AFFINITY_S if timeout_s > 0 else _DEFAULT_AFFINITY_S
    words = f"not from 1 to {_MOST_AFFINITY_S} seconds: it is {taken_s} here"
    out.note("sessionAffinityConfig.clientIP.timeoutSeconds", timeout_s, words)
    return taken_s


def _port_problem(port: ServicePortView) -> str:
    """Why nothing can be sent there; empty: it can."""
    if (port.protocol or "TCP") not in _PROTOCOLS:
        return "none of TCP, UDP and SCTP"
    return "" if _is_port(port.port) else f"no port from 1 to {_MOST_PORT}"


def _note_port(where: str, port: ServicePortView, problem: str, out: LeftOut) -> None:
    if (port.protocol or "TCP") not in _PROTOCOLS:
        out.note(f"{where}.protocol", port.protocol, problem)
    else:
        out.note(f"{where}.port", port.port, problem)


def _is_port(number: int | None) -> bool:
    return number is not None and 0 < number <= _MOST_PORT


def _port_or_none(number: int | None, where: str, out: LeftOut) -> int:
    if _is_port(number):
        return number or 0
    if number:
        out.note(where, number, f"no port from 1 to {_MOST_PORT}")
    return 0


def _service_ports(views: Sequence[ServicePortView], out: LeftOut) -> tuple[ServicePort, ...]:
    found = []
    _note_more_ports(views, out)
    for index, view in enumerate(views[: SERVICE_PORTS.most]):
        if problem := _port_problem(view):
            _note_port(f"ports[{index}]", view, problem, out)
            continue
        node_port = _port_or_none(view.node_port, f"ports[{index}].nodePort", out)
        name, protocol = share(view.name or ""), share(view.protocol or "TCP")
        found.append(ServicePort(name, protocol, view.port or 0, node_port))
    return tuple(found)


def _note_more_ports(ports: Sequence[object], out: LeftOut) -> None:
    if len(ports) > SERVICE_PORTS.most:
        out.note("ports", len(ports), f"no more than {SERVICE_PORTS.most} are served: the rest")


def _endpoint(view: EndpointView, version: int) -> Endpoint | None:
    """The endpoint at the first of several addresses, as the API says; None: that is not usable."""
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
        share(view.node_name or ""),
        share(view.zone or ""),
        view.hostname or "",
        target.name if target is not None and target.kind == "Pod" else "",
        _hinted(hints.for_zones),
        _hinted(hints.for_nodes),
    )


def _hinted(hints: list[HintView] | None) -> tuple[str, ...]:
    return tuple(share(each.name) for each in hints if each.name) if hints else ()


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


def _addresses(texts: Sequence[str], where: str, out: LeftOut) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in texts:
        if address := _address(text):
            found[address] = None
        elif text:  # else it has none yet, or a name
            out.note(where, text, _NO_ADDRESS)
    return tuple(found)


def _prefixes(texts: Sequence[str], out: LeftOut) -> tuple[str, ...]:
    """What cannot be read lets nobody in; where nothing can be, nobody is let in."""
    found = []
    for text in texts:
        try:
            if "%" in text:
                raise ValueError(text)
            found.append(str(ip_network(text.strip(), strict=False)))
        except ValueError:
            out.note("loadBalancerSourceRanges", text, "no prefix, so it lets nobody in")
    return tuple(found) if found or not texts else _NOBODY
