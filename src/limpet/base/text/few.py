"""A list that a person reads to its end, however long it is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def few(
    items: Iterable[T],
    most: int,
    joint: str = ", ",
    last: str = " and ",
    *,
    say: Callable[[T], str] = str,
) -> str:
    """`one, two and 3 more`; all of them where they are no more than `most`. `say`: the words of
    one that is shown."""
    found = list(items)
    shown = joint.join(map(say, found[:most]))
    return f"{shown}{last}{len(found) - most} more" if len(found) > most else shown
