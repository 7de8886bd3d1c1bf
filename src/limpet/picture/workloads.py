"""What pods are served with, and what holds for them."""

from __future__ import annotations

from limpet.picture.said import Shown


class Endpoint(Shown, frozen=True, kw_only=True):
    """Endpoint of a Service's port, as who looks sees it."""

    address: str
    """With the port, as `10.8.0.5:8080`."""
    port: str = ""
    """Port of the Service: name, number and protocol."""
    pod: str = ""
    node: str = ""
    """Uid where it is known, else the name."""
    in_rotation: bool = True
    why: str = ""
    """Why it is not, or is although it is in doubt."""
    weight: int = 0
    connections: int = 0


class Service(Shown, frozen=True, kw_only=True):
    """A Service, with what it turns between."""

    name: str
    """NAMESPACE/NAME."""
    type: str = ""
    addresses: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    """The first of them, those that are out of rotation before the others."""
    endpoints_in_rotation: int = 0
    endpoints_total: int = 0
    """One for each port and address, also of those that are not among `endpoints`."""
    trouble: str = ""
    left_out: tuple[str, ...] = ()
    """What of it and its EndpointSlices no node can use, in words; of the first few."""


class Policy(Shown, frozen=True, kw_only=True):
    """A policy on pods."""

    name: str
    """NAMESPACE/NAME."""
    directions: tuple[str, ...] = ()
    pods: int | None = None
    """Pods that it selects, as far as who looks knows."""
    words: str = ""
    trouble: str = ""


class Workloads(Shown, frozen=True, kw_only=True):
    """What pods are served with."""

    services: tuple[Service, ...] = ()
    services_why: str = ""
    """Why there are none, where nothing tells of them."""
    policies: tuple[Policy, ...] = ()
    policies_why: str = ""
