"""What a node tells the controller of its ways to others, so that the cloud can show them: bounded,
and by difference. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from limpet.base.addresses import parse_listen
from limpet.base.bounds.members import (
    NUMBER,
    REPORTED_FIGURE,
    REPORTED_NATS,
    REPORTED_PAIRS,
    REPORTED_SEGMENTS,
    REPORTED_WORDS,
)
from limpet.base.text.escaping import escaped
from limpet.cluster.kinds import fields
from limpet.picture.nodes import RelayLoad, Segment
from limpet.picture.pair import Direction, Outward

Sequence = Annotated[int, Meta(ge=0, le=NUMBER.most)]
_MOST_MEND = 8
_ALL_ADDRESSES = 1 << 128


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
    figures = [*_figures(node), *(each for pair in report.pairs for each in _of_pair(pair))]
    if not all(map(_is_figure, figures)):
        return f"a count or a rate below 0, or above {REPORTED_FIGURE.most}"
    counts = [*_counts(node), *(each for pair in report.pairs for each in _bytes_of(pair))]
    if not all(each is None or abs(each) <= _ALL_ADDRESSES for each in counts):
        return f"a count of addresses or bytes above {_ALL_ADDRESSES}"
    for pair in report.pairs:
        said = pair.direction
        if said.probes or said.endpoints or len(said.mend) + len(said.notes) > _MOST_MEND:
            return f"of pair {escaped(pair.peer[:80])} more than the controller keeps"
    words, sentences = list(_words(report)), list(_sentences(report))
    if any(len(each) > REPORTED_WORDS.most for each in (*words, *sentences)):
        return f"words of more than {REPORTED_WORDS.most} characters"
    for each in words:
        if not (each.isascii() and each.isprintable()):
            return f"{escaped(each[:80])!r} has more than printable ASCII"
    if strange := next((each for each in sentences if escaped(each) != each), ""):
        return f"{escaped(strange[:80])!r} has what nobody can see"
    return _address_problem(report)


def _words(report: PathReport) -> Iterator[str]:
    """What programs have named: versions, kinds, rungs, uids and addresses."""
    node = report.node
    yield from (node.version, node.backend, node.near)
    yield from (*node.nat, *node.nat.values(), *node.rungs, *report.gone)
    yield from (each.prefix for each in node.segments)
    for pair in report.pairs:
        way, outward = pair.direction.way, pair.direction.outward
        yield from (pair.peer, way.rung, way.relay, pair.direction.nat)
        yield from (outward.next_hop, outward.underlay, outward.endpoint)


def _sentences(report: PathReport) -> Iterator[str]:
    """What is for a person, or was named by one, such as a link: in any letters."""
    for pair in report.pairs:
        said = pair.direction
        yield from (said.why_not_direct, said.outward.device, *said.mend, *said.notes)


def _address_problem(report: PathReport) -> str:
    try:
        fields.prefixes(each.prefix for each in report.node.segments)
        for pair in report.pairs:
            _check_outward(pair.direction.outward)
    except ValueError as error:
        return escaped(str(error)[: REPORTED_WORDS.most])
    return ""


def _check_outward(outward: Outward) -> None:
    """Raises: ValueError for what is no address, where one is meant."""
    hops = outward.next_hop.split(", ") if outward.next_hop else ()
    for each in (*hops, *filter(None, [outward.underlay])):
        fields.address(each)
    if outward.endpoint:
        host, _port = parse_listen(outward.endpoint)
        fields.address(host)


def _figures(node: NodeReport) -> Iterator[float | None]:
    yield node.pods
    yield from node.rungs.values()
    if (load := node.relay) is not None:
        yield from (load.pairs, load.connections, load.most_pairs)
        yield from (load.bytes_per_s, load.node_most_bytes_per_s)


def _of_pair(pair: PairReport) -> Iterator[float | None]:
    said = pair.direction
    yield from (said.way.rtt_ms, said.way.loss, said.outward.mtu_bytes)
    yield from (said.way.since_at_s, said.traffic.handshake_at_s)


def _counts(node: NodeReport) -> Iterator[int | None]:
    """What a segment of IPv6 may have more of than anything else; below 0 by a ledger at odds."""
    for each in node.segments:
        yield from (each.size, each.free, each.live, each.resting, each.bound)


def _bytes_of(pair: PairReport) -> Iterator[int | None]:
    """A tunnel of 100 Gbit/s is above what else is counted within a day."""
    traffic = pair.direction.traffic
    yield from (traffic.sent_bytes, traffic.received_bytes)


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
    """As much of it as is told: probes stay on the node, where `limpet ui` shows them.

    Words that others had a part in are escaped here: for one of them that nobody can see the
    controller would refuse all that the node tells.
    """
    outward = direction.outward
    return replace(
        direction,
        probes=(),
        endpoints=(),
        outward=replace(outward, device=_cut(outward.device)),
        mend=_each_cut(direction.mend[:4]),
        notes=_each_cut(direction.notes[:4]),
        why_not_direct=_cut(direction.why_not_direct),
    )


def _each_cut(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(_cut, texts))


def _cut(text: str) -> str:
    return escaped(text)[: REPORTED_WORDS.most]
