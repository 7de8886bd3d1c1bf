"""What a browser draws of a picture, small, and what of it changed. Pure.

A node is `[uid, name, site, state, roles, pods]`, a pair `[one, other, there, back]` with its nodes
as places in the list of nodes, and a way `[reach, rung, round trip in ms or null, loss or null]`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from limpet.cluster.topology.transports import TRANSPORTS
from limpet.picture.nodes import Node, NodeState
from limpet.picture.pair import Pair, Reach, Way
from limpet.picture.picture import Picture
from limpet.web.live.words import rung_words

Row = tuple[Any, ...]
_WORST = (Reach.REACHED, Reach.UNKNOWN, Reach.NOT_ALLOWED, Reach.NO_PATH, Reach.LOST)


@dataclass(frozen=True, slots=True)
class MapRows:
    """Rows by their place."""

    sites: tuple[str, ...]
    nodes: tuple[Row, ...]
    pairs: tuple[Row, ...]

    def document(self, picture: Picture) -> dict[str, Any]:
        """All of it."""
        return {
            **_head(picture),
            "rungs": list(rung_words().items()),
            "sites": self.sites,
            "nodes": self.nodes,
            "pairs": self.pairs,
            "me": picture.viewer.uid,
        }


def map_rows(picture: Picture) -> MapRows:
    """Without removed nodes; of pairs those whose nodes are both there."""
    there = [each for each in picture.nodes if each.state is not NodeState.REMOVED]
    places = {each.uid: place for place, each in enumerate(there)}
    return MapRows(
        tuple(dict.fromkeys(each.site for each in there)),
        tuple(map(_node_row, there)),
        tuple(
            (places[each.one], places[each.other], _way_row(each.there), _way_row(each.back))
            for each in picture.pairs
            if each.one in places and each.other in places
        ),
    )


def changes(before: MapRows, now: MapRows, known: str, picture: Picture) -> dict[str, Any]:
    """Against the picture of version `known`, by place: what is another row now.

    `reload`: places are others, so all is to be asked for.
    """
    same_places = (
        before.sites == now.sites
        and [row[:3] for row in before.nodes] == [row[:3] for row in now.nodes]
        and [row[:2] for row in before.pairs] == [row[:2] for row in now.pairs]
    )
    if not same_places:
        return {**_head(picture), "reload": True}
    return {
        **_head(picture),
        "before": known,
        "nodes": _others(before.nodes, now.nodes),
        "pairs": _others(before.pairs, now.pairs),
    }


def worse(pair: Pair) -> Way:
    """The worse of the pair's two ways, with the figures of that direction alone."""
    ways = (pair.there, pair.back)
    told = [each for each in ways if each.reach is not Reach.UNKNOWN] or list(ways)
    return max(told, key=lambda each: (_WORST.index(each.reach), badness(each.rung)))


def badness(rung: str) -> float:
    """The lower, the better the rung; what is none is worse than all."""
    row = TRANSPORTS.get(rung)
    return math.inf if row is None else row.preference


def _head(picture: Picture) -> dict[str, Any]:
    return {"version": picture.version, "as_of_s": picture.as_of_s}


def _others(before: tuple[Row, ...], now: tuple[Row, ...]) -> dict[int, Row]:
    return {
        place: new
        for place, (old, new) in enumerate(zip(before, now, strict=True))
        if old is not new and old != new
    }


def _node_row(node: Node) -> Row:
    return (node.uid, node.name, node.site, node.state.value, node.roles, node.pods)


def _way_row(way: Way) -> Row:
    return (way.reach.value, way.rung, way.rtt_ms, way.loss)
