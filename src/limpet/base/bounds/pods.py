"""What is taken of those who create pods."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

ALLOWED_ADDRESSES = Bound(
    "what a pod asks to send from beside its own addresses", 64, "prefixes", Above.REFUSED
)
ALLOWED_MACS = Bound("what a pod asks to send from beside its own MAC", 16, "MACs", Above.REFUSED)
PROBER_ANSWER = Bound(
    "what a pod of `limpet connectivity` tells, unpacked", 1 << 20, "bytes", Above.REFUSED
)
