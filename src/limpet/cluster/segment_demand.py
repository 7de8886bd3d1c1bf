"""When a node needs a further segment: before it runs out, so that it can grow while cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from limpet.base.addresses import Prefix
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """How full one segment of this node is."""

    prefix: Prefix
    size: int
    """Addresses that pods can have."""
    live: int
    resting: int
    """Released a moment ago."""
    bound: int = 0
    """Kept for absent pods. They are given up in need, so they count as free."""

    @property
    def taken(self) -> int:
        return self.live + self.resting


def wanted_versions(grant: Grant, network: Network, uses: Sequence[SegmentUse]) -> tuple[int, ...]:
    """IP versions of which the node needs one more segment, in order.

    It has one of each version of the pods' before the first pod comes, and a spare one that
    nothing was taken of as soon as more than half of the others is taken, up to the network's
    quota. A granted segment that `uses` does not speak of is untouched.
    """
    versions = sorted({cidr.version for cidr in network.pod_cidrs})
    return tuple(version for version in versions if _is_wanted(version, grant, network, uses))


def _is_wanted(version: int, grant: Grant, network: Network, uses: Sequence[SegmentUse]) -> bool:
    granted = {segment for segment in grant.segments if segment.version == version}
    if not granted:
        return network.segment_quota > 0
    in_use = [use for use in uses if use.prefix in granted and use.taken]
    if len(in_use) < len(granted) or len(granted) >= network.segment_quota:
        return False
    return 2 * sum(use.taken for use in in_use) > sum(use.size for use in in_use)
