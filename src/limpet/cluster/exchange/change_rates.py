"""How often what one node says of itself may change, by whomever it is told: each change costs all
others a check, a write to the disk and a plan. Pure."""

from __future__ import annotations

from limpet.base.bounds import neighbours as bounds
from limpet.base.rate_limit import TokenBuckets
from limpet.cluster.documents import Key, Kinds


class ChangeRates:
    """For each node. What the cluster has signed counts at any time: a node that floods could not
    be removed else."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._buckets = TokenBuckets(
            bounds.CHANGES_PER_MINUTE.most / 60,
            bounds.CHANGES_AT_ONCE.most,
            most=bounds.CHANGERS.most,
        )

    def has_room(self, key: Key, now_s: float) -> bool:
        """Whether a change of this document may be looked at."""
        sayer = self._sayer(key)
        return sayer is None or self._buckets.has_room(sayer, now_s)

    def note(self, key: Key, now_s: float) -> None:
        """It has changed."""
        if (sayer := self._sayer(key)) is not None:
            self._buckets.take(sayer, now_s)

    def _sayer(self, key: Key) -> Key | None:
        """Key of the document that it stands under, its node's; None: the cluster has signed it."""
        return self._kinds[key[0]].parent(key[1])
