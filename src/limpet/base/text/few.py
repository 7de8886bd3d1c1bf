"""A list that a person reads to its end, however long it is. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def few(words: Iterable[str], most: int, joint: str = ", ", last: str = " and ") -> str:
    """`one, two and 3 more`; all of them where they are no more than `most`."""
    found = list(words)
    shown = joint.join(found[:most])
    return f"{shown}{last}{len(found) - most} more" if len(found) > most else shown
