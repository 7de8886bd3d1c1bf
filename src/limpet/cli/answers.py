"""What commands answer that neither an agent nor a controller says; JSON output has these keys."""

from __future__ import annotations

from msgspec import Struct, field

from limpet.cli.doctor.findings import Finding


class Answered(Struct, frozen=True, kw_only=True):
    """Something that a command answers by itself."""


class Installed(Answered, frozen=True, kw_only=True):
    """`limpet install`, `limpet controller install`."""

    findings: list[Finding] = field(default_factory=list)
    steps: list[str]
    """What was done; with --dry-run what would be."""
    failure: str = ""
    """Why it is not whole; empty: it is."""


class Uninstalled(Answered, frozen=True, kw_only=True):
    """`limpet uninstall`, `limpet controller uninstall`."""

    steps: list[str]
    failures: list[str]


class BackedUp(Answered, frozen=True, kw_only=True):
    """`limpet controller backup`."""

    file: str


class Restored(Answered, frozen=True, kw_only=True):
    """`limpet controller restore`."""

    database: str
    former: str | None
    """Where the database is that was there before."""


class Befallen(Answered, frozen=True, kw_only=True):
    """`limpet lab fault`."""

    world: str
    fault: str
    target: str
    restored: bool
    told: list[str]
    """What has become of it, in words."""


class TakenDown(Answered, frozen=True, kw_only=True):
    """`limpet lab down`."""

    world: str
    was_there: bool
