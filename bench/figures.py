"""Figures of a run: medians with their spread, ratios with a confidence interval, targets."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

_RESAMPLES = 4000

CpuTime = Literal["CPU ms", "CPU us", "CPU ms each", "CPU s/GB", "CPU %"]
WallTime = Literal["ms", "s", "1/s", "Gbit/s", "Mbit/s", "kpps"]
"""Worth something on a quiet machine only, unless it is one of two in a ratio."""
NoTime = Literal["MB", "KB", "objects", "1/h", "KB/h"]
"""What is told of an hour is counted over less of it."""
Unit = CpuTime | WallTime | NoTime


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, with the least and the most."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread | None:
        """None without samples."""
        if not samples:
            return None
        return cls(statistics.median(samples), min(samples), max(samples))

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "min": self.minimum, "max": self.maximum}


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the ratio of medians, or on our own median when `of_ratio` is False."""

    bound: float
    of_ratio: bool = True
    at_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. Samples of one round stand at the same place in both lists."""

    name: str
    title: str
    unit: Unit
    ours: Sequence[float] = ()
    reference: Sequence[float] = ()
    target: Target | None = None

    @property
    def clock(self) -> str:
        """By which it is measured; empty: by none."""
        if self.unit in get_args(NoTime):
            return ""
        return "CPU" if self.unit in get_args(CpuTime) else "wall"

    @property
    def ratio(self) -> float | None:
        """Our median by the reference's."""
        if not self.ours or not self.reference or statistics.median(self.reference) == 0:
            return None
        return statistics.median(self.ours) / statistics.median(self.reference)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target or without our figure."""
        if self.target is None or not self.ours:
            return None
        value = self.ratio if self.target.of_ratio else statistics.median(self.ours)
        return None if value is None else self.target.holds(value)

    def ratio_interval(self) -> tuple[float, float] | None:
        """95 % bootstrap interval of the ratio of medians; rounds are drawn whole, as pairs."""
        return ratio_interval(self.ours, self.reference) if self.ratio is not None else None

    def as_json(self) -> dict[str, Any]:
        ours, reference = Spread.of(self.ours), Spread.of(self.reference)
        target = self.target
        return {
            "name": self.name,
            "unit": self.unit,
            "clock": self.clock,
            "ours": ours and ours.as_json(),
            "reference": reference and reference.as_json(),
            "ratio": self.ratio,
            "ratio_interval_95": self.ratio_interval(),
            "target": target and f"{'ratio' if target.of_ratio else 'ours'} {target}",
            "met": self.met,
            "rounds": max(len(self.ours), len(self.reference)),
        }


def ratio_interval(
    ours: Sequence[float], reference: Sequence[float], *, resamples: int = _RESAMPLES
) -> tuple[float, float] | None:
    """95 % bootstrap interval of the ratio of medians; rounds are drawn whole, as pairs."""
    pairs = list(zip(ours, reference, strict=False))
    if len(pairs) < 3:
        return None
    draw = random.Random(0)
    ratios = []
    for _ in range(resamples):
        drawn, of_reference = zip(*draw.choices(pairs, k=len(pairs)), strict=True)
        if (divisor := statistics.median(of_reference)) > 0:
            ratios.append(statistics.median(drawn) / divisor)
    if not ratios:
        return None
    ratios.sort()
    return ratios[int(len(ratios) * 0.025)], ratios[int(len(ratios) * 0.975)]


def table(figures: Sequence[Figure]) -> str:
    """For people: a line for each figure."""
    lines = [("", "time", "limpet", "reference", "ratio [95 %]", "target", "")]
    for figure in figures:
        unit = f" {figure.unit}" if figure.target and not figure.target.of_ratio else ""
        lines.append(
            (
                f"{figure.title}, {figure.unit}",
                figure.clock,
                _spread(figure.ours),
                _spread(figure.reference),
                _ratio(figure),
                f"{figure.target}{unit}" if figure.target else "",
                {True: "ok", False: "MISSED", None: ""}[figure.met],
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in (0, 1, 6) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _spread(samples: Sequence[float]) -> str:
    spread = Spread.of(samples)
    if spread is None:
        return "-"
    low, high = _short(spread.minimum), _short(spread.maximum)
    return f"{_short(spread.median)} [{low}..{high}]"


def _ratio(figure: Figure) -> str:
    if figure.ratio is None:
        return "-"
    interval = figure.ratio_interval()
    shown = f" [{_short(interval[0])}..{_short(interval[1])}]" if interval else ""
    return _short(figure.ratio) + shown


def _short(value: float) -> str:
    """Three digits that count."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 0.1 else f"{value:.3f}"
