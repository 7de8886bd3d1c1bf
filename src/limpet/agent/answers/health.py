"""How the node does: why it takes no pods, and how full its segments are."""

from __future__ import annotations

from limpet.agent.status import SegmentUse
from limpet.cni.usage import segment_usage
from limpet.cni.verbs import Node


def reasons_not_ready(node: Node, *, without_segments: str = "no segments") -> list[str]:
    """Why a pod could not be started here, in words; empty when it could.

    `without_segments`: why there are none, should it be so.
    """
    if not (node.settings.cni or node.state.in_cluster):
        return ["cni = false, and this node is in no cluster: it has nothing to do (limpet join)"]
    refusals = (ledger.refusal for ledger in node.books)
    return [
        *([] if node.state.segments else [without_segments]),
        *(why for folder, why in node.books.failed.items() if folder.parent == node.books.data_dir),
        *(str(refusal) for refusal in refusals if refusal is not None),
        *node.rounds.troubles,
    ]


def segment_states(node: Node) -> list[SegmentUse]:
    """Of each segment its size, and how many addresses are in each state."""
    return [
        SegmentUse(
            prefix=str(use.prefix),
            size=use.size,
            free=use.size - use.live - use.bound,
            live=use.live,
            resting=use.resting,
            bound=use.bound,
        )
        for use in segment_usage(node.books, node.state.segments)
    ]
