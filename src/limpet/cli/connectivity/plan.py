"""Plans which pod tries what. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from limpet.base.errors import CommandLineError
from limpet.cli.connectivity.tasks import DENIED_PORT, ConnectivityTarget, TargetKind, Task


@dataclass(frozen=True, slots=True)
class TriedNode:
    """What is known of a node that is tried."""

    name: str
    addresses: tuple[str, ...] = ()
    """Its own, as its Node says."""
    segments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Beside:
    """What is tried beside pods and nodes."""

    outside: tuple[ConnectivityTarget, ...] = ()
    services: tuple[ConnectivityTarget, ...] = ()
    """By cluster address and by name, from everywhere."""
    node_port: int = 0
    """At the own node's own addresses; 0: none."""
    denied: bool = False
    """The second port of each pod, which no policy allows."""


def plan_tasks(
    nodes: Sequence[TriedNode],
    pods: Mapping[str, Sequence[str]],
    beside: Beside,
    *,
    others: int,
    patience_s: float,
) -> dict[str, Task]:
    """By node. Each tries its own node and pod, and the `others` next in order: so each is tried by
    as many. `pods`: addresses of the pods that answer, by node."""
    found = {}
    for at, node in enumerate(nodes):
        round_trip = [
            nodes[(at + step) % len(nodes)] for step in range(min(others + 1, len(nodes)))
        ]
        targets = [
            target
            for other in sorted(round_trip, key=lambda each: each.name)
            for target in _targets(other, pods.get(other.name, ()), own=other is node)
        ]
        if beside.denied:
            targets += [
                ConnectivityTarget(TargetKind.DENIED, each.name, each.address, DENIED_PORT)
                for each in targets
                if each.kind is TargetKind.POD
            ]
        if beside.node_port:
            targets += [
                ConnectivityTarget(
                    TargetKind.SERVICE, "by a node's port", address, beside.node_port
                )
                for address in node.addresses
            ]
        found[node.name] = Task((*targets, *beside.services, *beside.outside), patience_s)
    return found


def _targets(node: TriedNode, pod: Sequence[str], *, own: bool) -> list[ConnectivityTarget]:
    """A node is reached from everywhere by the gateways of its segments; by its own addresses its
    own pods reach it, whatever network others are in."""
    targets = [ConnectivityTarget(TargetKind.POD, node.name, address) for address in pod]
    gateways = [
        str(segment[1])
        for segment in map(ip_network, node.segments)
        if any(ip_address(each) in segment for each in pod)
    ]
    addresses = [*gateways, *(node.addresses if own else ())]
    return [
        *targets,
        *(ConnectivityTarget(TargetKind.NODE, node.name, address) for address in addresses),
    ]


def outside_target(text: str) -> ConnectivityTarget:
    """`192.0.2.1` is pinged, to `192.0.2.1:443` and `[2001:db8::1]:443` a connection is made.

    Raises: CommandLineError.
    """
    host, colon, port = text, "", ""
    if text.startswith("["):
        host, colon, port = text[1:].partition("]:")
    elif text.count(":") == 1:
        host, colon, port = text.partition(":")
    try:
        ip_address(host)
        number = int(port) if colon else 0
        if (colon and not 0 < number < 65536) or (text.startswith("[") and not colon):
            raise ValueError(f"{port!r} is no port")
    except ValueError as error:
        raise CommandLineError(
            f"--outside {text!r}: no address such as 192.0.2.1, 192.0.2.1:443 or "
            f"[2001:db8::1]:443: {error}"
        ) from error
    return ConnectivityTarget(TargetKind.OUTSIDE, text, host, number)
