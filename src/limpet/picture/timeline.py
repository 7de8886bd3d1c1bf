"""What changed, and when."""

from __future__ import annotations

from enum import Enum

from limpet.picture.said import AtS, Level, Shown


class Clock(Enum):
    """How far the time of an entry can be trusted."""

    KEPT = "kept"
    """A time server kept the machine's clock."""
    MENDED = "mended"
    """None did yet; what the clock said later in the same boot has put the time right."""
    FREE = "free"
    """None did: it may be right, or not."""
    BEHIND = "behind"
    """It is wrong: it was before the time of the entry before."""


class Happening(Shown, frozen=True, kw_only=True):
    """Something that has happened."""

    kind: str
    """One word in kebab-case: path, node, segment, relay, policy, membership, agent, …"""
    words: str
    level: Level = Level.NOTE
    node: str = ""
    """Uid."""
    peer: str = ""
    """Uid of the other node of a pair."""
    names: tuple[str, ...] = ()
    """Names of node and peer when it happened; of more peers where many did the same at once."""
    was: str = ""
    became: str = ""
    """Such as rungs."""
    who: str = ""
    """A person, where one did it."""


class Entry(Happening, frozen=True, kw_only=True):
    """A happening as it is kept, and as `limpet events` lists it."""

    sequence: int
    """Rises; a store that lost some leaves gaps. Where a clock was wrong it tells the order."""
    at_s: AtS
    clock: Clock = Clock.KEPT


class Timeline(Shown, frozen=True, kw_only=True):
    """Entries, the newest first; `more`: older ones are on the disk."""

    entries: tuple[Entry, ...] = ()
    more: bool = False
    from_at_s: AtS | None = None
    """The oldest that is kept."""
