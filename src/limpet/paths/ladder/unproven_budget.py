"""How much is sent to where nobody has answered. Pure, time passed in.

Members say themselves where they and their tunnels are reached, and may have others try there at
once to get through NATs: one that names a stranger must not have the whole cluster flood it. An
address where a member has answered is no stranger's, behind one NAT there may be a thousand nodes;
yet who has not answered there itself does not get more than its own share of it.
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
_MOST_ANSWERED = 4 * _MOST


class UnprovenBudget:
    """Of one node."""

    def __init__(self) -> None:
        self._addresses = TokenBuckets(ADDRESS_PER_S, ADDRESS_BURST, most=_MOST)
        self._peers = TokenBuckets(PEER_PER_S, PEER_BURST, most=_MOST)
        self._answered_s: OrderedDict[Address | tuple[str, Address], float] = OrderedDict()
        """By the address, and by that with the uid of who has answered."""

    def answered(self, uid: str, address: Address, now_s: float) -> None:
        """A member has proven that it is reached there."""
        for key in (address, (uid, address)):
            self._answered_s[key] = now_s
            self._answered_s.move_to_end(key)
        while len(self._answered_s) > _MOST_ANSWERED:
            self._answered_s.popitem(last=False)

    def may_ask(self, uid: str, address: Address, now_s: float) -> bool:
        """Whether the peer may be looked for there now; if so, it counts as done."""
        if self.has_answered((uid, address), now_s):
            return True
        if not self._peers.has_room(uid, now_s):
            return False
        # A member that is there need not be this one: who names it, has its own share, no other's.
        known = self.has_answered(address, now_s) or self._addresses.take(address, now_s)
        return known and self._peers.take(uid, now_s)

    def has_answered(self, key: Address | tuple[str, Address], now_s: float) -> bool:
        """Whether any member has lately, or with a uid that one."""
        return self._answered_s.get(key, -math.inf) + _ANSWERED_S > now_s
