"""How much room Services take: each port of one, at each of its addresses, may be sent to each of
its endpoints. Pure."""

from __future__ import annotations

from typing import NamedTuple

from limpet.base.bounds.room import Room
from limpet.base.bounds.tenants import SERVICE_TARGETS, SERVICE_TARGETS_OF_ONE
from limpet.services.values import EndpointSlice, Service, ServiceName

_VERSIONS = (0, 4, 6)
"""IP versions of slices; 0: names. Behind them stands what is written down once, however many
ports and addresses the Service has."""


class _Shape(NamedTuple):
    """What a Service takes, beside its endpoints and for each of them."""

    itself: int = 0
    asked: tuple[int, ...] = (1, 1, 1, 1)
    """By IP version of an endpoint: how often it is written down."""


_NO_SERVICE = _Shape()
_NONE = (0, 0, 0, 0)
"""Endpoints by IP version."""


class Targets:
    """Counted for each Service, also for one of which there are slices only."""

    def __init__(self) -> None:
        self._shapes: dict[ServiceName, _Shape] = {}
        self._endpoints: dict[ServiceName, tuple[int, ...]] = {}
        """And their slices, as one each; by IP version."""
        self._room = Room(SERVICE_TARGETS, SERVICE_TARGETS_OF_ONE)

    @property
    def in_all(self) -> int:
        return self._room.used

    def refusal(self, service: Service) -> str:
        """Why it cannot be as it is now, in words; empty: there is room."""
        now = _room_of(_shape(service), self._endpoints.get(service.key, _NONE))
        return self._room.refusal(service.namespace, now - self._of(service.key))

    def refusal_of_slice(self, piece: EndpointSlice, before: EndpointSlice | None) -> str:
        """The same of a slice that is put in the place of `before`."""
        key = piece.service_key
        held = _sum(self._endpoints.get(key, _NONE), _weights(piece))
        if before is not None:
            held = _sum(held, _weights(before), -1)
        now = _room_of(self._shapes.get(key, _NO_SERVICE), held)
        return self._room.refusal(piece.namespace, now - self._of(key))

    def put(self, service: Service) -> None:
        before = self._of(service.key)
        self._shapes[service.key] = _shape(service)
        self._changed(service.key, before)

    def remove(self, key: ServiceName) -> None:
        before = self._of(key)
        self._shapes.pop(key, None)
        self._changed(key, before)

    def put_slice(self, piece: EndpointSlice) -> None:
        self._add(piece, 1)

    def remove_slice(self, piece: EndpointSlice) -> None:
        self._add(piece, -1)

    def _add(self, piece: EndpointSlice, times: int) -> None:
        key = piece.service_key
        before = self._of(key)
        held = _sum(self._endpoints.pop(key, _NONE), _weights(piece), times)
        if any(held):
            self._endpoints[key] = held
        self._changed(key, before)

    def _changed(self, key: ServiceName, before: int) -> None:
        self._room.change(key[0], self._of(key) - before)

    def _of(self, key: ServiceName) -> int:
        shape = self._shapes.get(key, _NO_SERVICE)
        return _room_of(shape, self._endpoints.get(key, _NONE))


def _shape(service: Service) -> _Shape:
    """Endpoints of one that no port or address leads to are kept, too."""
    exposure = service.exposure
    others = (*exposure.external_ips, *exposure.load_balancer_ips)
    addresses = (*service.addresses, *others)
    of_v6 = sum(":" in each for each in addresses)
    by_version = (0, len(addresses) - of_v6, of_v6)
    ports = len(service.ports)
    at_nodes = sum(each.node_port > 0 for each in service.ports)
    frontends = ports * max(1, len(addresses)) + 2 * at_nodes
    # Each port has its ranges in a chain, where it has other endpoints than the others have.
    ranges = len(exposure.source_ranges) * max(1, ports)
    return _Shape(
        1 + frontends + len(others) + ranges,
        (*(max(1, ports * max(1, count) + at_nodes) for count in by_version), 1),
    )


def _weights(piece: EndpointSlice) -> tuple[int, ...]:
    held = ((each == piece.version) * (1 + len(piece.endpoints)) for each in _VERSIONS)
    return *held, _lists_of(piece)


def _lists_of(piece: EndpointSlice) -> int:
    """Its ports, and the zones and nodes that its endpoints are meant for: of each list, what
    stands behind the first, which all slices and many endpoints have."""
    hints = (kind for each in piece.endpoints for kind in (each.for_zones, each.for_nodes))
    return sum(len(each) - 1 for each in (piece.ports, *hints) if each)


def _sum(ours: tuple[int, ...], more: tuple[int, ...], times: int = 1) -> tuple[int, ...]:
    return tuple(a + times * b for a, b in zip(ours, more, strict=True))


def _room_of(shape: _Shape, endpoints: tuple[int, ...]) -> int:
    return shape.itself + sum(a * b for a, b in zip(shape.asked, endpoints, strict=True))
