"""What a browser is told of a change makes its map that of the new picture."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from limpet.picture.nodes import NodeState
from limpet.picture.pair import Reach, Way
from limpet.picture.picture import Picture
from limpet.web.live.map_rows import changes, map_rows
from tests.beds.pictured import world


def changed(picture: Picture, chance: random.Random) -> Picture:
    """Some of its nodes and pairs are otherwise."""
    nodes, pairs = list(picture.nodes), list(picture.pairs)
    for at in chance.sample(range(len(nodes)), 3):
        nodes[at] = replace(nodes[at], state=NodeState.SILENT, pods=chance.randrange(9))
    for at in chance.sample(range(len(pairs)), 5):
        way = Way(reach=chance.choice(list(Reach)), rung=chance.choice(("route", "relay")))
        pairs[at] = replace(pairs[at], there=way)
    return replace(picture, version="2", nodes=tuple(nodes), pairs=tuple(pairs))


@pytest.mark.parametrize("seed", range(5))
def test_what_changed_put_into_what_was_is_what_is(seed: int) -> None:
    before = world(40, seed)
    after = changed(before, random.Random(seed))

    told = changes(map_rows(before), map_rows(after), before.version, after)
    nodes, pairs = list(map_rows(before).nodes), list(map_rows(before).pairs)
    for place, row in told["nodes"].items():
        nodes[place] = row
    for place, row in told["pairs"].items():
        pairs[place] = row

    assert (tuple(nodes), tuple(pairs)) == (map_rows(after).nodes, map_rows(after).pairs)
    assert len(told["nodes"]) <= 3
    assert len(told["pairs"]) <= 5


def test_where_nodes_come_or_go_all_is_asked_for_anew() -> None:
    before = world(40)
    gone = replace(before.nodes[3], state=NodeState.REMOVED)
    after = replace(before, version="2", nodes=(*before.nodes[:3], gone, *before.nodes[4:]))

    assert changes(map_rows(before), map_rows(after), before.version, after)["reload"] is True
    assert all(gone.uid != row[0] for row in map_rows(after).nodes)
