"""Who reaches whom: pings that really travel, all at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from limpet.lab.command import LabError, run_command, side_by_side

_PATIENCE_S = 1
_AT_ONCE = 32
"""Pings of one source: more than that and a small machine drops some."""
_BETWEEN_TRIES_S = 0.1

_SCRIPT = """
for address; do
    (ping -n -q -c 1 -W {patience_s} "$address" >/dev/null 2>&1 && echo "$address") &
done
wait
"""


@dataclass(frozen=True)
class Place:
    """A pod or a node: it pings, and is pinged."""

    name: str
    netns: str
    addresses: tuple[IPv4Address | IPv6Address, ...]


@dataclass(frozen=True)
class Matrix:
    """Answers of every place to every place."""

    places: tuple[Place, ...]
    answered: frozenset[tuple[str, str]]
    """Source's name and the address that answered."""
    took_s: float

    def cell(self, source: Place, target: Place) -> str:
        """IP versions that work, `46`; a `-` for one that does not."""
        return "".join(
            str(address.version) if (source.name, str(address)) in self.answered else "-"
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
        """Source, target, address of what was not answered."""
        return [
            (source.name, target.name, str(address))
            for source in self.places
            for target in self.places
            for address in target.addresses
            if (source.name, str(address)) not in self.answered
        ]

    @property
    def count(self) -> int:
        """Of all pings."""
        return len(self.places) * sum(len(place.addresses) for place in self.places)


def measure(places: Sequence[Place]) -> Matrix:
    """One ping from each place to each address of each. A place that is gone reaches nothing."""
    return measure_until(places, within_s=0)


def measure_until(places: Sequence[Place], *, within_s: float) -> Matrix:
    """Pings what has not answered again, until everything has, or `within_s` is over."""
    started_s = time.monotonic()
    answered: set[tuple[str, str]] = set()
    while True:
        open_ = [
            (
                place,
                [
                    address
                    for target in places
                    for address in map(str, target.addresses)
                    if (place.name, address) not in answered
                ],
            )
            for place in places
        ]
        open_ = [(place, addresses) for place, addresses in open_ if addresses]
        took_s = time.monotonic() - started_s
        if not open_:
            break
        for found in side_by_side(_ping_all, open_):
            answered |= found
        took_s = time.monotonic() - started_s
        if took_s >= within_s:
            break
        time.sleep(_BETWEEN_TRIES_S)
    return Matrix(tuple(places), frozenset(answered), took_s)


def _ping_all(work: tuple[Place, list[str]]) -> set[tuple[str, str]]:
    place, addresses = work
    script = _SCRIPT.format(patience_s=_PATIENCE_S)
    answered: set[tuple[str, str]] = set()
    for start in range(0, len(addresses), _AT_ONCE):
        some = addresses[start : start + _AT_ONCE]
        try:
            text = run_command("sh", "-c", script, "sh", *some, netns=place.netns)
        except LabError:
            break
        answered |= {(place.name, address) for address in text.split()}
    return answered
