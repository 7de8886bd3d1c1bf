"""The root of all that a picture is made of."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

AtS = float
"""Seconds since 1970, by the clock of whoever tells it."""


class Shown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that a picture shows."""


class Level(Enum):
    """How bad something is."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


class Finding(Shown, frozen=True, kw_only=True):
    """What is wrong, as `limpet doctor` or the controller found."""

    level: Level
    what: str
    why: str = ""
    mend: str = ""
    topic: str = ""
    """Topic of the documents on the node: `limpet help TOPIC`."""
    node: str = ""
    """Uid of the node that it is about; empty: of the cluster, or of who looks."""
