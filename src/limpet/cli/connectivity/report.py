"""What came of a test, for a person and for a program. Pure."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Any

from msgspec import Struct

from limpet.cli.connectivity.tasks import ConnectivityTarget, TargetKind, TargetOutcome
from limpet.cli.output import counted

ALL_ROWS = 60
"""Most rows of a table: with more only those that failed are listed."""


class Result(Struct, frozen=True, kw_only=True):
    """One target, tried from one node."""

    source: str
    kind: TargetKind
    target: str
    address: str
    """Or a name, of a Service that is asked for by it."""
    family: int
    """4 or 6; 0 of a name."""
    rung: str
    rtt_ms: float | None
    packet_bytes: int | None
    tcp_ms: float | None
    error: str


class ConnectivityReport(Struct, frozen=True, kw_only=True):
    nodes: list[str]
    left_out: dict[str, str]
    """Nodes that were not tried, and why."""
    broken: dict[str, str]
    """Nodes on which the test itself did not come about, and why."""
    results: list[Result]

    @property
    def failed(self) -> list[Result]:
        return [each for each in self.results if each.error]

    @property
    def worked(self) -> bool:
        return bool(self.results) and not self.failed and not self.broken


def result(source: str, target: ConnectivityTarget, outcome: TargetOutcome) -> Result:
    return Result(
        source=source,
        kind=target.kind,
        target=target.name,
        address=target.address,
        family=_family(target.address),
        rung=outcome.rung,
        rtt_ms=outcome.rtt_ms,
        packet_bytes=outcome.packet_bytes,
        tcp_ms=outcome.tcp_ms,
        error=outcome.error,
    )


def _family(address: str) -> int:
    with contextlib.suppress(ValueError):
        return ip_address(address).version
    return 0


def rows(report: ConnectivityReport) -> list[dict[str, Any]]:
    """Those that a person is shown, what failed last."""
    shown = report.results if len(report.results) <= ALL_ROWS else report.failed
    return [_row(each) for each in sorted(shown, key=lambda each: bool(each.error))]


def _row(each: Result) -> dict[str, Any]:
    return {
        "from": each.source,
        "to": f"{each.kind} {each.target}",
        "address": each.address,
        "rung": each.rung,
        "rtt": "" if each.rtt_ms is None else f"{each.rtt_ms:.1f} ms",
        "packet": "" if each.packet_bytes is None else f"{each.packet_bytes} B",
        "tcp": "" if each.tcp_ms is None else f"{each.tcp_ms:.1f} ms",
        "result": each.error or "ok",
    }


def summary(report: ConnectivityReport) -> Iterator[str]:
    """Lines."""
    pods = [each for each in report.results if each.kind is TargetKind.POD and not each.error]
    rungs = Counter(each.rung or "not known" for each in pods)
    if rungs:
        yield "pods reach pods by: " + ", ".join(f"{name} {n}" for name, n in rungs.most_common())
    tried, failed = len(report.results), len(report.failed)
    words = f"{counted(len(report.nodes), 'node')}, {counted(tried, 'way')} tried"
    yield f"{words}: all work" if report.worked else f"{words}, {failed} of them failed"


def complaints(report: ConnectivityReport) -> Iterator[str]:
    """Lines about what was not tried."""
    for nodes, what in ((report.left_out, "left out"), (report.broken, "not tried")):
        for name, why in sorted(nodes.items()):
            yield f"{name}: {what}: {why}"


def sources(names: Sequence[str]) -> str:
    """For a line: all names, or how many."""
    return ", ".join(names) if len(names) <= 8 else f"{len(names)} nodes"
