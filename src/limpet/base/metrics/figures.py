"""Figures by their names, and a process's exposition: read when asked for, none is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from limpet import __version__
from limpet.base import faults

Values = Mapping[tuple[str, ...], float]
"""Values of one figure, by the values of its labels."""


class Figures:
    """Makes figures whose names begin alike."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def gauge(self, name: str, text: str, values: Values, *labels: str) -> Metric:
        return _filled(GaugeMetricFamily(self._prefix + name, text, labels=labels), values)

    def counter(self, name: str, text: str, values: Values, *labels: str) -> Metric:
        return _filled(CounterMetricFamily(self._prefix + name, text, labels=labels), values)

    def gauges(self, *figures: tuple[str, str, float]) -> Iterator[Metric]:
        """Name, text, and the one value of each."""
        for name, text, value in figures:
            yield self.gauge(name, text, {(): value})

    def of_process(self, started_s: float) -> Iterator[Metric]:
        """What every process says of itself."""
        yield self.gauge("info", "Version.", {(__version__,): 1}, "version")
        yield from self.gauges(
            (
                "uptime_seconds",
                "Since its start; restarts are its resets. No clock is trusted.",
                time.monotonic() - started_s,
            )
        )
        yield self.counter(
            "unexpected_errors",
            "Defects that were met, by the part that went on in spite of them.",
            {(part,): count for part, count in faults.counts.items()},
            "part",
        )


class Exposition:
    """What a process shows: its own figures, and what the kernel says of it."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self.collect = collect
        self.registry = CollectorRegistry()
        """For what counts by itself, beside what is collected."""
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    # For the registry: nothing is read before it is asked for.
    def describe(self) -> list[Metric]:
        return []


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for key, value in values.items():
        family.add_metric(key, float(value))
    return family
