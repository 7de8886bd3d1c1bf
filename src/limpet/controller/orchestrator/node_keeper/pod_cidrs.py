"""PodCIDRs of a Node that its node may have as segments, and why it may not. Pure.

What is granted once stays granted, whatever Kubernetes says later; a segment's object in the store
is made once, so the first that is granted a prefix has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from limpet.base.addresses import Prefix, bounds_of
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.segments import Holding
from limpet.controller.node_objects.node import NodeObject
from limpet.controller.registry.tables import Tables


@dataclass(frozen=True, slots=True)
class Offer:
    """What Kubernetes has for a node that it does not have yet."""

    prefixes: tuple[Prefix, ...] = ()
    """It may have these."""
    problems: tuple[str, ...] = ()
    """Why it may not have others, in words, with what to do."""
    is_awaited: bool = False
    """Kubernetes has told nothing yet: podCIDRs may come, and are waited for."""


NOTHING = Offer()


def offer(
    tables: Tables, name: str, uid: str, now_s: float, had: Sequence[Prefix] | None = None
) -> Offer:
    """For the machine `uid`, known or about to be, which is the Node `name`.

    `had`: segments that it has; None: as its grant says.
    """
    source = tables.source
    if not source.from_nodes:
        return NOTHING
    node = source.nodes.objects.get(name)
    if node is None:
        return Offer(is_awaited=not source.nodes.listed)
    if not (node.pod_cidrs or node.unreadable_cidrs):
        return Offer(is_awaited=True)
    if had is None:
        had = tables.grants[uid].segments
    wanted = [each for each in node.pod_cidrs if each not in had]
    if not (wanted or node.unreadable_cidrs):
        return NOTHING
    others = [
        each for each in tables.uids_of(name) if each != uid and not tables.grants[each].is_flannel
    ]
    if others:
        return Offer(
            problems=(
                f"take podCIDRs of Node {name}: the machine {others[0]} has that name too, and "
                "nobody can tell which of them the Node is (remove the one that is gone: limpet "
                "node remove UID)",
            )
        )
    found: list[Prefix] = []
    problems = [
        f"take podCIDR {text[:60]!r} of Node {name}: it is no prefix such as 10.244.3.0/24 "
        f"(make the Node anew: {how_to_recreate(name)})"
        for text in node.unreadable_cidrs
    ]
    for prefix in dict.fromkeys(wanted):
        problem = _problem(tables, node, prefix, uid, (*had, *found), now_s)
        if problem:
            problems.append(f"take podCIDR {prefix} of Node {name}: {problem}")
        else:
            found.append(prefix)
    return Offer(tuple(found), tuple(problems))


def problems_of_cidrs(tables: Tables, grant: Grant, now_s: float) -> list[str]:
    """What a person should know of the podCIDRs of this node; empty: all is well."""
    if not tables.source.from_nodes or grant.tombstone or grant.is_flannel:
        return []
    found = offer(tables, grant.name, grant.uid, now_s)
    problems = list(found.problems)
    if grant.segments or found.prefixes or problems:
        return problems
    if found.is_awaited:
        return [waiting_words(grant.name)]
    return [
        f"it has no segments: there is no Node {grant.name} in Kubernetes to take podCIDRs of, and "
        "the controller has none of its own (start the kubelet under this name, or name own_cidrs "
        "in the controller's configuration)"
    ]


def waiting_words(name: str) -> str:
    return (
        f"Node {name} has no podCIDRs yet; it gets them as segments as soon as they are there "
        "(Kubernetes' controller manager hands them out with --allocate-node-cidrs and "
        '--cluster-cidr; where nobody does, set segments_from = "controller")'
    )


def _problem(
    tables: Tables,
    node: NodeObject,
    prefix: Prefix,
    uid: str,
    had: Sequence[Prefix],
    now_s: float,
) -> str:
    """Why the node may not have it, with what to do; empty: it may."""
    network = tables.network
    if not any(_is_inside(prefix, cidr) for cidr in network.pod_cidrs):
        inside = ", ".join(map(str, network.pod_cidrs))
        return (
            f"it is not inside of the cluster's pod_cidrs ({inside}), and nodes take nothing else "
            "for pods (pod_cidrs of the controller's configuration, which is chosen once, has to "
            "hold --cluster-cidr of Kubernetes' controller manager)"
        )
    if tables.space.number(prefix) is None:
        # Of one length, two never overlap in part: the object of the segment is what is made once.
        length = network.segment_lengths[prefix.version]
        return (
            f"it is a /{prefix.prefixlen}, and segments of this cluster are /{length} "
            f"(segment_length_v{prefix.version} of the controller's configuration, which is chosen "
            "once, has to be --node-cidr-mask-size of Kubernetes' controller manager)"
        )
    # Services lie apart: no cluster is made whose pod_cidrs overlap its service_cidrs.
    for cidr in tables.source.own_cidrs or ():
        if _overlap(prefix, cidr):
            return (
                f"it overlaps {cidr}, which the controller grants from itself (name another part "
                "of pod_cidrs in own_cidrs, one that Kubernetes does not hand out)"
            )
    # What others' Nodes name counts for nothing: each kubelet writes its own, and may lie.
    for address in node.addresses:
        if address.version == prefix.version and address in prefix:
            return (
                f"{address}, an address of this Node, is in it, so others would take that for a "
                "pod's (give --cluster-cidr of Kubernetes' controller manager a prefix that lies "
                "apart from the nodes' addresses)"
            )
    if other := _older_claim(tables, node, prefix):
        return (
            f"it is also that of Node {other}, which is older (have Kubernetes give this Node "
            f"another: {how_to_recreate(node.name)})"
        )
    if sum(1 for each in had if each.version == prefix.version) >= network.segment_quota:
        return (
            f"the node holds {network.segment_quota} segments of IPv{prefix.version} already, its "
            "quota (segment_quota in the controller's configuration)"
        )
    if tables.state.recovery is not None:
        return (
            "the controller was restored from an old back-up and waits until its nodes have "
            "reported (a person can tell more: limpet controller recovery)"
        )
    holding = tables.space.holdings.get(prefix)
    return "" if holding is None else _held(tables, holding, node.name, uid, now_s)


def _held(tables: Tables, holding: Holding, name: str, uid: str, now_s: float) -> str:
    """Why what is held or rests stands in the way; empty: it does not."""
    if not holding.uid:
        return (
            "it is held back since the controller was restored: a node that nobody has shown "
            "may have it (limpet controller recovery --force, if there is none)"
        )
    if holding.uid == uid:
        return ""  # claimed, and then the controller ended before the grant was written
    former = tables.grants.get(holding.uid)
    whose = former.name if former is not None else holding.uid
    until_s = tables.space.rests_until_s(holding)
    if until_s is None:
        return (
            f"it is held by node {whose} ({holding.uid}) (limpet node remove {holding.uid}, if "
            "that is gone for good; or have Kubernetes give this Node another: "
            f"{how_to_recreate(name)})"
        )
    # Kubernetes has one Node of a name: who was removed under it is not there beside it.
    if until_s <= now_s or whose == name:
        return ""
    return (
        f"it rests until {moment(until_s)}, since the removed node {whose} may still "
        "use it (own_cidrs of the controller's configuration would give this node others "
        f"meanwhile; or have Kubernetes give its Node another: {how_to_recreate(name)})"
    )


def _older_claim(tables: Tables, node: NodeObject, prefix: Prefix) -> str:
    """Another Node that Kubernetes gave the same, or nothing. The older one counts, whether it is a
    node of this network or not."""
    mine = (node.created_at, node.name)
    for other in tables.source.nodes.objects.values():
        if prefix in other.pod_cidrs and (other.created_at, other.name) < mine:
            return other.name
    return ""


def _is_inside(prefix: Prefix, cidr: Prefix) -> bool:
    first, last = bounds_of(cidr)
    return prefix.version == cidr.version and first <= int(prefix.network_address) <= last


def _overlap(one: Prefix, other: Prefix) -> bool:
    return one.version == other.version and one.overlaps(other)


def how_to_recreate(name: str) -> str:
    return f"kubectl delete node {name}, then start its kubelet again"


def moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
