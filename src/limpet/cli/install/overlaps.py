"""Whether a node's addresses and routes leave room for pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from limpet.base.addresses import InterfaceAddress, Prefix
from limpet.cli.doctor.findings import Finding, error, warn


@dataclass(frozen=True, slots=True)
class HeldAddress:
    """An address of a link that is not ours."""

    ifname: str
    address: InterfaceAddress


@dataclass(frozen=True, slots=True)
class HeldRoute:
    """A route that is not ours; `ifname` is empty for one without a device."""

    prefix: Prefix
    ifname: str


def find_overlaps(
    segments: Iterable[Prefix],
    cluster_cidrs: Iterable[Prefix],
    addresses: Iterable[HeldAddress],
    routes: Iterable[HeldRoute],
) -> list[Finding]:
    """Errors where a pod's address would be somebody else's too, warnings where routes shadow.

    A route that contains a pod prefix loses a part to it; one inside of it loses everything, since
    our table comes before main.
    """
    wanted = [(prefix, "segment") for prefix in segments]
    wanted += [(prefix, "cluster CIDR") for prefix in cluster_cidrs]
    findings: list[Finding] = []
    seen: set[tuple[str, Prefix]] = set()
    for held in addresses:
        network = held.address.network
        for other, kind in _overlapping(network, wanted)[:1]:
            seen.add((held.ifname, network))
            findings.append(_address_clash(held, other, kind))
    for route in routes:
        clashes = _overlapping(route.prefix, wanted)
        # The one that takes the whole route away counts before one that takes a part.
        clash = min(clashes, key=lambda clash: _contains(route.prefix, clash[0]), default=None)
        if clash is not None and (route.ifname, route.prefix) not in seen:
            seen.add((route.ifname, route.prefix))
            findings.append(_route_clash(route, *clash))
    return findings


def _overlapping(prefix: Prefix, wanted: Iterable[tuple[Prefix, str]]) -> list[tuple[Prefix, str]]:
    return [
        (other, kind)
        for other, kind in wanted
        if other.version == prefix.version and other.overlaps(prefix)
    ]


def _address_clash(held: HeldAddress, prefix: Prefix, kind: str) -> Finding:
    return error(
        "address-overlaps",
        f"{held.ifname} has {held.address}, which overlaps the {kind} {prefix}",
        f"what the node reaches through {held.ifname} and the pods would have the same addresses",
        f"give the pods another {kind}; or, if {held.ifname} is left over from another pod "
        f"network, delete it when its pods are gone (ip link delete {held.ifname})",
    )


def _route_clash(route: HeldRoute, prefix: Prefix, kind: str) -> Finding:
    through = f" through {route.ifname}" if route.ifname else ""
    if _contains(route.prefix, prefix):
        return warn(
            "route-shadowed",
            f"the route to {route.prefix}{through} contains the {kind} {prefix}",
            f"from now on {prefix} is pods' and is not reached by that route",
            "check that nothing else of that network has such addresses",
        )
    return error(
        "route-overlaps",
        f"the route to {route.prefix}{through} is inside the {kind} {prefix}",
        "our routes come before it, so what it leads to would not be reached any more",
        f"give the pods another {kind}, or remove the route "
        f"(ip -{route.prefix.version} route delete {route.prefix})",
    )


def _contains(outer: Prefix, inner: Prefix) -> bool:
    return outer.prefixlen < inner.prefixlen


def without_own(held: Iterable[HeldAddress], own_bridges: Iterable[str]) -> Iterator[HeldAddress]:
    """Addresses that the node has of others, on links that carry traffic."""
    own = set(own_bridges)
    for each in held:
        if each.ifname not in own and not (each.address.is_loopback or each.address.is_link_local):
            yield each
