"""What a node takes from other members of its cluster, and the controller from its nodes."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

ABSENT_ADDRESSES = Bound(
    "addresses of pods that are gone, of one node", 256, "addresses", Above.REFUSED
)
TOLD_PODS = Bound("pods of one document about a node's pods", 64, "pods", Above.REFUSED)
