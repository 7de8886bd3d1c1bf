"""What changed, and when."""

from __future__ import annotations

from limpet.picture.said import AtS, Level, Shown


class Entry(Shown, frozen=True, kw_only=True):
    """Something that happened, as `limpet events` lists it."""

    sequence: int
    """Rises; a store that lost some leaves gaps."""
    at_s: AtS
    kind: str
    """One word in kebab-case: path, node, segment, relay, policy, membership, agent, …"""
    words: str
    level: Level = Level.NOTE
    node: str = ""
    """Uid."""
    peer: str = ""
    """Uid of the other node of a pair."""
    was: str = ""
    became: str = ""
    """Such as rungs."""
    who: str = ""
    """A person, where one did it."""


class Timeline(Shown, frozen=True, kw_only=True):
    """Entries, the newest first; `more`: older ones are on the disk."""

    entries: tuple[Entry, ...] = ()
    more: bool = False
    from_at_s: AtS | None = None
    """The oldest that is kept."""
