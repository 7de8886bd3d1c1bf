"""A picture is a value that goes through JSON as it is."""

from __future__ import annotations

import msgspec

from limpet.base.decoding import decode_json
from limpet.picture.nodes import Node, NodeState, Segment
from limpet.picture.pair import Pair, Reach, Way
from limpet.picture.picture import Picture, Viewer


def test_a_picture_goes_through_json_and_says_nothing_of_what_is_not_there() -> None:
    picture = Picture(
        as_of_s=1.5,
        viewer=Viewer(kind="node", name="edge-1", uid="a"),
        nodes=(
            Node(
                uid="a",
                name="edge-1",
                state=NodeState.ANSWERS,
                segments=(Segment(prefix="10.8.0.0/26", size=64),),
            ),
        ),
        pairs=(Pair(one="a", other="b", there=Way(reach=Reach.REACHED, rung="relay")),),
    )
    encoded = msgspec.json.encode(picture)

    assert decode_json(encoded, Picture) == picture
    assert b"communities" not in encoded
    assert b"null" not in encoded
