"""What is taken of those who are asked: controllers, API servers, name servers, gateways.

They may be somebody else, too: a gateway proves nothing, and a name server is answered for by
whoever guesses well.
"""

from __future__ import annotations

from limpet.base.bounds.bound import Above, Bound

# The gateway, and machines that are asked for a sign of life.

GATEWAY_DATAGRAMS = Bound(
    "datagrams that are looked at for a gateway's answer to one question",
    128,
    "datagrams",
    Above.DROPPED,
)
"""Everybody on the link may answer a search, and write the gateway's address on it."""
ECHOES = Bound(
    "packets of a machine that are looked at for its answer to one ping",
    256,
    "packets",
    Above.DROPPED,
)
