"""How much is kept of what many owners give, each of them and all together. Pure."""

from __future__ import annotations

from limpet.base.bounds.bound import Bound


class Room:
    """Counts; what has no room is for its caller to refuse."""

    def __init__(self, in_all: Bound, of_one: Bound | None = None) -> None:
        """`of_one`: None: one owner may fill all of it."""
        self._in_all = in_all
        self._of_one = of_one
        self._used = 0
        self._by_owner: dict[str, int] = {}

    def refusal(self, owner: str, change: int) -> str:
        """Why `owner` cannot have so much more, in words; empty: it can. Less is always taken."""
        if change <= 0:
            return ""
        if self._of_one is not None:
            most = self._of_one.most
            if self._by_owner.get(owner, 0) + change > most:
                return f"namespace {owner} has more than {most:,} {self._of_one.unit}"
        if self._used + change > self._in_all.most:
            return f"the cluster has more than {self._in_all.most:,} {self._in_all.unit}"
        return ""

    def change(self, owner: str, change: int) -> None:
        self._used += change
        left = self._by_owner.get(owner, 0) + change
        if left:
            self._by_owner[owner] = left
        else:
            self._by_owner.pop(owner, None)
