"""What an examination found, for a person and for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from limpet.base.errors import LimpetError
from limpet.cli.output import Output, show


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


def gather(*pieces: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What all pieces find, in order; one that cannot look is a finding and ends no other."""
    findings: list[Finding] = []
    for piece in pieces:
        try:
            findings.extend(piece())
        except LimpetError as problem:
            findings.append(
                error(
                    str(problem),
                    "what it keeps from being looked at may be wrong too",
                    "do what the message says, and look again",
                )
            )
    return findings


def put_findings(findings: Iterable[Finding], output: Output = Output.TABLE) -> None:
    """On stdout, for a person or for a program."""
    found = list(findings)
    show({"findings": found}, output, *(line for each in found for line in each.lines()))
