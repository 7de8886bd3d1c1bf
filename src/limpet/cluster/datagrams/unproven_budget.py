"""How much is sent to where nobody has answered. Pure, time passed in.

Members say themselves where they and their tunnels are reached, and may have others try there at
once to get through NATs: one that names a stranger must not have the whole cluster flood it. An
address where a member has answered is no stranger's, behind one NAT there may be a thousand nodes;
yet who has not answered there itself does not get more than its own share of it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable

from limpet.base.addresses import Address
from limpet.base.bounds import neighbours as bounds
from limpet.base.rate_limit import Rate, TokenBuckets

ADDRESS_PER_S = float(bounds.UNPROVEN_ADDRESS_PER_S.most)
ADDRESS_BURST = bounds.UNPROVEN_ADDRESS.most
"""Probes to one address, whichever peers name it: about as many as a member sends that goes on
asking for them, and at first what six endpoints behind one NAT take."""
ADDRESS_LONG_PER_S = bounds.UNPROVEN_ADDRESS_PER_MINUTE.most / 60
ADDRESS_LONG_BURST = bounds.UNPROVEN_ADDRESS_LONG.most
"""The same where nobody answers for minutes. Each node has its own budget: of 5,000 nodes that are
told of one host it hears 170 probes a second for long, some 0.3 Mbit/s."""
PEER_PER_S, PEER_BURST = float(bounds.UNPROVEN_PEER_PER_S.most), bounds.UNPROVEN_PEER.most
"""Probes to all that one peer names; at first twelve endpoints can be tried several times."""
PEER_LONG_PER_S = bounds.UNPROVEN_PEER_PER_MINUTE.most / 60
PEER_LONG_BURST = bounds.UNPROVEN_PEER_LONG.most
"""The same for long: twelve endpoints once a minute, as often as a ladder asks for them."""
_ANSWERED_S = 3600.0
"""Seconds after which an address may have become another's."""
_MOST = bounds.UNPROVEN_KEPT.most


class UnprovenBudget:
    """One node's budget for all that it asks of peers and relays by datagrams."""

    def __init__(self) -> None:
        self._addresses = _Buckets(
            (ADDRESS_PER_S, ADDRESS_BURST), (ADDRESS_LONG_PER_S, ADDRESS_LONG_BURST)
        )
        self._peers = _Buckets((PEER_PER_S, PEER_BURST), (PEER_LONG_PER_S, PEER_LONG_BURST))
        self._credits: OrderedDict[tuple[str, Address], int] = OrderedDict()
        """Questions for what was heard, by peer and where."""
        self._answered_s: OrderedDict[Address | tuple[str, Address], float] = OrderedDict()
        """By the address, and by that with the uid of who has answered."""

    def answered(self, uid: str, address: Address, now_s: float) -> None:
        """A member has proven that it is reached there."""
        for key in (address, (uid, address)):
            self._answered_s[key] = now_s
            self._answered_s.move_to_end(key)
        while len(self._answered_s) > bounds.PROVEN_KEPT.most:
            self._answered_s.popitem(last=False)

    def heard(self, uid: str, address: Address) -> None:
        """The peer has asked from there. Its address may be forged, so nothing is proven: for each
        question it may be asked once, which is no more than comes."""
        key = uid, address
        self._credits[key] = min(self._credits.get(key, 0) + 1, bounds.UNPROVEN_ANSWERS.most)
        self._credits.move_to_end(key)
        if len(self._credits) > _MOST:
            self._credits.popitem(last=False)

    def may_ask(self, uid: str, address: Address, now_s: float) -> bool:
        """Whether the peer may be looked for there now; if so, it counts as done."""
        if self.has_answered((uid, address), now_s) or self._has_credit((uid, address)):
            return True
        if not self._peers.has_room(uid, now_s):
            return False
        # A member that is there need not be this one: who names it, has its own share, no other's.
        known = self.has_answered(address, now_s) or self._addresses.take(address, now_s)
        return known and self._peers.take(uid, now_s)

    def _has_credit(self, key: tuple[str, Address]) -> bool:
        """It is taken."""
        left = self._credits.pop(key, 0)
        if left > 1:
            self._credits[key] = left - 1
        return left > 0

    def has_answered(self, key: Address | tuple[str, Address], now_s: float) -> bool:
        """Whether any member has lately, or with a uid that one."""
        return self._answered_s.get(key, -math.inf) + _ANSWERED_S > now_s


class _Buckets:
    """Two buckets for each key, for some seconds and for minutes: what is in both may be done."""

    def __init__(self, *rates: Rate) -> None:
        self._stages = [TokenBuckets(*rate, most=_MOST) for rate in rates]

    def has_room(self, key: Hashable, now_s: float) -> bool:
        return all(each.has_room(key, now_s) for each in self._stages)

    def take(self, key: Hashable, now_s: float) -> bool:
        return self.has_room(key, now_s) and all(each.take(key, now_s) for each in self._stages)
