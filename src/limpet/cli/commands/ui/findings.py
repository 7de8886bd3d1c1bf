"""What doctor finds on this machine, as the page shows it."""

from __future__ import annotations

from limpet.agent.settings import Settings
from limpet.cli.doctor.doctor import diagnose
from limpet.cli.doctor.findings import Level, by_harm
from limpet.picture import said

_LEVELS = {Level.OK: said.Level.OK, Level.WARN: said.Level.WARN, Level.ERROR: said.Level.FAIL}


def find(settings: Settings) -> tuple[said.Finding, ...]:
    """The worst harm first."""
    return tuple(
        said.Finding(
            level=_LEVELS[each.level],
            what=each.what,
            why=each.why,
            mend=each.advice,
            topic=each.id,
        )
        for each in by_harm(diagnose(settings, None, None))
    )
