"""What pods of this node are served with, and what holds for them: as its commands say it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from limpet.agent.policies.said import Policies
from limpet.agent.status.services import EndpointStatus, ServiceLine
from limpet.base.addresses import Prefix
from limpet.picture.pair import PolicyOnPair
from limpet.picture.workloads import Endpoint, Policy, Service

if TYPE_CHECKING:  # in memory only where there are any
    from limpet.agent.policies.keeper import Policies as PolicyKeeper

MOST_SERVICES, MOST_ENDPOINTS, MOST_POLICIES = 500, 32, 500
"""More of them say nothing to whoever looks, and a picture is sent whole."""


class Named(NamedTuple):
    """A node."""

    uid: str
    name: str


def service_of(
    line: ServiceLine, endpoints: Iterable[EndpointStatus], left_out: tuple[str, ...]
) -> Service:
    """Those that are not in rotation come first: somebody may have to do something about them."""
    shown = sorted(endpoints, key=lambda each: (each.weight > 0, each.address, each.target_port))
    return Service(
        name=f"{line.namespace}/{line.name}",
        type=line.type,
        addresses=tuple(line.addresses),
        ports=tuple(line.ports),
        endpoints=tuple(map(_endpoint, shown[:MOST_ENDPOINTS])),
        endpoints_in_rotation=sum(each.weight > 0 for each in shown),
        endpoints_total=len(shown),
        trouble=line.trouble,
        left_out=left_out,
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
            words=each.words,
        )
        for each in said.policies
    ]
    return tuple(sorted(found, key=lambda each: each.name))


def why_no_policies(said: Policies) -> str:
    """Says why none is known although some may hold; empty: none does, or they are known."""
    return "" if said.policies else "; ".join(said.problems)


def policies_on_pair(
    policies: PolicyKeeper | None, segments: Collection[Prefix], one: Named, other: Named
) -> tuple[tuple[PolicyOnPair, ...], tuple[str, ...]]:
    """Policies on pods of this node, `one`, and of `other`, which has these segments; and in words
    what they come to."""
    if policies is None:
        return (), (f"no policy holds on {one.name}: its pods send and receive what they want",)
    sides = policies.between(segments, (one.name, other.name))
    found = tuple(
        PolicyOnPair(
            name=str(hold.policy),
            direction=hold.direction,
            node=node.uid,
            pods=hold.selected,
            words=hold.words,
        )
        for side, node in zip(sides, (one, other), strict=True)
        for hold in side.holds
    )
    words = [*sides[0].words, *sides[1].words]
    if policies.unheard:
        return found, (*words, policies.unheard)
    if not found:
        words.append(
            f"no policy that is known here selects a pod of {one.name} or {other.name}: they send "
            "each other what they want"
        )
    if not policies.knows_all_pods:
        words.append(
            f"what was given to {other.name} alone, or was not heard here yet, is known there"
        )
    return found, tuple(words)


def named_nodes(services: Iterable[Service], uids: Mapping[str, str]) -> tuple[Service, ...]:
    """With nodes by their uids, where these are known by name."""
    return tuple(
        replace(
            service,
            endpoints=tuple(
                replace(each, node=uids.get(each.node, each.node)) for each in service.endpoints
            ),
        )
        for service in services
    )
