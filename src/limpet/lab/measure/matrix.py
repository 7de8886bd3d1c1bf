"""Who reaches whom: pings that really travel, all at once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address

from limpet.lab.command import LabError, side_by_side
from limpet.lab.netns import answered_pings

_PATIENCE_S = 1
_BETWEEN_TRIES_S = 0.1


@dataclass(frozen=True)
class MeasuredEnd:
    """A pod or a node: it pings, and is pinged."""

    name: str
    netns: str
    addresses: tuple[IPv4Address | IPv6Address, ...]


@dataclass(frozen=True)
class Matrix:
    """Answers of every place to every place."""

    places: tuple[MeasuredEnd, ...]
    answered: frozenset[tuple[str, str]]
    """Source's name and the address that answered."""
    took_s: float
    apart: frozenset[tuple[str, str]] = frozenset()
    """Names of sources and targets that are not to reach each other."""

    def cell(self, source: MeasuredEnd, target: MeasuredEnd) -> str:
        """IP versions that work, `46`; a `-` for one that does not, a `.` where none is to."""
        silent = "." if (source.name, target.name) in self.apart else "-"
        return "".join(
            str(address.version) if (source.name, str(address)) in self.answered else silent
            for address in target.addresses
        )

    def lines(self) -> list[str]:
        """For a person: rows ping columns, which have the rows' numbers."""
        width = max((len(place.name) for place in self.places), default=0)
        digits = len(str(len(self.places)))
        cells = [[self.cell(row, column) for column in self.places] for row in self.places]
        cell_width = max([digits, *(len(cell) for row in cells for cell in row)])
        heads = (str(number).rjust(cell_width) for number in range(1, len(self.places) + 1))
        return [
            " ".join([" " * (digits + 1 + width), *heads]),
            *(
                " ".join(
                    [
                        str(number).rjust(digits),
                        place.name.ljust(width),
                        *(cell.rjust(cell_width) for cell in row),
                    ]
                )
                for number, (place, row) in enumerate(zip(self.places, cells, strict=True), 1)
            ),
        ]

    @property
    def failures(self) -> list[tuple[str, str, str]]:
        """Source, target, address of what was not answered and is to be."""
        return [each for each in self.pings(apart=False) if not self._is_answered(each)]

    @property
    def trespasses(self) -> list[tuple[str, str, str]]:
        """The same of what was answered and is not to be."""
        return [each for each in self.pings(apart=True) if self._is_answered(each)]

    @property
    def count(self) -> int:
        """Number of pings that are to be answered."""
        return len(self.pings(apart=False))

    def pings(self, *, apart: bool) -> list[tuple[str, str, str]]:
        """Source, target, address of those that are to be answered, or are not to be."""
        return [
            (source.name, target.name, str(address))
            for source in self.places
            for target in self.places
            if ((source.name, target.name) in self.apart) == apart
            for address in target.addresses
        ]

    def _is_answered(self, ping: tuple[str, str, str]) -> bool:
        source, _, address = ping
        return (source, address) in self.answered


def measure_until(
    places: Sequence[MeasuredEnd],
    *,
    within_s: float,
    apart: frozenset[tuple[str, str]] = frozenset(),
) -> Matrix:
    """Pings each address of each place from each, and again what has not answered, until everything
    has, or `within_s` is over. A place that is gone reaches nothing.

    Those that are `apart` (names of source and target) are asked once, at the end.
    """
    started_s = time.monotonic()
    matrix = Matrix(tuple(places), frozenset(), 0, apart)
    answered: set[tuple[str, str]] = set()
    while True:
        answered |= _ping(places, matrix.failures)
        took_s = time.monotonic() - started_s
        matrix = replace(matrix, answered=frozenset(answered), took_s=took_s)
        if not matrix.failures or took_s >= within_s:
            break
        time.sleep(_BETWEEN_TRIES_S)
    if apart:
        strays = _ping(places, matrix.pings(apart=True))
        matrix = replace(matrix, answered=matrix.answered | strays)
    return matrix


def _ping(
    places: Sequence[MeasuredEnd], pings: Iterable[tuple[str, str, str]]
) -> frozenset[tuple[str, str]]:
    """Source and address of what is answered."""
    wanted: dict[str, list[str]] = {}
    for source, _, address in pings:
        wanted.setdefault(source, []).append(address)
    work = [(place, wanted[place.name]) for place in places if place.name in wanted]
    return frozenset().union(*side_by_side(_ping_all, work))


def _ping_all(work: tuple[MeasuredEnd, list[str]]) -> set[tuple[str, str]]:
    place, addresses = work
    with suppress(LabError):
        found = answered_pings(place.netns, addresses, _PATIENCE_S)
        return {(place.name, address) for address in found}
    return set()  # the place is gone
