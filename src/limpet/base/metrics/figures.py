"""Figures by their names, and a process's exposition: read when asked for, none is kept.

What a figure is called, counts in and means stands in a table (`Figure`), once: what Prometheus is
told of it and the reference in the documentation are both made from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from limpet import __version__
from limpet.base import faults

Values = Mapping[tuple[str, ...], float]
"""Values of one figure, by the values of its labels."""
_COUNTER = "_total"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a table of figures."""

    name: str
    """Behind the process's prefix; a counter's ends in `_total`."""
    unit: str
    """What it counts, or in what it is measured; `0 or 1` of what holds or does not."""
    meaning: str
    """Markdown without links, since a person at Prometheus reads it too."""
    labels: tuple[str, ...] = ()

    @property
    def is_counter(self) -> bool:
        return self.name.endswith(_COUNTER)


OF_PROCESS = (
    Figure("info", "always 1", "version of Limpet", ("version",)),
    Figure(
        "uptime_seconds",
        "seconds",
        "since the process's start, whatever the clock says; its resets are restarts",
    ),
    Figure(
        "unexpected_errors_total",
        "errors",
        "defects of Limpet that the process met and got over; the log has the first of each kind "
        "with its traceback",
        ("part",),
    ),
)
"""What every process says of itself."""


class Figures:
    """Makes figures of tables, and none that stands in no table."""

    def __init__(self, prefix: str, *tables: tuple[Figure, ...]) -> None:
        """`prefix`: what all names begin with."""
        self._prefix = prefix
        self._known = {each.name: each for table in (OF_PROCESS, *tables) for each in table}

    def make(self, name: str, values: Values) -> Metric:
        """Raises: KeyError for a name in no table, ValueError for other labels than are there."""
        known = self._known[name]
        kind = CounterMetricFamily if known.is_counter else GaugeMetricFamily
        whole = self._prefix + known.name.removesuffix(_COUNTER)
        family = kind(whole, known.meaning, labels=known.labels)
        for key, value in values.items():
            if len(key) != len(known.labels):
                raise ValueError(f"figure {name}: labels {known.labels} and values {key}")
            family.add_metric(key, float(value))
        return family

    def each(self, *figures: tuple[str, float]) -> Iterator[Metric]:
        """Name and the one value of each."""
        for name, value in figures:
            yield self.make(name, {(): value})

    def of_process(self, started_s: float) -> Iterator[Metric]:
        """`OF_PROCESS`, of this one."""
        yield self.make("info", {(__version__,): 1})
        yield from self.each(("uptime_seconds", time.monotonic() - started_s))
        yield self.make(
            "unexpected_errors_total", {(part,): count for part, count in faults.counts.items()}
        )


class Exposition:
    """What a process shows: its own figures, and what the kernel says of it."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self.collect = collect
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    # For the registry: nothing is read before it is asked for.
    def describe(self) -> list[Metric]:
        return []
