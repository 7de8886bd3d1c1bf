"""What the pages show of a picture: found, put together, counted, cut into pages. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Generic, TypeVar

from limpet.picture.nodes import Node, NodeState, Relay, Segment
from limpet.picture.pair import Pair, Reach, Way
from limpet.picture.picture import Community, Picture
from limpet.picture.said import Finding, Level
from limpet.picture.workloads import Policy, Service
from limpet.web.live.map_rows import badness, worse
from limpet.web.live.words import rung_words

T = TypeVar("T")
PAGE_ROWS = 100
_LEVELS = (Level.FAIL, Level.WARN, Level.NOTE, Level.OK)
_BADNESS = (Reach.LOST, Reach.NO_PATH, Reach.REACHED, Reach.UNKNOWN, Reach.NOT_ALLOWED)


@dataclass(frozen=True, slots=True)
class RowsPage(Generic[T]):
    """Some of many rows."""

    rows: Sequence[T]
    number: int
    """From 1."""
    pages: int
    total: int


def page_of(rows: Sequence[T], number: int, most: int = PAGE_ROWS) -> RowsPage[T]:
    """The page of that number, or the nearest that there is."""
    pages = max(1, -(-len(rows) // most))
    number = min(max(1, number), pages)
    return RowsPage(rows[(number - 1) * most : number * most], number, pages, len(rows))


@dataclass(frozen=True, slots=True)
class PairRow:
    """A pair with its nodes, and the worse of its ways."""

    pair: Pair
    one: Node
    other: Node
    worse: Way

    @property
    def rtt_ms(self) -> float | None:
        """The longer round trip of those that the two ends told: a node measures by its own probes
        alone, and may be either end."""
        return max(_told(each.rtt_ms for each in (self.pair.there, self.pair.back)), default=None)

    @property
    def loss(self) -> float | None:
        """The larger loss of those that the two ends told."""
        return max(_told(each.loss for each in (self.pair.there, self.pair.back)), default=None)

    @property
    def since_at_s(self) -> float | None:
        """Since when the worse way is as it is; where its end has not told, the other way."""
        ways = (self.worse, self.pair.there, self.pair.back)
        return next(iter(_told(each.since_at_s for each in ways)), None)


@dataclass(frozen=True, slots=True)
class SegmentRow:
    node: Node
    segment: Segment

    @property
    def used(self) -> int | None:
        """Addresses that a further pod cannot get: what rests, or is kept for absent pods, is
        given where nothing else is left."""
        return self.segment.live

    @property
    def fullness(self) -> str:
        """full, nearly full, or empty for what is neither."""
        if self.used is None:
            return ""
        left = self.segment.size - self.used
        if left <= 0:
            return "full"
        return "nearly full" if left * 10 < self.segment.size else ""


class PictureView:
    """One picture, looked at in several ways."""

    def __init__(self, picture: Picture, found: tuple[Finding, ...] | None = None) -> None:
        """`found`: findings that are not in the picture."""
        self.picture = picture
        self._found = found

    @property
    def cut_off(self) -> str:
        return cut_off(self.picture)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        return {each.uid: each for each in self.picture.nodes}

    def name(self, uid: str) -> str:
        """Name of a node; its uid where nobody knows it."""
        return self.nodes[uid].name if uid in self.nodes else uid

    def uid_of(self, text: str) -> str | None:
        """Uid of a node by its uid or name; None: there is none."""
        if text in self.nodes:
            return text
        return next((each.uid for each in self.picture.nodes if each.name == text), None)

    @cached_property
    def living(self) -> list[Node]:
        return [each for each in self.picture.nodes if each.state is not NodeState.REMOVED]

    @cached_property
    def states(self) -> Counter[str]:
        return Counter(each.state.value for each in self.living)

    @cached_property
    def rungs(self) -> list[tuple[str, int]]:
        """How many pairs there are on each rung, the best first, then those without a way."""
        count: Counter[str] = Counter()
        for pair in self.picture.pairs:
            way = worse(pair)
            count[way.rung if way.reach is Reach.REACHED else way.reach.value] += 1
        rungs = rung_words()
        others = sorted(each for each in count if each not in rungs)
        return [(each, count[each]) for each in (*rungs, *others) if count[each]]

    @cached_property
    def findings(self) -> list[Finding]:
        """The worst first."""
        found = (*self.picture.also.findings, *(self._found or ()))
        return sorted(found, key=lambda each: _LEVELS.index(each.level))

    @property
    def is_examined(self) -> bool:
        """Somebody has looked for findings; else it is not known whether there are any."""
        return self.picture.viewer.kind != "node" or self._found is not None

    @cached_property
    def harm(self) -> int:
        return sum(each.level in (Level.FAIL, Level.WARN) for each in self.findings)

    # Rows

    def nodes_by_site(self, text: str, state: str = "") -> list[Node]:
        """Nodes by site, then name; those of no known site last."""
        found = [
            each
            for each in self.living
            if (not state or each.state.value == state) and _has(text, _words_of(each))
        ]
        return sorted(found, key=lambda each: (each.site == "", each.site, each.name))

    def pair_rows(self, text: str, kind: str = "", node: str = "") -> list[PairRow]:
        """What is bad before what is good; `kind`: a rung, or a reach."""
        nodes = self.nodes
        # There are many pairs for each node, and as many words as whoever looks has written.
        matching = [
            {each.uid for each in self.picture.nodes if _has(word, (each.name, each.site))}
            for word in set(text.split())
        ]
        rows = []
        for pair in self.picture.pairs:
            if node and node not in (pair.one, pair.other):
                continue
            one, other = nodes.get(pair.one), nodes.get(pair.other)
            if one is None or other is None:
                continue
            way = worse(pair)
            if kind and kind not in (way.rung, way.reach.value):
                continue
            if all(pair.one in each or pair.other in each for each in matching):
                rows.append(PairRow(pair, one, other, way))
        return sorted(rows, key=_badness)

    def segment_rows(self, text: str) -> list[SegmentRow]:
        """The fullest first."""
        rows = [
            SegmentRow(node, segment)
            for node in self.living
            for segment in node.segments
            if _has(text, (segment.prefix, node.name, node.site))
        ]
        return sorted(rows, key=lambda row: -_share(row))

    def relay_rows(self) -> list[tuple[Relay, Node | None]]:
        return [(each, self.nodes.get(each.uid)) for each in self.picture.relays]

    def pairs_by_relay(self) -> Counter[str]:
        """How many pairs of the picture each relay carries, by its uid."""
        return Counter(
            relay
            for pair in self.picture.pairs
            for relay in {pair.there.relay, pair.back.relay}
            if relay
        )

    def members(self, uids: Iterable[str]) -> list[Node]:
        found = (self.nodes[uid] for uid in uids if uid in self.nodes)
        return sorted(found, key=lambda each: each.name)


def cut_off(picture: Picture) -> str:
    """Says that the node which looks hears no cloud, since when, and why; empty: it hears one, or
    has none."""
    viewer = picture.viewer
    if viewer.connected is not False:
        return ""
    return f"Cut off from the cloud: {viewer.name} {viewer.cloud}"


def by_site(nodes: Iterable[Node]) -> list[tuple[str, list[Node]]]:
    """Neighbours in the list that are of one site."""
    return [(site, list(group)) for site, group in groupby(nodes, key=lambda each: each.site)]


def matching(rows: Iterable[T], text: str, words: Callable[[T], Iterable[str]]) -> list[T]:
    return [each for each in rows if _has(text, words(each))]


def _told(figures: Iterable[float | None]) -> list[float]:
    return [each for each in figures if each is not None]


def _badness(row: PairRow) -> Any:
    way = row.worse
    return (
        _BADNESS.index(way.reach),
        -(row.loss or 0.0),
        -badness(way.rung),
        row.one.name,
        row.other.name,
    )


def _share(row: SegmentRow) -> float:
    return -1.0 if row.used is None or not row.segment.size else row.used / row.segment.size


def _words_of(node: Node) -> Iterable[str]:
    yield from (node.name, node.site, node.uid, *node.roles, *node.communities)
    yield from (f"{key}={value}" for key, value in node.labels.items())
    yield from (each.prefix for each in node.segments)
    yield from node.machine.addresses


def _has(text: str, words: Iterable[str]) -> bool:
    wanted = text.casefold()
    return not wanted or any(wanted in word.casefold() for word in words)


def community_words(each: Community) -> Iterable[str]:
    return (each.name, each.selector)


def policy_words(each: Policy) -> Iterable[str]:
    return (each.name, each.words)


def service_words(each: Service) -> Iterable[str]:
    yield from (each.name, *each.addresses)
    for end in each.endpoints:
        yield from (end.address, end.pod, end.node)
