"""What an examination found, for a person and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Works, or will, but somebody should know."""
    ERROR = "error"
    """Does not work, or would take something away from somebody else."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report: what was found, why it matters, what to do."""

    level: Level
    what: str
    why: str = ""
    advice: str = ""

    def document(self) -> dict[str, str]:
        return {
            "level": self.level.value,
            "what": self.what,
            "why": self.why,
            "advice": self.advice,
        }

    def lines(self) -> list[str]:
        """As text; nothing is wrapped, so that paths and commands can be copied."""
        lines = [f"{self.level.value:<6} {self.what}"]
        if self.why:
            lines.append(f"       why: {self.why}")
        if self.advice:
            lines.append(f"       do:  {self.advice}")
        return lines


def ok(what: str) -> Finding:
    return Finding(Level.OK, what)


def warn(what: str, why: str, advice: str) -> Finding:
    return Finding(Level.WARN, what, why, advice)


def error(what: str, why: str, advice: str) -> Finding:
    return Finding(Level.ERROR, what, why, advice)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is Level.ERROR]
