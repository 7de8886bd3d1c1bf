"""Figures of the process that answers names, for Prometheus; read when they are asked for.

In memory only where they are served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from limpet import __version__
from limpet.base import faults

_PREFIX = "limpet_dns_"


class Metrics:
    """Of one process; docs/metrics.md says what each figure means."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        """`status`: as `limpet dns status` has it."""
        self._status = status
        self._started_s = time.monotonic()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        info = GaugeMetricFamily(f"{_PREFIX}info", "Version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield _gauge("uptime_seconds", "Since its start.", time.monotonic() - self._started_s)
        yield _gauge("services", "Services that are known.", status["services"] or 0)
        yield _gauge(
            "services_known", "0 while none was ever heard of.", status["services"] is not None
        )
        yield _gauge(
            "trouble",
            "1 while something cannot be done; status says what.",
            bool(status["trouble"]),
        )
        yield _gauge(
            "doubted_nodes", "Silent nodes whose endpoints are left out.", status["silent"]
        )
        yield _gauge("doubted_pods", "Pods that are gone and are left out.", status["gone"])
        yield _gauge("kept_answers", "Answers of upstreams that are kept.", status["kept"])
        yield _gauge("kept_bytes", "Memory that they take.", status["kept_bytes"])
        yield _counters(
            "questions", "Questions by what became of them.", "outcome", status["questions"]
        )
        upstreams = {each["address"]: each for each in status["upstreams"]}
        up = GaugeMetricFamily(
            f"{_PREFIX}upstream_up", "1 while it answers, and is no loop.", labels=["upstream"]
        )
        for address, each in upstreams.items():
            up.add_metric([address], each["state"] == "used")
        yield up
        yield _counters(
            "unexpected_errors", "Defects that were met and got over.", "part", faults.counts
        )

    # For the registry: nothing is read before it is asked for.
    def describe(self) -> list[Metric]:
        return []


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counters(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family
