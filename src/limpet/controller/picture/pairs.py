"""What nodes report of their ways -> pairs of a picture, and one of them in detail. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from limpet.base.addresses import endpoint_text
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.reach import may_talk, why_apart
from limpet.cluster.topology.transports import TRANSPORTS
from limpet.controller.picture.reported import NodePaths
from limpet.paths.report import PairReport
from limpet.picture.pair import Direction, Pair, PairDetail, Reach, Way

MOST_PAIRS = 20_000
"""More of them nobody draws, and a picture is sent whole."""
_BAD = {Reach.LOST: 0, Reach.NO_PATH: 1}
_UNKNOWN = Way()
_IN_CLEAR = {each.name for each in TRANSPORTS.values() if not each.encrypted}


def pairs_of(
    reported: Mapping[str, NodePaths], members: Iterable[str], most: int = MOST_PAIRS
) -> tuple[tuple[Pair, ...], int]:
    """Those that either end reports, by their uids, and how many more there are: where there are
    too many, what is in trouble comes first, then what goes by relays."""
    alive = set(members)
    ways: dict[tuple[str, str], list[Way]] = {}
    for uid, paths in reported.items():
        if uid not in alive:
            continue
        for peer, pair in paths.pairs.items():
            if peer in alive and peer != uid:
                key, side = ((uid, peer), 0) if uid < peer else ((peer, uid), 1)
                both = ways.setdefault(key, [_UNKNOWN, _UNKNOWN])
                both[side] = pair.direction.way
    keys = sorted(ways)
    if len(keys) > most:
        keys = sorted(sorted(keys, key=lambda key: _rank(ways[key]))[:most])
    shown = tuple(
        Pair(one=one, other=other, there=ways[one, other][0], back=ways[one, other][1])
        for one, other in keys
    )
    return shown, len(ways) - len(shown)


def _rank(both: list[Way]) -> int:
    worst = min(_BAD.get(way.reach, 3) for way in both)
    return 2 if worst == 3 and any(way.relay for way in both) else worst


def in_clear(
    reported: Mapping[str, NodePaths], grants: Mapping[str, Grant], network: Network
) -> list[tuple[str, str]]:
    """Pairs of nodes that stand together: each names the lowest that it reaches without tunnel.

    A member that names one at another site would make the two sites one. So the one that is named
    has to reach somebody so, too, and to say nothing else of its way to who names it.
    """
    return [
        (uid, near)
        for uid, paths in reported.items()
        if (near := paths.node.near) == uid
        or (
            near in reported
            and reported[near].node.near
            and uid in grants
            and near in grants
            and may_talk(network, grants[uid], grants[near])
            and not _says_otherwise(reported[near].pairs.get(uid))
        )
    ]


def _says_otherwise(pair: PairReport | None) -> bool:
    """A way that is lost keeps its rung, so a site stays one while a node of it is away."""
    return pair is not None and pair.direction.way.rung not in _IN_CLEAR


def detail_of(
    one: str,
    other: str,
    nodes: Mapping[str, NodeEntry],
    network: Network,
    reported: Mapping[str, NodePaths],
    *,
    as_of_s: float,
) -> PairDetail:
    """`one` is the lower uid; both are nodes."""
    first, second = nodes[one], nodes[other]
    why_not = why_apart(network, first.grant, second.grant)
    there, back = _direction(one, other, nodes, reported), _direction(other, one, nodes, reported)
    return PairDetail(
        one=one,
        other=other,
        there=there,
        back=back,
        communities=tuple(sorted(set(first.grant.communities) & set(second.grant.communities))),
        why_not_allowed=why_not,
        why_unknown=""
        if (there and back) or why_not
        else _why_unknown(one, other, nodes, reported),
        as_of_s=round(as_of_s, 1),
    )


def _direction(
    uid: str, peer: str, nodes: Mapping[str, NodeEntry], reported: Mapping[str, NodePaths]
) -> Direction | None:
    paths = reported.get(uid)
    pair = paths.pairs.get(peer) if paths is not None else None
    if pair is None:
        return None
    presence = nodes[uid].presence
    endpoints = presence.endpoints if presence is not None else ()
    return replace(pair.direction, endpoints=tuple(map(endpoint_text, endpoints)))


def _why_unknown(
    one: str, other: str, nodes: Mapping[str, NodeEntry], reported: Mapping[str, NodePaths]
) -> str:
    silent = [nodes[uid].grant.name for uid in (one, other) if uid not in reported]
    if silent:
        return f"{' and '.join(silent)} told no ways since this controller started"
    return (
        "there is no traffic between the two and nothing is wrong, so they tell it by number only "
        "(a node of many peers tells 64: `limpet ui` on either node knows)"
    )
