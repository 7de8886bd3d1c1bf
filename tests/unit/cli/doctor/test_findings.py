"""How findings are gathered."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.base.errors import LimpetError
from limpet.cli.doctor.findings import Finding, Level, gather, ok


def test_what_cannot_be_looked_at_is_a_finding_and_ends_nothing() -> None:
    def breaks_off() -> Iterator[Finding]:
        yield ok("seen before")
        raise LimpetError("read links: EPERM")

    found = gather(breaks_off, lambda: [ok("seen after")])

    assert [finding.what for finding in found] == ["seen before", "read links: EPERM", "seen after"]
    assert found[1].level is Level.ERROR
    assert found[1].why
    assert found[1].advice
