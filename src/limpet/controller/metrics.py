"""Figures of the controller, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from limpet.controller.registry.tables import Tables


def _leads(registry: CollectorRegistry) -> Gauge:
    return Gauge("limpet_controller_leads", "1 where this controller leads.", registry=registry)


class FollowerMetrics:
    """Of a controller that does not lead: that alone."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        _leads(self._registry).set(0)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class Metrics:
    """Gauges and counters of one controller; `text` is the exposition."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "limpet_controller_requests",
            "Requests by path and outcome.",
            ("path", "code"),
            registry=self._registry,
        )
        self.watchers = self._gauge("watchers", "Agents that watch.")
        _leads(self._registry).set(1)
        self._nodes = self._gauge("nodes", "Nodes that are not removed.")
        self._revision = self._gauge("revision", "Revision of the cluster.")
        self._recovering = self._gauge("recovering", "1 after a restore, until it is over.")
        self._cloned = self._gauge("cloned_nodes", "Keys that two machines use.")
        self._segments = Gauge(
            "limpet_controller_segments",
            "Segments that are taken.",
            ("family", "state"),
            registry=self._registry,
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"limpet_controller_{name}", text, registry=self._registry)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge more, whose value is asked for each time."""
        self._gauge(name, text).set_function(read)

    def count(self, path: str, code: str) -> None:
        self._requests.labels(path, code).inc()

    def text(self, tables: Tables) -> bytes:
        self._nodes.set(sum(1 for grant in tables.grants.values() if not grant.tombstone))
        self._revision.set(tables.state.revision)
        self._recovering.set(tables.state.recovery is not None)
        self._cloned.set(sum(1 for each in tables.presences.values() if each.cloned_at_s))
        counts = {
            (f"ipv{version}", state): 0
            for version in tables.space.versions
            for state in ("held", "resting", "unknown")
        }
        for holding in tables.space.holdings.values():
            resting = "resting" if holding.resting_since_s is not None else "held"
            counts[f"ipv{holding.prefix.version}", resting if holding.uid else "unknown"] += 1
        for (family, state), count in counts.items():
            self._segments.labels(family, state).set(count)
        return generate_latest(self._registry)
