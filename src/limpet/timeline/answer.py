"""Selects the entries of a timeline that are asked for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from limpet.base.bounds.administrators import EVENTS_ASKED
from limpet.base.decoding import convert
from limpet.base.errors import LimpetError
from limpet.picture.timeline import Entry, Timeline
from limpet.timeline.log import Recorded, entries_of

MOST_ENTRIES = EVENTS_ASKED.most
_LONGEST_WAIT_S = 50.0
"""Below what whoever asks waits for any answer."""


class TimelineQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """What a person wants to see. Raises ValueError where it makes no sense."""

    before: int | None = None
    after: int | None = None
    """Sequences, neither included."""
    since_s: float | None = None
    """Seconds since 1970."""
    about: tuple[str, ...] = ()
    """Names or uids of nodes: entries that have to do with all of them."""
    limit: int = 200
    wait_s: float = 0.0
    """With `after`: how long a newer one that is meant is waited for."""

    def __post_init__(self) -> None:
        if not 0 < self.limit <= MOST_ENTRIES:
            raise ValueError(f"limit {self.limit}: from 1 to {MOST_ENTRIES}")
        if not 0 <= self.wait_s <= _LONGEST_WAIT_S:
            raise ValueError(f"wait_s {self.wait_s}: from 0 to {_LONGEST_WAIT_S:g}")

    def is_after(self, first: int) -> bool:
        """Whether nothing below the sequence `first` can be meant."""
        return self.after is not None and self.after >= first - 1


def asked_of(arguments: Mapping[str, Any]) -> TimelineQuery:
    """As a verb of a socket has it, where `node` stands for `about`. Raises: LimpetError."""
    given = {key: value for key, value in arguments.items() if value is not None}
    node = given.pop("node", "")
    about = given.pop("about", ()) or ((node,) if node else ())
    try:
        return convert({**given, "about": about}, TimelineQuery)
    except msgspec.ValidationError as error:
        raise LimpetError(f"events: {error}") from error


def answer(recorded: Sequence[Recorded], asked: TimelineQuery) -> Timeline:
    """The newest first. `recorded`: all there is, in order."""
    entries = entries_of(recorded)
    meant = [each for each in entries if _is_meant(each, asked)]
    if asked.after is not None and asked.before is None:
        shown = meant[: asked.limit]  # whoever follows misses none
    else:
        shown = meant[-asked.limit :]
    return Timeline(
        entries=tuple(reversed(shown)),
        more=len(meant) > len(shown),
        from_at_s=min((each.at_s for each in entries), default=None),
    )


def _is_meant(entry: Entry, asked: TimelineQuery) -> bool:
    if asked.after is not None and entry.sequence <= asked.after:
        return False
    if asked.before is not None and entry.sequence >= asked.before:
        return False
    if asked.since_s is not None and entry.at_s < asked.since_s:
        return False
    return all(each in (entry.node, entry.peer, *entry.names) for each in asked.about)
