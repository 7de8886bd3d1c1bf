"""Figures of the process that answers names, for Prometheus; read when they are asked for.

In memory only where they are served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import Metric

from limpet.base.metrics.figures import Exposition, Figures

_FIGURES = Figures("limpet_dns_")


class Metrics:
    """Of one process; docs/metrics.md says what each figure means."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        """`status`: as `limpet dns status` has it."""
        self._status = status
        self._started_s = time.monotonic()
        self.text = Exposition(self._collect).text

    def _collect(self) -> Iterator[Metric]:
        status = self._status()
        yield from _FIGURES.of_process(self._started_s)
        yield from _FIGURES.gauges(
            ("services", "Services that are known.", status["services"] or 0),
            ("services_known", "0 while none was ever heard of.", status["services"] is not None),
            (
                "trouble",
                "1 while something cannot be done; status says what.",
                bool(status["trouble"]),
            ),
            ("doubted_nodes", "Silent nodes whose endpoints are left out.", status["silent"]),
            ("doubted_pods", "Pods that are gone and are left out.", status["gone"]),
            ("kept_answers", "Answers of upstreams that are kept.", status["kept"]),
            ("kept_bytes", "Memory that they take.", status["kept_bytes"]),
        )
        yield _FIGURES.counter(
            "questions",
            "Questions by what became of them.",
            {(outcome,): count for outcome, count in status["questions"].items()},
            "outcome",
        )
        yield _FIGURES.gauge(
            "upstream_up",
            "1 while it answers, and is no loop.",
            {(each["address"],): each["state"] == "used" for each in status["upstreams"]},
            "upstream",
        )
