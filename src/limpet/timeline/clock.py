"""When something happened, on machines whose clock may be wrong: moments <-> times. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from limpet.picture.timeline import Clock

_SAME_S = 2.0
"""Two readings of one clock may differ by so much: it is steered all the time."""
SET_S = 5.0
"""From then on the clock was set, by a person or by its first answer of a time server."""


class Moment(Struct, frozen=True, array_like=True):
    """One moment, by both clocks of the machine."""

    boot: str
    """Id of the kernel's boot; the second clock begins with it."""
    since_boot_s: float
    """CLOCK_BOOTTIME: never set, and counts while the machine is suspended."""
    wall_s: float
    """Seconds since 1970, as the machine believed at that moment."""
    clock: Clock = Clock.KEPT

    @property
    def began_s(self) -> float:
        """When the machine was booted, by its wall clock of this moment."""
        return self.wall_s - self.since_boot_s


def doubted(moment: Moment, newest_s: float) -> Moment:
    """The moment as it is recorded after one of `newest_s`: a clock that goes back is wrong."""
    if moment.wall_s >= newest_s - _SAME_S or moment.clock is Clock.KEPT:
        return moment
    return Moment(moment.boot, moment.since_boot_s, moment.wall_s, Clock.BEHIND)


def was_set_s(before: Moment, now: Moment) -> float:
    """By how many seconds the wall clock was set between the two; 0: it was not, or nobody knows,
    as the machine was booted between."""
    ahead_s = now.began_s - before.began_s
    return ahead_s if now.boot == before.boot and abs(ahead_s) >= SET_S else 0.0


def beginnings(moments: Iterable[Moment]) -> dict[str, float]:
    """When each boot began, by the last clock of it that a time server kept."""
    return {each.boot: each.began_s for each in moments if each.clock is Clock.KEPT}


def dated(moment: Moment, began_s: dict[str, float]) -> tuple[float, Clock]:
    """Its time, and how far that can be trusted. What happened before a time server was reached is
    put right by what the clock said afterwards (`beginnings`)."""
    known_s = began_s.get(moment.boot)
    if moment.clock is Clock.KEPT or known_s is None:
        return moment.wall_s, moment.clock
    at_s = known_s + moment.since_boot_s
    return (
        (moment.wall_s, Clock.KEPT) if abs(at_s - moment.wall_s) < SET_S else (at_s, Clock.MENDED)
    )
