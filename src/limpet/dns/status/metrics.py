"""Figures of the process that answers names, for Prometheus; read when they are asked for.

In memory only where they are served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from limpet.base.metrics.figures import Exposition, Figure, Figures
from limpet.dns.status.answers import NamesStatus

PREFIX = "limpet_dns_"
NAMES = (
    Figure(
        "services",
        "Services",
        "Services that are known",
    ),
    Figure(
        "services_known",
        "0 or 1",
        "0: none was ever heard of, and names of the cluster get SERVFAIL",
    ),
    Figure(
        "trouble",
        "0 or 1",
        "1 while something cannot be done, such as reading a file; `limpet dns status` says what",
    ),
    Figure("doubted_nodes", "nodes", "silent nodes whose endpoints are left out of answers"),
    Figure("doubted_pods", "pods", "pods that are gone and are left out of answers"),
    Figure("kept_answers", "answers", "answers of upstreams that are kept"),
    Figure("kept_bytes", "bytes", "the memory that they take"),
    Figure(
        "questions_total",
        "questions",
        "`cluster`: for the cluster's names, `ready`: those of them that were answered with bytes "
        "that were there, `forwarded`: for others, `stale`: those of them that got an answer which "
        "had ended, `dropped`: of clients that had too many waiting, `sent_to_tcp`: by UDP from "
        "beyond this node, `refused`: messages that were no question, `failed`: SERVFAIL",
        ("outcome",),
    ),
    Figure(
        "upstream_up",
        "0 or 1",
        "1 while it answers and does not send our questions back to us",
        ("upstream",),
    ),
)
"""Every figure of the process that answers names."""
_FIGURES = Figures(PREFIX, NAMES)


class Metrics:
    """Figures of one process."""

    def __init__(self, status: Callable[[], NamesStatus]) -> None:
        """`status`: as `limpet dns status` has it."""
        self._status = status
        self._started_s = time.monotonic()
        self.text = Exposition(self._collect).text

    def _collect(self) -> Iterator[Metric]:
        status = self._status()
        yield from _FIGURES.of_process(self._started_s)
        yield from _FIGURES.each(
            ("services", status.services or 0),
            ("services_known", status.services is not None),
            ("trouble", bool(status.trouble)),
            ("doubted_nodes", status.silent),
            ("doubted_pods", status.gone),
            ("kept_answers", status.kept),
            ("kept_bytes", status.kept_bytes),
        )
        yield _FIGURES.make(
            "questions_total",
            {(outcome,): count for outcome, count in status.questions.items()},
        )
        yield _FIGURES.make(
            "upstream_up",
            {(each.address,): each.state == "used" for each in status.upstreams},
        )
