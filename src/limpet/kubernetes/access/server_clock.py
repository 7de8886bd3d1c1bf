"""Whether this machine's clock is right, by the `Date` of the API server's answers. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WRONG_S = 300.0
"""Beyond that a clock is wrong; an answer under way is not the reason."""


def read_date_s(text: str) -> float | None:
    """Seconds since 1970 of "Sun, 06 Nov 1994 08:49:37 GMT"; None: it is no such date.

    Source: RFC 9110, section 5.6.7; `email.utils` reads it too, and takes a megabyte.
    """
    try:
        _, day, month, year, clock, zone = text.split()
        hour, minute, second = map(int, clock.split(":"))
        number = _MONTHS.index(month) + 1
        found = datetime(int(year), number, int(day), hour, minute, second, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return found.timestamp() if zone == "GMT" else None


class ServerClock:
    """Goes on by the monotonic clock, so that a clock that is set right is right at once."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        """What time it was there when the monotonic clock began; None: it has not told."""

    def tell(self, date: str, monotonic_s: float) -> None:
        """An answer has come with this header; empty: without."""
        date_s = read_date_s(date)
        if date_s is not None:
            self._began_s = date_s - monotonic_s

    def ahead_s(self, wall_s: float, monotonic_s: float) -> float:
        """How far this machine's clock is ahead of the server's; negative: behind. 0: it is right,
        or nothing is known."""
        if self._began_s is None:
            return 0.0
        ahead_s = wall_s - (self._began_s + monotonic_s)
        return ahead_s if abs(ahead_s) > WRONG_S else 0.0
