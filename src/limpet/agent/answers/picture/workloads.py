"""What pods of this node are served with, and what holds for them: as its commands say it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from limpet.agent.policies.said import Policies
from limpet.agent.status.services import EndpointStatus, ServiceLine
from limpet.picture.workloads import Endpoint, Policy, Service

MOST_SERVICES, MOST_ENDPOINTS, MOST_POLICIES = 500, 32, 500
"""More of them say nothing to whoever looks, and a picture is sent whole."""


def service_of(line: ServiceLine, endpoints: Iterable[EndpointStatus]) -> Service:
    """Those that are not in rotation come first: somebody may have to do something about them."""
    shown = sorted(endpoints, key=lambda each: (each.weight > 0, each.address, each.target_port))
    return Service(
        name=f"{line.namespace}/{line.name}",
        type=line.type,
        addresses=tuple(line.addresses),
        ports=tuple(line.ports),
        endpoints=tuple(map(_endpoint, shown[:MOST_ENDPOINTS])),
        trouble=line.trouble,
    )


def _endpoint(found: EndpointStatus) -> Endpoint:
    address = f"[{found.address}]" if ":" in found.address else found.address
    return Endpoint(
        address=f"{address}:{found.target_port}",
        port=found.port,
        pod=found.pod,
        node=found.node,
        in_rotation=found.weight > 0,
        why=found.why,
        weight=found.weight,
        connections=found.connections,
    )


def policies_of(said: Policies) -> tuple[Policy, ...]:
    found = [
        Policy(
            name=f"{each.namespace}/{each.name}",
            directions=tuple(kind.lower() for kind in each.types),
            pods=len(each.selected),
            words=f"selects {each.pods}",
        )
        for each in said.policies
    ]
    return tuple(sorted(found, key=lambda each: each.name))


def named_nodes(services: Iterable[Service], uids: Mapping[str, str]) -> tuple[Service, ...]:
    """With nodes by their uids, where these are known by name."""
    from msgspec.structs import replace

    return tuple(
        replace(
            service,
            endpoints=tuple(
                replace(each, node=uids.get(each.node, each.node)) for each in service.endpoints
            ),
        )
        for service in services
    )
