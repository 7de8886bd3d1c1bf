"""How full this node's segments are."""

from __future__ import annotations

from limpet.agent.status.node import SegmentUse
from limpet.cni.usage import segment_usage
from limpet.cni.verbs import Node


def segment_states(node: Node) -> list[SegmentUse]:
    """Each segment's size, and how many of its addresses are in each state."""
    return [
        SegmentUse(
            prefix=str(use.prefix),
            size=use.size,
            free=use.size - use.live - use.bound,
            live=use.live,
            resting=use.resting,
            bound=use.bound,
        )
        for use in segment_usage(node.ledgers, node.state.segments)
    ]
