"""What the controller is told of this node's ways: those that matter, if they are many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from limpet import __version__
from limpet.agent.answers.picture.detail import direction_here
from limpet.agent.answers.picture.looking import Looking
from limpet.agent.answers.picture.nodes import load_of, own_segments
from limpet.agent.answers.picture.ways import WaySeen, steady
from limpet.base.bounds.members import REPORTED_PAIRS, REPORTED_SEGMENTS
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.sites import LABELS
from limpet.paths.report import NodeReport, PairReport, cut
from limpet.picture.nodes import RelayLoad


def chosen(
    seen: Mapping[str, WaySeen], nodes: Mapping[str, NodeEntry], active: Iterable[str]
) -> list[str]:
    """Uids of the peers that are told by themselves, if not all can be: those in trouble, those by
    relays, those with traffic, and one of each place. Sorted; which they are does not change
    without a reason."""
    if len(seen) <= REPORTED_PAIRS.most:
        return sorted(seen)
    with_traffic = set(active)
    firsts: dict[str, str] = {}
    for uid in sorted(seen):
        firsts.setdefault(_place(nodes.get(uid)), uid)
    one_of_each = set(firsts.values())

    def rank(uid: str) -> tuple[int, str]:
        each = seen[uid]
        if each.here is not None and each.here.path is not None and each.here.is_silent:
            return 0, uid
        if uid in with_traffic:
            return 1, uid
        if not each.is_reached:
            return 2, uid
        if each.here is not None and each.here.path is not None and each.here.path.relay:
            return 3, uid
        return 4 if uid in one_of_each else 5, uid

    ranked = sorted(seen, key=rank)
    return sorted(uid for uid in ranked[: REPORTED_PAIRS.most] if rank(uid)[0] < 5)


def _place(entry: NodeEntry | None) -> str:
    """Where a node seems to be: its label, the public address in front of it, or its network."""
    if entry is None:
        return ""
    label = next((name for key in LABELS if (name := entry.grant.labels.get(key))), "")
    if label or entry.presence is None:
        return label
    if entry.presence.endpoints:
        return str(entry.presence.endpoints[0][0])
    first = next((str(each) for each in entry.presence.addresses if each.version == 4), "")
    return first.rpartition(".")[0]


def make_report(
    looking: Looking, told: Mapping[str, PairReport]
) -> tuple[NodeReport, dict[str, PairReport]]:
    """`told`: the pairs as the controller has them."""
    view, lacking = looking.view, looking.lacking()
    nodes = view.snapshot.nodes
    seen = {
        uid: each
        for uid, entry in nodes.items()
        if uid != view.uid
        and not entry.grant.tombstone
        and (each := looking.seen(uid, entry, lacking)).is_allowed
    }
    meant = chosen(seen, nodes, looking.active(seen))
    pairs = {}
    for uid in meant:
        before = told.get(uid)
        direction = cut(direction_here(looking.facts_of_pair(uid, seen[uid], lacking), view))
        if before is not None:
            way = steady(direction.way, before.direction.way)
            direction = direction if way is direction.way else replace(direction, way=way)
        pairs[uid] = PairReport(uid, direction)
    rest = Counter(_rung(seen[uid]) for uid in seen if uid not in pairs)
    return _node(looking, seen, rest), pairs


def _rung(seen: WaySeen) -> str:
    path = seen.here.path if seen.here is not None else None
    return path.rung.name if path is not None and seen.is_reached else "unreached"


def _node(looking: Looking, seen: Mapping[str, WaySeen], rest: Mapping[str, int]) -> NodeReport:
    own = looking.view.uid
    near = [
        uid
        for uid, each in seen.items()
        if each.here is not None
        and each.here.path is not None
        and not each.here.path.rung.encrypted
    ]
    report, of_pods = looking.nat_traversal.report(), looking.of_pods()
    relaying, tls = report.relaying, report.relaying_tls
    load: RelayLoad | None = None
    if relaying is not None:
        load = load_of(relaying, tls.nodes if tls is not None else ())
    return NodeReport(
        version=__version__,
        backend=looking.backend(),
        nat=dict(report.relays.nat),
        segments=own_segments(of_pods.segments)[: REPORTED_SEGMENTS.most],
        pods=of_pods.pods,
        near=min([own, *near]) if near else "",
        relay=load,
        rungs=dict(sorted(rest.items())),
    )
