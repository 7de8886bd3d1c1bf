"""Networks behind another node that this one reaches with its pods' own addresses, and what tells
them from pods'. Pure."""

from __future__ import annotations

from collections.abc import Collection

from limpet.base.addresses import Prefix, bounds_of
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.reach import may_talk, share_what_is_behind


def reached_behind(
    network: Network, own: Grant, networks: Collection[Prefix], entry: NodeEntry
) -> tuple[Prefix, ...]:
    """Prefixes behind the peer, but for what meets something that this node has itself.

    `networks`: subnets that the machine is in. As `plan_overlay` has it, whatever the path.
    """
    if not entry.grant.prefixes_behind or not may_talk(network, own, entry.grant):
        return ()
    if share_what_is_behind(own, entry.grant):
        return ()
    taken = (*own.prefixes, *networks)
    return tuple(
        prefix
        for prefix in entry.grant.prefixes_behind
        if not any(other.version == prefix.version and other.overlaps(prefix) for other in taken)
    )


def leads_to_itself(entry: NodeEntry, prefix: Prefix) -> bool:
    """Whether the node itself has an address in what is behind it.

    Where that is how it is reached, the prefix has to stay reachable without it.
    """
    return entry.presence is not None and any(end in prefix for end in entry.presence.addresses)


def is_of_the_cluster(network: Network | None, prefix: Prefix) -> bool:
    """It lies in a pod CIDR."""
    if network is None:
        return False
    first = int(prefix.network_address)
    return any(
        cidr.version == prefix.version
        and cidr.prefixlen <= prefix.prefixlen
        and int(cidr.network_address) <= first <= bounds_of(cidr)[1]
        for cidr in network.pod_cidrs
    )


def outermost(prefixes: Collection[Prefix]) -> list[Prefix]:
    """Without those that lie in others; neighbours are not merged, so that each can be deleted."""
    if len(prefixes) == 1:
        return list(prefixes)
    kept: list[Prefix] = []
    last = (0, -1)
    for prefix in sorted(prefixes, key=_position):
        end = (prefix.version, bounds_of(prefix)[1])
        if end > last:
            kept.append(prefix)
            last = end
    return kept


def _position(prefix: Prefix) -> tuple[int, int, int]:
    return prefix.version, int(prefix.network_address), prefix.prefixlen
