"""One row of the table of bounds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Above(Enum):
    """What becomes of what is over the bound."""

    REFUSED = "refused, and the sender is told"
    DROPPED = "dropped, and counted"
    CUT = "cut to the bound"
    OLDEST_OUT = "the oldest makes room"
    CLOSED = "the connection is closed"
    WAITS = "waits for its turn"
    NOT_KEPT = "taken, and not kept"


@dataclass(frozen=True, slots=True)
class Bound:
    """`most` of `unit` are taken of `what`."""

    what: str
    most: int
    unit: str
    above: Above
