"""How much room Services take: each port of one may be sent to each of its endpoints. Pure."""

from __future__ import annotations

from limpet.base.bounds.room import Room
from limpet.base.bounds.tenants import SERVICE_TARGETS, SERVICE_TARGETS_OF_ONE
from limpet.services.values import ServiceName


class Targets:
    """Counted for each Service, also for one of which there are slices only."""

    def __init__(self) -> None:
        self._ports: dict[ServiceName, int] = {}
        """And the Service itself, as one."""
        self._endpoints: dict[ServiceName, int] = {}
        """And its slices, as one each."""
        self._room = Room(SERVICE_TARGETS, SERVICE_TARGETS_OF_ONE)

    def refusal(self, key: ServiceName, *, ports: int | None = None, endpoints: int = 0) -> str:
        """Why the Service cannot have so many `ports` (None: as it has), and so many more
        `endpoints`, in words; empty: there is room."""
        there = self._ports.get(key, 0) if ports is None else 1 + ports
        change = _product(there, self._endpoints.get(key, 0) + endpoints) - self._of(key)
        return self._room.refusal(key[0], change)

    def set_ports(self, key: ServiceName, ports: int | None) -> None:
        """None: there is no such Service."""
        self._set(key, self._ports, 0 if ports is None else 1 + ports)

    def add_endpoints(self, key: ServiceName, more: int) -> None:
        self._set(key, self._endpoints, self._endpoints.get(key, 0) + more)

    def _set(self, key: ServiceName, counts: dict[ServiceName, int], count: int) -> None:
        before = self._of(key)
        if count:
            counts[key] = count
        else:
            counts.pop(key, None)
        self._room.change(key[0], self._of(key) - before)

    def _of(self, key: ServiceName) -> int:
        return _product(self._ports.get(key, 0), self._endpoints.get(key, 0))


def _product(ports: int, endpoints: int) -> int:
    """Endpoints of one that has no port, or is not there, are kept, too."""
    return ports + endpoints * max(ports - 1, 1)
