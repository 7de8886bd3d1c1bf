"""Numbers and times as a person reads them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from limpet.cluster.topology.sites import By
from limpet.cluster.topology.transports import by_preference

_SPANS_S = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_IN_FULL = {"route": "plain route", "vxlan": "VXLAN", "tunnel": "encrypted tunnel"}
"""A page has more room than a line of `limpet status`; other rungs go by their row's words."""

_SITE_BY = {
    By.LABEL.value: "by label",
    By.PROVEN.value: "proven: its nodes reach each other without a tunnel",
    By.NAT.value: "a guess: one public address is in front of its nodes, as of many mobile ones",
}


def site_by(by: str) -> str:
    """How it is known that the nodes of a site stand together; of a later version: its own word."""
    return _SITE_BY.get(by, by)


def rung_words() -> dict[str, str]:
    """What a person reads, by the name of the rung, the best first."""
    return {row.name: _IN_FULL.get(row.name, row.words) for row in by_preference()}


def span(seconds: float | None) -> str:
    """`3 min`; None: a dash."""
    if seconds is None:
        return "–"
    for length_s, unit in _SPANS_S:
        if seconds >= length_s:
            return f"{int(seconds // length_s)} {unit}"
    return "now"


def ago(at_s: float | None, as_of_s: float) -> str:
    """`3 min ago`, by the clock that both are of."""
    if at_s is None:
        return "never"
    words = span(max(0.0, as_of_s - at_s))
    return words if words == "now" else f"{words} ago"


def moment(at_s: float | None) -> str:
    """For a `datetime` attribute; UTC."""
    if at_s is None:
        return ""
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a clock that is far out
        return ""


def milliseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"


def percent(value: float | None) -> str:
    """A share as text, in percent."""
    if value is None:
        return "–"
    return "0 %" if value == 0 else f"{max(1, round(value * 100))} %"


def size(count: float | None) -> str:
    """A count of bytes as text."""
    if count is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 node`, `2 nodes`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
