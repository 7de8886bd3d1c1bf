"""What install says."""

from __future__ import annotations

from dataclasses import dataclass, field

from limpet.cli.doctor.findings import Finding


@dataclass(slots=True)
class InstallReport:
    """What install says, line by line, and whether all is in place."""

    findings: list[Finding] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def complete(self) -> bool:
        return not self.failure
