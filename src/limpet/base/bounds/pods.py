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
DNS_ALIASES = Bound(
    "Services that lead to each other by name, one after the other", 8, "Services", Above.REFUSED
)

# By a container runtime, which hands on what the pod's creator and the network's file say.

CNI_REQUEST = Bound("a request of a container runtime", 4 << 20, "bytes", Above.CLOSED)
CNI_STDIN = Bound("... the network's configuration in it", 1 << 20, "bytes", Above.CLOSED)
CNI_NAME = Bound("... the name of the network", 255, "characters", Above.REFUSED)
"""A file has it."""
CNI_SHOWN = Bound("a value of it in words about what is wrong", 160, "characters", Above.CUT)
RESOLV_CONF = Bound("the resolv.conf that it names", 64 << 10, "bytes", Above.CUT)
