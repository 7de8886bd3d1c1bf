"""Nodes of the pod network whose Node in Kubernetes was deleted: remembered, and removed after a
grace time. Operations on the tables, as those of state/nodes.py; none does I/O.

Only a Node that this controller or one before it has seen, and that the API server then said was
deleted, counts: one that a list lacks may have been lost with the API server's memory. A node that
never was a Node of Kubernetes is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from limpet.cluster.kinds.grant import Grant
from limpet.controller.node_objects.node import REPLACE_LABEL, NodeObject
from limpet.controller.orchestrator.node_keeper.grace_clock import SET_S
from limpet.controller.registry.tables import Tables

MOST_AT_ONCE = 64
"""Nodes of which something is remembered in one commit: each is written by itself, and whoever asks
meanwhile waits."""
MOST_SETTLE_S = 300.0
"""A controller that has begun to lead waits so long at most before it removes a node: where the
store was put back from a copy, nodes say so meanwhile, and what it remembers is void."""


@dataclass(slots=True)
class Fates:
    """What became of nodes."""

    gone: list[tuple[Grant, float]] = field(default_factory=list)
    """Their Nodes were deleted, and when they will be removed."""
    back: list[Grant] = field(default_factory=list)
    """Their Nodes are there again, in time."""
    due: list[Grant] = field(default_factory=list)
    """To be removed now."""
    next_at_s: float | None = None
    """When there is more to do."""


def settle_fates(
    tables: Tables,
    deleted: Mapping[str, tuple[NodeObject, float]],
    *,
    grace_s: float,
    led_since_s: float,
    now_s: float,
    set_at_s: float | None = None,
) -> Fates:
    """Remembers which Nodes are there and which were deleted; all times are of the controller's
    clock. `deleted`: as the API server has told, with the time. `set_at_s`: the clock was set
    forward then; nobody knows what has passed of a grace time that began before, so it begins."""
    fates = Fates()
    nodes, written = tables.source.nodes, 0
    for name, node in nodes.objects.items():
        if written == MOST_AT_ONCE:
            fates.next_at_s = now_s
            return fates
        if (grant := _only(tables, name)) is None:
            continue
        record = tables.nodes[grant.uid]
        if (record.node_uid, record.node_gone_at_s) != (node.uid, None):
            tables.put_node(grant.uid, node_uid=node.uid, node_gone_at_s=None)
            written += 1
            if record.node_gone_at_s is not None:
                fates.back.append(grant)
    for name, (node, at_s) in deleted.items():
        grant = _only(tables, name)
        if grant is None or name in nodes.objects:
            continue
        record = tables.nodes[grant.uid]
        if record.node_uid == node.uid and record.node_gone_at_s is None:
            tables.put_node(grant.uid, node_gone_at_s=at_s)
            fates.gone.append((grant, at_s + grace_s))
    if not nodes.listed or tables.state.recovery is not None:
        return fates
    not_before_s = led_since_s + min(grace_s, MOST_SETTLE_S)
    for uid, record in list(tables.nodes.items()):
        if record.node_gone_at_s is None or tables.grants[uid].tombstone:
            continue
        gone_at_s = record.node_gone_at_s
        if set_at_s is not None and gone_at_s < set_at_s - SET_S:
            gone_at_s = set_at_s
            if written < MOST_AT_ONCE:
                tables.put_node(uid, node_gone_at_s=gone_at_s)
                written += 1
        at_s = max(gone_at_s + grace_s, not_before_s)
        if at_s <= now_s:
            fates.due.append(tables.grants[uid])
        else:
            fates.next_at_s = min(at_s, fates.next_at_s or at_s)
    return fates


def is_gone(tables: Tables, uid: str) -> bool:
    """The node whose time was over may still be removed: its Node is not there again, and nobody
    has removed it, or put the store back, meanwhile."""
    grant, record = tables.grants.get(uid), tables.nodes.get(uid)
    if grant is None or record is None or grant.tombstone or record.node_gone_at_s is None:
        return False
    nodes = tables.source.nodes
    is_back = grant.name in nodes.objects and _only(tables, grant.name) is not None
    return nodes.listed and tables.state.recovery is None and not is_back


def _only(tables: Tables, name: str) -> Grant | None:
    """The machine that the Node of this name is; None: there is none, or nobody knows which."""
    grants = [tables.grants[uid] for uid in tables.uids_of(name)]
    return grants[0] if len(grants) == 1 and not grants[0].is_flannel else None


def awaits_replacement(tables: Tables, uid: str) -> bool:
    """Whether the next machine that joins under the node's name takes its place: a person has said
    so here, or an administrator by a label of the Node, which names the machine that is gone.

    Never that of one that flannel runs: it would have its role too, and nobody would believe what
    it says. The segments are its own without that."""
    if tables.grants[uid].is_flannel:
        return False
    if tables.nodes[uid].awaits_replacement:
        return True
    node = tables.source.nodes.objects.get(tables.grants[uid].name)
    return node is not None and node.labels.get(REPLACE_LABEL) == uid


def how_to_replace(name: str, uid: str) -> str:
    return f"limpet node replace {name}, or kubectl label node {name} {REPLACE_LABEL}={uid}"


def problems_of_node(tables: Tables, grant: Grant) -> list[str]:
    """In words; empty: its Node is there, or it never had one."""
    record, nodes = tables.nodes[grant.uid], tables.source.nodes
    if grant.tombstone or not record.node_uid or not nodes.listed or grant.name in nodes.objects:
        return []
    if record.node_gone_at_s is not None:
        return [
            "its Node in Kubernetes was deleted: when the grace time is over, the node is removed "
            f"(at once: limpet node remove {grant.name}; not at all: start its kubelet again)"
        ]
    return [
        "its Node is not in Kubernetes, and nobody has told that it was deleted (was the API "
        "server put back from a copy, or did no controller run?): nothing is removed for that "
        f"(limpet node remove {grant.name}, if it is gone for good; else start its kubelet again)"
    ]
