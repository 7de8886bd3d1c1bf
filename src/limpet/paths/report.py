"""What a node tells the controller of its ways to others, so that the cloud can show them: bounded,
and by difference. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from limpet.base.bounds.members import (
    NUMBER,
    REPORTED_FIGURE,
    REPORTED_NATS,
    REPORTED_PAIRS,
    REPORTED_SEGMENTS,
    REPORTED_WORDS,
)
from limpet.picture.nodes import RelayLoad, Segment
from limpet.picture.pair import Direction

Sequence = Annotated[int, Meta(ge=0, le=NUMBER.most)]
_MOST_MEND = 8


class NodeReport(Struct, frozen=True, omit_defaults=True):
    """What a node says of itself beside its presence."""

    version: str = ""
    """Version of its agent."""
    backend: str = ""
    """What makes its tunnel."""
    nat: dict[str, str] = {}
    """Kind of NAT, by IP version."""
    segments: tuple[Segment, ...] = ()
    """Its segments, with how full they are."""
    pods: int = 0
    near: str = ""
    """Lowest uid of the nodes that it reaches without a tunnel, itself among them."""
    relay: RelayLoad | None = None
    rungs: dict[str, int] = {}
    """How many nodes it reaches on each, or does not (`unreached`), of those that are no pair of
    the report."""


class PairReport(Struct, frozen=True, omit_defaults=True):
    """The way to one node."""

    peer: str
    """Uid of that node."""
    direction: Direction


class PathReport(Struct, frozen=True, omit_defaults=True):
    """All that the node tells, or what is another since the report `base`."""

    sequence: Sequence
    node: NodeReport
    base: Sequence | None = None
    """None: this is all."""
    pairs: tuple[PairReport, ...] = ()
    gone: tuple[str, ...] = ()
    """Uids of pairs that are told no more."""


class PathReportAnswer(Struct, frozen=True):
    sequence: Sequence


Pairs = Mapping[str, PairReport]


def report_problem(report: PathReport) -> str:
    """Why no controller takes it; empty: it does. Both sides hold to it."""
    node = report.node
    if len(report.gone) > REPORTED_PAIRS.most:
        return f"{len(report.gone)} pairs that are gone: at most {REPORTED_PAIRS.most}"
    if len(node.segments) > REPORTED_SEGMENTS.most:
        return f"{len(node.segments)} segments: at most {REPORTED_SEGMENTS.most}"
    if max(len(node.nat), len(node.rungs)) > REPORTED_NATS.most:
        return f"more than {REPORTED_NATS.most} IP versions, or rungs"
    if not all(map(_is_figure, _figures(node))):
        return f"a count or a rate below 0, or above {REPORTED_FIGURE.most}"
    words = [node.version, node.backend, node.near, *node.nat, *node.nat.values(), *node.rungs]
    words += [each.prefix for each in node.segments]
    words += report.gone
    for pair in report.pairs:
        way, outward = pair.direction.way, pair.direction.outward
        said = pair.direction
        if said.probes or said.endpoints or len(said.mend) + len(said.notes) > _MOST_MEND:
            return f"of pair {pair.peer[:80]} more than the controller keeps"
        words += [pair.peer, way.rung, way.relay, said.nat, said.why_not_direct]
        words += [outward.device, outward.next_hop, outward.underlay, outward.endpoint]
        words += [*said.mend, *said.notes]
    if any(len(each) > REPORTED_WORDS.most for each in words):
        return f"words of more than {REPORTED_WORDS.most} characters"
    return ""


def _figures(node: NodeReport) -> Iterator[float | None]:
    yield node.pods
    yield from node.rungs.values()
    if (load := node.relay) is not None:
        yield from (load.pairs, load.connections, load.most_pairs)
        yield from (load.bytes_per_s, load.node_most_bytes_per_s)


def _is_figure(value: float | None) -> bool:
    """Not where it is no number at all, either."""
    return value is None or 0 <= value <= REPORTED_FIGURE.most


def merged(before: Pairs, report: PathReport) -> dict[str, PairReport]:
    """All pairs that are told after the report. Raises: ValueError: too many."""
    found = {} if report.base is None else dict(before)
    for uid in report.gone:
        found.pop(uid, None)
    found |= {each.peer: each for each in report.pairs}
    if len(found) > REPORTED_PAIRS.most:
        raise ValueError(f"{len(found)} pairs of one node: at most {REPORTED_PAIRS.most}")
    return found


def difference(before: Pairs, now: Pairs) -> tuple[tuple[PairReport, ...], tuple[str, ...]]:
    """What to tell whoever has `before`: pairs that are others, and uids that are gone."""
    changed = tuple(pair for uid, pair in now.items() if before.get(uid) != pair)
    return changed, tuple(uid for uid in before if uid not in now)


def more_than_figures(before: Pairs, now: Pairs, node_before: NodeReport, node: NodeReport) -> bool:
    """Whether ways are others, and not only how good they are or how full the node is."""
    return _without_figures(node_before) != _without_figures(node) or (
        {uid: _way_alone(pair) for uid, pair in before.items()}
        != {uid: _way_alone(pair) for uid, pair in now.items()}
    )


def _without_figures(node: NodeReport) -> NodeReport:
    return replace(node, segments=(), pods=0, relay=None)


def _way_alone(pair: PairReport) -> Direction:
    direction = pair.direction
    return replace(direction, way=replace(direction.way, rtt_ms=None, loss=None))


def cut(direction: Direction) -> Direction:
    """As much of it as is told: probes stay on the node, where `limpet ui` shows them."""
    return replace(
        direction,
        probes=(),
        endpoints=(),
        mend=tuple(each[: REPORTED_WORDS.most] for each in direction.mend[:4]),
        notes=tuple(each[: REPORTED_WORDS.most] for each in direction.notes[:4]),
        why_not_direct=direction.why_not_direct[: REPORTED_WORDS.most],
    )
