"""How full the node's segments are, over all networks that draw on them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from limpet.base.addresses import Prefix
from limpet.cluster.segments import SegmentUse
from limpet.cni.ledgers import Ledgers
from limpet.ipam.leases import segment_range


def segment_usage(ledgers: Ledgers, segments: Sequence[Prefix]) -> tuple[SegmentUse, ...]:
    """In the order of `segments`; the cost does not grow with the number of addresses."""
    range_sets = [(segment_range(segment),) for segment in segments]
    if not range_sets:
        return ()
    now_s = time.monotonic()
    by_ledger = [ledger.usage(range_sets, now_s=now_s) for ledger in ledgers]
    return tuple(
        SegmentUse(
            segment,
            # Without network, gateway and broadcast address; IPv6 has no broadcast.
            segment.num_addresses - (3 if segment.version == 4 else 2),
            live=sum(usages[i].live for usages in by_ledger),
            resting=sum(usages[i].resting for usages in by_ledger),
            bound=sum(usages[i].bound for usages in by_ledger),
        )
        for i, segment in enumerate(segments)
    )
