"""What is alive on this machine, found by looking into every network namespace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from limpet.base.errors import KernelError
from limpet.linux.namespaces import Namespace, NamespaceId, every_namespace, own_namespace_id
from limpet.linux.netlink.socket import RouteSocket


@dataclass(frozen=True, slots=True)
class NamespaceScan:
    """What is alive on this machine, as found by looking into every network namespace."""

    addresses: frozenset[bytes] = frozenset()
    """Packed addresses of all interfaces of all namespaces but our own."""
    namespaces: Mapping[NamespaceId, frozenset[bytes]] = field(default_factory=dict)
    """Of each namespace its packed addresses: the number of one that is gone is soon another's."""


def scan_namespaces() -> NamespaceScan:
    """Slow (a visit to each namespace); safe on any thread."""
    addresses: set[bytes] = set()
    namespaces: dict[NamespaceId, frozenset[bytes]] = {}
    ours = own_namespace_id()
    for path in every_namespace():
        try:
            with Namespace(path) as netns:
                with netns.entered(), RouteSocket() as route:
                    inside = frozenset(info.packed for info in route.addresses())
                namespaces[netns.id] = inside
                if netns.id != ours:
                    addresses |= inside
        except KernelError:
            continue  # it went while we looked
    return NamespaceScan(frozenset(addresses), namespaces)
