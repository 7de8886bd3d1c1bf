"""Who gets a connection that asks a Service, written down a second time: one question at a time,
from the endpoints in rotation (`limpet.services.rotation`), with nothing planned or looked up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Literal

from limpet.services.rotation import Here, OfferedPorts, RotationTarget, rotate
from limpet.services.values import EndpointSlice, Service, ServicePort

Drawn = Counter[tuple[str, int]]
"""How often each endpoint is drawn, beside the others."""
Answer = Drawn | Literal["refused", "dropped", "let be"]
Prefixes = Collection[IPv4Network | IPv6Network]


@dataclass(frozen=True)
class Question:
    """A first packet, on its way through the node."""

    source: str
    address: str
    protocol: str
    port: int
    is_own: bool = False
    """Of a process of the node."""
    is_at_node: bool = False
    """To one of the node's own addresses."""

    @property
    def version(self) -> int:
        return ip_address(self.address).version

    def is_from(self, prefixes: Prefixes) -> bool:
        source = ip_address(self.source)
        return any(source.version == each.version and source in each for each in prefixes)


def answer(
    asked: Question,
    services: Iterable[Service],
    slices: Collection[EndpointSlice],
    here: Here,
    cluster: Prefixes,
) -> Answer:
    """`cluster`: of pods, of this node and others."""
    for service in services:
        for port in service.ports:
            if port.protocol == asked.protocol and _is_asked(asked, service, port):
                mine = [each for each in slices if each.service_key == service.key]
                return _of(asked, service, port, mine, here, cluster)
    # A cluster address is nobody's but the Service's, and leads nowhere by any other port.
    is_meant = any(asked.address in each.addresses for each in services if each.ports)
    return "refused" if is_meant else "let be"


def _is_asked(asked: Question, service: Service, port: ServicePort) -> bool:
    exposure = service.exposure
    versions = {ip_address(each).version for each in service.addresses}
    if asked.address in (*service.addresses, *exposure.external_ips, *exposure.load_balancer_ips):
        return asked.port == port.port and asked.version in versions
    return asked.is_at_node and asked.port == port.node_port and asked.version in versions


def _of(
    asked: Question,
    service: Service,
    port: ServicePort,
    slices: Iterable[EndpointSlice],
    here: Here,
    cluster: Prefixes,
) -> Answer:
    rotation = rotate(service, OfferedPorts(slices).candidates(port, asked.version), here)
    if asked.address in service.addresses:
        return _drawn(rotation.internal(service)) or "refused"
    if not rotation.near:
        return "refused"
    exposure = service.exposure
    ranges = [ip_network(each) for each in exposure.source_ranges]
    of_family = [each for each in ranges if each.version == asked.version]
    is_bounded = asked.address in exposure.load_balancer_ips and bool(of_family)
    if is_bounded and not asked.is_from(of_family):
        return "dropped"
    if exposure.is_local and not asked.is_own and not asked.is_from(cluster):
        return _drawn(rotation.local) or "dropped"
    return _drawn(rotation.near)


def _drawn(targets: Iterable[RotationTarget]) -> Drawn:
    found: Drawn = Counter()
    for each in targets:
        found[each.address, each.port] += each.weight
    return found
