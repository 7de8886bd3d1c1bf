"""How much is kept of what many owners give, each of them and all together. Pure."""

from __future__ import annotations

from limpet.base.bounds.bound import Bound

SMALL_PART = 256
"""What an owner has below this part of its own bound, it has whatever others take ..."""
RESERVED_PART = 4
"""... as long as all such fits into this part of the whole, which nobody else fills."""


class Room:
    """Counts; what has no room is for its caller to refuse.

    A few owners that fill all that they may would leave nothing to the others, so a part of the
    whole is reserved for what is small.
    """

    def __init__(self, in_all: Bound, of_one: Bound | None = None) -> None:
        """`of_one`: None: one owner may fill all of it."""
        self._in_all = in_all
        self._of_one = of_one
        self._used = 0
        self._large = 0
        """What owners have above that which is small."""
        self._by_owner: dict[str, int] = {}

    @property
    def used(self) -> int:
        """By all of them."""
        return self._used

    def refusal(self, owner: str, change: int) -> str:
        """Why `owner` cannot have so much more, in words; empty: it can. Less is always taken."""
        if change <= 0:
            return ""
        before = self._by_owner.get(owner, 0)
        in_all, of_one = self._in_all, self._of_one
        large = 0
        if of_one is not None:
            if before + change > of_one.most:
                return f"namespace {owner} has more than {of_one.most:,} {of_one.unit}"
            large = self._above_small(before + change) - self._above_small(before)
        most_large = in_all.most - in_all.most // RESERVED_PART
        if self._used + change > in_all.most or (large and self._large + large > most_large):
            return f"the cluster has more than {in_all.most:,} {in_all.unit}"
        return ""

    def change(self, owner: str, change: int) -> None:
        before = self._by_owner.get(owner, 0)
        left = before + change
        self._used += change
        self._large += self._above_small(left) - self._above_small(before)
        if left:
            self._by_owner[owner] = left
        else:
            self._by_owner.pop(owner, None)

    def _above_small(self, amount: int) -> int:
        return max(0, amount - self._of_one.most // SMALL_PART) if self._of_one is not None else 0
