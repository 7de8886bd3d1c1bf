"""One object for texts that come again: names in 50,000 endpoints would take 50,000 objects."""

from __future__ import annotations

import sys
from collections.abc import Callable

_MOST = 1 << 16
_NEVER_FREED = (3, 12, 0), (3, 12, 7)
"""Pythons from the first to before the second keep what is interned for ever.
Source: github.com/python/cpython/issues/113993."""


class SharedTexts:
    """Holds texts itself, until they are very many; equal ones may be two objects after that."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def share(self, text: str) -> str:
        if len(self._texts) >= _MOST:
            self._texts.clear()
        return self._texts.setdefault(text, text)


def sharing(python: tuple[int, ...]) -> Callable[[str], str]:
    """What that version shares texts by. `python`: as `sys.version_info` begins."""
    first, free = _NEVER_FREED
    return SharedTexts().share if first <= python < free else sys.intern


share = sharing(sys.version_info[:3])
"""The text itself, or one that is equal to it."""
