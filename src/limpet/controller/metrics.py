"""Figures of the controller, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import Counter, Gauge
from prometheus_client.core import Metric

from limpet.base.metrics.figures import Exposition, Figures, Values
from limpet.cluster.keys import key_name
from limpet.cluster.kinds.network import signing_keys
from limpet.controller.registry.tables import Tables

_FIGURES = Figures("limpet_controller_")


class _Shown:
    """What every controller says, whether it leads or not; and what its records say."""

    def __init__(self, leads: float) -> None:
        self._leads = leads
        self._started_s = time.monotonic()
        self.exposition = Exposition(self._collect)
        self.tables: Tables | None = None
        """While it is asked, of one that leads."""

    def _collect(self) -> Iterator[Metric]:
        yield from _FIGURES.of_process(self._started_s)
        yield from _FIGURES.gauges(("leads", "1 where this controller leads.", self._leads))
        if self.tables is not None:
            yield from _of_tables(self.tables)


class FollowerMetrics:
    """Of a controller that does not lead."""

    def __init__(self) -> None:
        self.text = _Shown(0).exposition.text


class Metrics:
    """Gauges and counters of one controller that leads; `text` is the exposition."""

    def __init__(self) -> None:
        self._shown = _Shown(1)
        self._registry = self._shown.exposition.registry
        self._requests = Counter(
            "limpet_controller_requests",
            "Requests by path and outcome.",
            ("path", "code"),
            registry=self._registry,
        )
        self.watchers = self._gauge("watchers", "Agents that watch.")

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"limpet_controller_{name}", text, registry=self._registry)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge more, whose value is asked for each time."""
        self._gauge(name, text).set_function(read)

    def count(self, path: str, code: str) -> None:
        self._requests.labels(path, code).inc()

    def text(self, tables: Tables) -> bytes:
        self._shown.tables = tables
        return self._shown.exposition.text()


def _of_tables(tables: Tables) -> Iterator[Metric]:
    yield from _FIGURES.gauges(
        (
            "nodes",
            "Nodes that are not removed.",
            sum(1 for grant in tables.grants.values() if not grant.tombstone),
        ),
        ("revision", "Revision of the cluster.", tables.state.revision),
        (
            "recovering",
            "1 after a restore, until it is over.",
            tables.state.recovery is not None,
        ),
        (
            "cloned_nodes",
            "Keys that two machines use.",
            sum(1 for each in tables.presences.values() if each.cloned_at_s),
        ),
    )
    yield _FIGURES.gauge(
        "cluster_key_info",
        "The key that signs for the cluster, in short.",
        {(key_name(signing_keys(tables)[-1]),): 1},
        "key",
    )
    yield _FIGURES.gauge(
        "segments", "Segments by what became of them.", _segments(tables), "family", "state"
    )


def _segments(tables: Tables) -> Values:
    """`free` are those of the controller's own space that nobody has or had."""
    space = tables.space
    found: dict[tuple[str, ...], float] = {
        (f"ipv{version}", state): 0
        for version in space.versions
        for state in ("held", "resting", "unknown")
    }
    for holding in space.holdings.values():
        resting = "resting" if holding.resting_since_s is not None else "held"
        found[f"ipv{holding.prefix.version}", resting if holding.uid else "unknown"] += 1
    return found | {
        (f"ipv{version}", "free"): space.free(version)
        for version in space.versions
        if space.own(version)
    }
