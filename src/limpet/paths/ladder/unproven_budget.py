"""How much is sent to where nobody has answered. Pure, time passed in.

Members say themselves where their tunnels are reached, and may have others try there at once to get
through NATs: one that names a stranger must not have the whole cluster flood it. An address where a
member has answered is no stranger's: behind one NAT there may be a thousand nodes.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from limpet.base.addresses import Address
from limpet.base.rate_limit import TokenBuckets

ADDRESS_PER_S, ADDRESS_BURST = 2.0, 20
"""Probes to one address, whichever peers name it: about as many as a member sends that goes on
asking for them, and at first what six endpoints behind one NAT take."""
PEER_PER_S, PEER_BURST = 4.0, 48
"""Probes to all that one peer names; at first twelve endpoints can be tried several times."""
_ANSWERED_S = 3600.0
"""After which an address may have become another's."""
_MOST = 4096
"""Addresses, and peers, that are kept in mind."""


class UnprovenBudget:
    """Of one node."""

    def __init__(self) -> None:
        self._addresses = TokenBuckets(ADDRESS_PER_S, ADDRESS_BURST, most=_MOST)
        self._peers = TokenBuckets(PEER_PER_S, PEER_BURST, most=_MOST)
        self._answered_s: OrderedDict[Address, float] = OrderedDict()

    def answered(self, address: Address, now_s: float) -> None:
        """A member has proven that it is reached there."""
        self._answered_s[address] = now_s
        self._answered_s.move_to_end(address)
        if len(self._answered_s) > _MOST:
            self._answered_s.popitem(last=False)

    def may_ask(self, uid: str, address: Address, now_s: float) -> bool:
        """Whether the peer may be looked for there now; if so, it counts as done."""
        if self._answered_s.get(address, -math.inf) + _ANSWERED_S > now_s:
            return True
        if not self._peers.has_room(uid, now_s):
            return False
        return self._addresses.take(address, now_s) and self._peers.take(uid, now_s)
