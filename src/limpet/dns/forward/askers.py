"""Who waits for one answer. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

from limpet.base.bounds.strangers import DNS_ASKERS

W = TypeVar("W")


class Askers(Generic[W]):
    """One client's many questions for a name keep no other's out."""

    def __init__(self) -> None:
        self._of: dict[str, list[W]] = {}
        """By address."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, who: str, waiter: W) -> W | None:
        """Who is not waited with: of too many the last one of the address that has most."""
        if self._count >= DNS_ASKERS.most:
            most = max(self._of, key=lambda each: len(self._of[each]))
            if len(self._of[most]) <= len(self._of.get(who, ())) + 1:
                return waiter
            refused = self._of[most].pop()
            self._of.setdefault(who, []).append(waiter)
            return refused
        self._of.setdefault(who, []).append(waiter)
        self._count += 1
        return None

    def take_all(self) -> list[W]:
        """They wait no longer."""
        found = [waiter for each in self._of.values() for waiter in each]
        self._of.clear()
        self._count = 0
        return found
