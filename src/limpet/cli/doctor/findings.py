"""What an examination found, for a person and for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from limpet.base.errors import LimpetError
from limpet.cli.doctor.catalogue import KINDS, Harm


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
    id: str
    """Id in the catalogue; empty: nothing is wrong."""
    what: str
    why: str = ""
    advice: str = ""

    @property
    def harm(self) -> Harm:
        return KINDS[self.id].harm if self.id else Harm.NONE

    @property
    def topic(self) -> str:
        """For `limpet help`; empty: nothing is wrong."""
        return KINDS[self.id].topic if self.id else ""

    def lines(self) -> list[str]:
        """As text; nothing is wrapped, so that paths and commands can be copied."""
        lines = [f"{self.level.value:<6} {self.what}"]
        if self.why:
            lines.append(f"       why: {self.why}")
        if self.advice:
            lines.append(f"       do:  {self.advice}")
        if self.id:
            lines.append(f"       see: limpet help {self.id}")
        return lines


def ok(what: str) -> Finding:
    return Finding(Level.OK, "", what)


def warn(id: str, what: str, why: str, advice: str) -> Finding:
    return Finding(Level.WARN, id, what, why, advice)


def error(id: str, what: str, why: str, advice: str) -> Finding:
    return Finding(Level.ERROR, id, what, why, advice)


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
                    "not-looked-at",
                    str(problem),
                    "what it keeps from being looked at may be wrong too",
                    "do what the message says, and look again",
                )
            )
    return findings


def by_harm(findings: Iterable[Finding]) -> list[Finding]:
    """The worst harm first, and of one harm errors before warnings; what is in order comes last.

    A harm that only warnings are about comes after all that something does not work for.
    """
    found = list(dict.fromkeys(findings))
    broken = {each.harm for each in errors(found)}
    harms, levels = list(Harm), [Level.ERROR, Level.WARN, Level.OK]
    return sorted(
        found,
        key=lambda each: (
            each.level is Level.OK,
            each.harm not in broken,
            harms.index(each.harm),
            levels.index(each.level),
        ),
    )


def grouped(findings: Iterable[Finding]) -> Iterator[str]:
    """Lines for a person, under a heading for each harm. `findings`: as `by_harm` orders them."""
    heading: Harm | None = None
    for each in findings:
        if each.harm is not heading:
            if heading is not None:
                yield ""
            heading = each.harm
            yield f"{heading.value}:"
        yield from each.lines()
