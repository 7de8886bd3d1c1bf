"""Chains that elements of the table lead to. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_MOST_UNUSED = 64
"""Chains that are kept although nothing leads there: the same may be needed again."""


class Chains:
    """Each is there as long as it is used, and for a while after."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        """By name."""
        self._uses: Counter[str] = Counter()
        """Elements that lead there."""

    def used(self, names: Iterable[str]) -> None:
        """By so many more elements."""
        self._uses.update(names)

    def left(self, names: Iterable[str]) -> None:
        """By so many elements less."""
        self._uses.subtract(names)

    def forget(self) -> None:
        """Those that nothing leads to, when they are most of all."""
        unused = [name for name in self.texts if self._uses[name] <= 0]
        if len(unused) > max(_MOST_UNUSED, len(self.texts) // 2):
            for name in unused:
                del self.texts[name]
        self._uses = +self._uses
