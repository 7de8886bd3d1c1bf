"""What is taken of documents, whoever has signed them: a key of the cluster may be stolen."""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

MAX_VERSION = Bound(
    "version of a document (generation, revision, sequence)",
    (1 << 47) - 1,
    "(2^47 - 1)",
    Above.REFUSED,
)
"""Neighbours compare it in 64 bits, with the number of the key that signed."""
MAX_ERA = Bound("times that a cluster may have rotated its key", 127, "times", Above.REFUSED)
"""All keys stand in the network, which neighbours tell in one datagram."""
KEY_ALARMS = Bound(
    "tellers of what a revoked key of the cluster signed, remembered",
    64,
    "tellers",
    Above.OLDEST_OUT,
)
MAX_SHOWN_VERSION = Bound(
    "version or revision of what nodes show a restored controller", 1 << 46, "(2^46)", Above.REFUSED
)
"""It goes on above what it is shown: there has to be room."""
FORGED_BURIED = Bound(
    "nodes that only a thief has granted, withdrawn for ever", 4096, "nodes", Above.DROPPED
)
DOCUMENT_BODY = Bound(
    "a document that is neither a presence nor about pods", 64 << 10, "bytes", Above.REFUSED
)
