"""Endpoints of a Service's port that are used on this node, and how often.

Ready ones, else those that still serve while they end, and those that a server calls not ready
since it could not hear their nodes (`doubted`). An endpoint whose node is silent, or whose
container is known to be gone, is left out; where nothing but doubt is left, all are tried. Then
those that are near: the nearest, as long as each of them need not carry more than `MOST_SHARE`
times what it would if all shared evenly; else the next nearest help.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from limpet.services.values import Endpoint, EndpointSlice, Service, ServicePort

MOST_SHARE = 4
MOST_SLOTS_EACH = 2
"""For each endpoint that may be used; near ones are drawn less often rather than to have more."""
OWN_NODE, UNKNOWN_NODE = 0, 1 << 16
_EVEN = "Even"
_SAME_NODE = "PreferSameNode"
_SAME_ZONE = ("PreferSameZone", "PreferClose")


@dataclass(frozen=True, slots=True)
class Here:
    """What this node knows of itself and of others, at this moment."""

    node: str = ""
    """Name of this node."""
    zone: str = ""
    """Zone of this node; empty: not known, and hints for zones do not count."""
    silent: Collection[str] = frozenset()
    """Names of nodes that do not answer."""
    gone: Collection[str] = frozenset()
    """Addresses of pods whose containers are gone."""
    distances: Mapping[str, int] = field(default_factory=dict)
    """Distances of nodes by name, from 1 on: a smaller one is nearer, equal ones equally near."""
    is_even: bool = False
    """How near an endpoint is counts only where its Service or hints say so."""

    def distance(self, endpoint: Endpoint) -> int:
        if endpoint.node and endpoint.node == self.node:
            return OWN_NODE
        return self.distances.get(endpoint.node, UNKNOWN_NODE)

    def doubts(self, endpoint: Endpoint) -> bool:
        if endpoint.address in self.gone:
            return True
        return endpoint.node in self.silent and endpoint.node != self.node


class RotationTarget(NamedTuple):
    """Where packets may be sent, so many times as often as one of weight 1."""

    address: str
    port: int
    weight: int
    is_local: bool
    """On this node."""
    node: str = ""
    """Where it is; empty: not known."""


Candidate = tuple[Endpoint, int]
"""And its port."""


class Rotation(NamedTuple):
    """Endpoints of one port, of one family; in order of their addresses."""

    near: tuple[RotationTarget, ...] = ()
    """For whom every endpoint would do."""
    local: tuple[RotationTarget, ...] = ()
    """Those of this node, for traffic that must not leave it."""

    def internal(self, service: Service) -> tuple[RotationTarget, ...]:
        """For pods and for processes of this node."""
        return self.local if service.is_internal_local else self.near

    def external(self, service: Service) -> tuple[RotationTarget, ...]:
        """For who comes from outside of the cluster."""
        return self.local if service.exposure.is_local else self.near


class OfferedPorts:
    """Endpoints of a Service's slices, by the ports at which they serve: each slice is gone
    through once, however many ports the Service has."""

    def __init__(self, slices: Iterable[EndpointSlice]) -> None:
        self._offers: dict[tuple[int, str, str], list[tuple[int, EndpointSlice]]] = {}
        """Numbers of ports and who serves there, by IP version, name and protocol of the port."""
        for each in slices:
            for target in each.ports if each.endpoints else ():
                key = each.version, target.name, target.protocol
                self._offers.setdefault(key, []).append((target.port, each))

    def candidates(self, port: ServicePort, version: int) -> list[Candidate]:
        """Every endpoint of the port once, in whatever state. One that is in two slices, as while
        it moves between them, is as the one says by which it serves rather, whatever their
        order."""
        found: dict[tuple[str, int], Endpoint] = {}
        for number, piece in self._offers.get((version, port.name, port.protocol), ()):
            for endpoint in piece.endpoints:
                key = endpoint.address, number
                other = found.get(key)
                if other is not None:
                    endpoint = max(other, endpoint, key=_service_ability)
                found[key] = endpoint
        return [(endpoint, number) for (_, number), endpoint in sorted(found.items())]


def _service_ability(endpoint: Endpoint) -> tuple[object, ...]:
    states = endpoint.is_ready, endpoint.is_serving, not endpoint.is_terminating
    hints = endpoint.zone, endpoint.for_zones, endpoint.for_nodes
    return *states, endpoint.is_doubted, endpoint.node, *hints, endpoint.pod, endpoint.hostname


def rotate(service: Service, found: Sequence[Candidate], here: Here) -> Rotation:
    """`found`: by `OfferedPorts.candidates`."""
    if not found:
        return Rotation()
    available = _available(found)
    sure = _sure(available, here)
    # Of those that are all in doubt the near ones are no better than the others.
    near = _nearest(sure or available, service.distribution if sure else _EVEN, here)
    own = [each for each in found if _is_local(each, here)]
    available = _available(own)
    local = _sure(available, here) or available
    return Rotation(near, _targets(local, here))


def takes_clients(found: Sequence[Candidate], here: Here) -> Sequence[Candidate]:
    """Those that who begins to ask may be led to, near or far: nobody in doubt, and nobody who
    ends while others are ready."""
    return _sure(_available(found), here)


def may_answer(candidate: Candidate, here: Here) -> bool:
    """Whether it is in rotation or not: a connection that is tried there is better let be."""
    endpoint, _ = candidate
    serves = endpoint.is_ready or endpoint.is_serving or endpoint.is_doubted
    return serves and not here.doubts(endpoint)


def endpoint_words(
    candidate: Candidate, service: Service, used: Iterable[RotationTarget], here: Here
) -> str:
    """Why the node does not send to it, or does although it is in doubt; empty: it does, and it is
    not. `used`: of its Service's port."""
    endpoint, port = candidate
    is_used = any((each.address, each.port) == (endpoint.address, port) for each in used)
    if here.doubts(endpoint):
        gone = endpoint.address in here.gone
        doubt = "its container is gone" if gone else f"node {endpoint.node} does not answer"
        return f"{doubt} (tried, since all are in doubt)" if is_used else doubt
    if is_used:
        return ""
    if not endpoint.is_ready:
        return "it is ending" if endpoint.is_terminating else "it is not ready"
    if service.is_internal_local and endpoint.node != here.node:
        return "on another node (internalTrafficPolicy Local)"
    return "others are nearer"


def _available(found: Sequence[Candidate]) -> Sequence[Candidate]:
    ready = [each for each in found if each[0].is_ready]
    if ready:
        return ready
    return [
        each
        for each in found
        if (each[0].is_serving and each[0].is_terminating) or each[0].is_doubted
    ]


def _sure(found: Sequence[Candidate], here: Here) -> Sequence[Candidate]:
    if not (here.silent or here.gone):
        return found
    return [each for each in found if not here.doubts(each[0])]


def _is_local(candidate: Candidate, here: Here) -> bool:
    return bool(here.node) and candidate[0].node == here.node


def _targets(found: Iterable[Candidate], here: Here, weight: int = 1) -> tuple[RotationTarget, ...]:
    own = here.node or None
    return tuple(
        RotationTarget(each.address, port, weight, each.node == own, each.node)
        for each, port in found
    )


def _nearest(
    usable: Sequence[Candidate], distribution: str, here: Here
) -> tuple[RotationTarget, ...]:
    if distribution == _EVEN:
        return _targets(usable, here)
    preferred = _preferred(usable, distribution, here)
    if preferred:
        return _targets(preferred, here)
    if here.is_even:
        return _targets(usable, here)
    distances = [here.distance(endpoint) for endpoint, _ in usable]
    kinds = sorted(set(distances))
    if len(kinds) <= 1:
        return _targets(usable, here)
    nearer, last = 0, 0
    for last in kinds:
        slots = nearer * MOST_SHARE + distances.count(last) * (1 if nearer else MOST_SHARE)
        if slots >= len(usable):
            break
        nearer += distances.count(last)
    # Each slot is an element of the kernel's. Where most are near already it is no great matter how
    # often these are drawn, and they would have four each for the sake of a few far ones.
    share = max((MOST_SLOTS_EACH * len(usable) - distances.count(last)) // max(nearer, 1), 1)
    return tuple(
        target
        for each, distance in zip(usable, distances, strict=True)
        if distance <= last
        for target in _targets([each], here, min(MOST_SHARE, share) if distance < last else 1)
    )


def _preferred(usable: Sequence[Candidate], distribution: str, here: Here) -> Sequence[Candidate]:
    """As the Service asks for and hints say; empty: neither has anything to say here.

    Hints count if every endpoint has one, so that none is left without clients by half a change;
    those for nodes whatever the Service asks for, as kube-proxy reads them.
    """
    if all(each.for_nodes for each, _ in usable):
        mine = [each for each in usable if here.node in each[0].for_nodes]
        if mine:
            return mine
    if here.zone and all(each.for_zones for each, _ in usable):
        return [each for each in usable if here.zone in each[0].for_zones]
    if distribution == _SAME_NODE:
        return [each for each in usable if _is_local(each, here)]
    if distribution in _SAME_ZONE and here.zone:
        return [each for each in usable if each[0].zone == here.zone]
    return ()
