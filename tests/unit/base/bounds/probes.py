"""How a row of the table of bounds is probed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from limpet.base.bounds.bound import Bound

Takes = Callable[[int], bool]
"""Whether all of that much was taken."""


@dataclass(frozen=True, slots=True)
class Probe:
    takes: Takes
    above: int
    """The least amount over the bound that can be sent."""


PROBES: dict[int, list[Probe]] = {}
"""By the identity of the row: two rows may be equal. A row that the product goes by in several
places has a probe for each that the others do not go by."""


def probe(bound: Bound, *, above: int | None = None) -> Callable[[Takes], Takes]:
    """The function sends so much to what has the bound, and says whether all of it was taken."""

    def note(takes: Takes) -> Takes:
        made = Probe(takes, bound.most + 1 if above is None else above)
        PROBES.setdefault(id(bound), []).append(made)
        return takes

    return note


class _Counted(Protocol):
    def take(self, key: int, now_s: float, /) -> object: ...


def is_remembered(amount: int, rates: _Counted) -> bool:
    """Whether the first is, of so many that are each counted by themselves: it has used up its
    share, and would have a new one."""
    for _ in range(1 << 12):
        rates.take(0, 0.0)
    for other in range(1, amount):
        rates.take(other, 0.0)
    return not rates.take(0, 0.0)
