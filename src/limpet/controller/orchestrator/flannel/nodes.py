"""Nodes that flannel runs, as grants and presences that the cluster signs; operations on the
tables, as those of `state/grants.py`.

What Limpet's nodes do with such a peer follows from these documents alone: it is a member that
answers no probe, and is reached by VXLAN at the address, with the MAC, that its Node's annotations
name. A node that joins under its name takes its segments over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from limpet.base.addresses import Prefix
from limpet.cluster.documents import Sealed
from limpet.cluster.keys import uid_of
from limpet.cluster.kinds import GRANT, PRESENCE
from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.topology.vtep_mac import derived_vtep_mac
from limpet.controller.node_objects.lease import (
    FlannelLease,
    annotations_of,
    read_lease,
)
from limpet.controller.node_objects.node import NodeObject
from limpet.controller.orchestrator.node_keeper.pod_cidrs import how_to_recreate, moment
from limpet.controller.registry.records import NodeRecord, PresenceRecord
from limpet.controller.registry.tables import Tables
from limpet.controller.state.nodes import remove
from limpet.controller.state.vtep_macs import owner_of

_PLAIN_MTU_BYTES = 1500
"""flannel tells none; each end's own link bounds it."""


@dataclass
class FlannelOutcome:
    """What was made of the Nodes."""

    changed: list[str] = field(default_factory=list)
    """Names of flannel's nodes that came, went, or are told differently."""
    problems: dict[str, str] = field(default_factory=dict)
    """By the name of a Node: why it is no peer of ours, or we none of flannel's, and what to do."""
    annotations: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """By the name of a Node that Limpet runs: what flannel's nodes have to read there."""


def take_flannel(
    tables: Tables, nodes: Mapping[str, NodeObject], gone: Iterable[str], now_s: float
) -> FlannelOutcome:
    """Makes the grants of flannel's nodes as the Nodes are. `gone`: names of those that were
    deleted; one that is neither there nor deleted stays as it is."""
    taken = FlannelOutcome()
    for name in sorted(nodes):
        try:
            _take(tables, nodes[name], now_s, taken)
        except ValueError as error:
            taken.problems[name] = str(error)
    for name in gone:
        for grant in _flannel_grants(tables, name):
            remove(tables, grant.uid, now_s)
            taken.changed.append(name)
    return taken


def _take(tables: Tables, node: NodeObject, now_s: float, taken: FlannelOutcome) -> None:
    """Raises: ValueError."""
    theirs = _flannel_grants(tables, node.name)
    ours = [
        tables.grants[uid] for uid in tables.uids_of(node.name) if not tables.grants[uid].is_flannel
    ]
    lease = None if ours else read_lease(node.flannel)
    if lease is None:
        for each in theirs:  # it is ours now, or nobody's
            remove(tables, each.uid, now_s)
            taken.changed.append(node.name)
        if len(ours) == 1:
            _tell(tables, node, ours[0], taken)
        return
    if lease.vnis != {tables.network.vxlan_id}:
        found = ", ".join(map(str, sorted(lease.vnis)))
        raise ValueError(
            f"its flannel has the VXLAN id {found}, the cluster {tables.network.vxlan_id} "
            "(set vxlan_id in the controller's configuration)"
        )
    if not node.pod_cidrs:
        raise ValueError("it has no podCIDR (flannel needs one too)")
    _check_macs(tables, theirs, lease)
    kept = [each for each in theirs if each.segments == node.pod_cidrs][:1]
    for each in theirs:
        if each not in kept:
            remove(tables, each.uid, now_s)
    grant = kept[0] if kept else _grant(tables, node, now_s)
    if _say(tables, grant, lease, now_s) or not kept:
        taken.changed.append(node.name)


def _flannel_grants(tables: Tables, name: str) -> list[Grant]:
    found = (tables.grants[uid] for uid in tables.uids_of(name))
    return [grant for grant in found if grant.is_flannel]


# What the cluster says of flannel's nodes


def _grant(tables: Tables, node: NodeObject, now_s: float) -> Grant:
    """Raises: ValueError."""
    former = [_check_free(tables, node.name, prefix, now_s) for prefix in node.pod_cidrs]
    public_key = _next_key(tables, node)
    uid = uid_of(public_key)
    for prefix in node.pod_cidrs:
        tables.hold(prefix, uid)
    grant = Grant(
        uid=uid,
        name=node.name,
        public_key=public_key,
        generation=1,
        revision=tables.next_revision(),
        segments=node.pod_cidrs,
        roles=frozenset({Role.FLANNEL}),
        supersedes=tuple(dict.fromkeys(filter(None, former))),
    )
    tables.sign(GRANT, grant, NodeRecord(Sealed(GRANT.name, b"", b""), now_s))
    return grant


def _check_macs(tables: Tables, theirs: Sequence[Grant], lease: FlannelLease) -> None:
    """Raises: ValueError for another node's: what the cluster signs is not asked again."""
    said = (tables.presence(grant.uid) for grant in theirs)
    if any(presence is not None and presence.vtep_macs == lease.vtep_macs for presence in said):
        return
    uid = theirs[0].uid if theirs else ""
    if other := owner_of(tables, lease.vtep_macs, uid):
        raise ValueError(f"its annotations name the MAC address of node {other} as its own")


def _check_free(tables: Tables, name: str, prefix: Prefix, now_s: float) -> str:
    """The uid of who had the segment before; empty: nobody. Raises: ValueError."""
    if tables.space.number(prefix) is None:
        lengths = tables.network.segment_lengths
        raise ValueError(
            f"its podCIDR {prefix} is no segment of this cluster (those are /"
            f"{lengths.get(prefix.version)} of {', '.join(map(str, tables.network.pod_cidrs))}: "
            "pod_cidrs in the controller's configuration have to be flannel's Network)"
        )
    holding = tables.space.holdings.get(prefix)
    if holding is None:
        return ""
    holder = tables.grants.get(holding.uid)
    if holding.resting_since_s is None and holding.uid:
        held_by = holder.name if holder is not None else holding.uid
        raise ValueError(
            f"its podCIDR {prefix} is granted to {held_by} (segments have to come from the Nodes' "
            "podCIDRs while flannel is beside Limpet)"
        )
    until_s = tables.space.rests_until_s(holding)
    if until_s is not None and until_s > now_s and holder is not None and holder.name != name:
        raise ValueError(
            f"its podCIDR {prefix} rests until {moment(until_s)}, since the removed node "
            f"{holder.name} may still use it (it is taken by itself then; or have Kubernetes give "
            f"the Node another: {how_to_recreate(name)})"
        )
    return holding.uid


def _next_key(tables: Tables, node: NodeObject) -> bytes:
    """Nobody has a private key for it: a node of flannel's signs nothing. Another each time that
    the node comes back to flannel, since a tombstone is for ever."""
    number = 0
    while True:
        seed = f"limpet flannel {tables.network.cluster} {node.name} {node.uid} {number}".encode()
        key = hashlib.sha256(seed).digest()
        if uid_of(key) not in tables.grants:
            return key
        number += 1


def _say(tables: Tables, grant: Grant, lease: FlannelLease, now_s: float) -> bool:
    """Whether the node's presence is another one now."""
    known = tables.presence(grant.uid)
    said = Presence(
        grant.uid,
        known.sequence if known is not None else -1,
        "",
        addresses=lease.addresses,
        vtep_macs=dict(lease.vtep_macs),
        link_mtu_bytes=_PLAIN_MTU_BYTES,
        era=tables.era,
    )
    if said == known:
        return False
    following = replace(said, sequence=said.sequence + 1)
    unsigned = Sealed(PRESENCE.name, b"", b"")
    record = PresenceRecord(unsigned, following.sequence, "", (), now_s)
    tables.sign(PRESENCE, following, record)
    return True


# What flannel's nodes read of ours


def _tell(tables: Tables, node: NodeObject, grant: Grant, taken: FlannelOutcome) -> None:
    presence = tables.presence(grant.uid)
    if presence is None or not node.pod_cidrs:
        return
    strange = [prefix for prefix in node.pod_cidrs if prefix not in grant.segments]
    if strange:
        taken.problems[node.name] = (
            f"flannel's nodes send here what is for its podCIDR {strange[0]}, which is no segment "
            "of it (segments have to come from the Nodes' podCIDRs while flannel is beside Limpet)"
        )
        return
    own = {version: derived_vtep_mac(grant.uid, version) for version in presence.vtep_macs}
    if presence.vtep_macs not in (own, grant.vtep_macs) and (
        other := owner_of(tables, presence.vtep_macs, grant.uid)
    ):
        taken.problems[node.name] = (
            f"it claims the MAC address of node {other} as its VXLAN device's, so flannel's nodes "
            "are told nothing of it (look at that machine: limpet doctor, on another, says more)"
        )
        return
    taken.annotations[node.name] = annotations_of(
        presence.vtep_macs,
        tables.network.vxlan_id,
        presence.addresses,
        node.addresses,
        node.flannel,
    )
