"""Figures of the controller, for Prometheus."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client.core import Metric

from limpet.base.metrics.figures import Exposition, Figure, Figures, Values
from limpet.base.metrics.room_on_disk import ROOM_ON_DISK, room_on_disk
from limpet.cluster.keys import key_name
from limpet.cluster.kinds.network import signing_keys
from limpet.controller.registry.tables import Tables

PREFIX = "limpet_controller_"
_TRUTH = "0 or 1"
EVERY = (Figure("leads", _TRUTH, "1 where this controller leads"),)
"""Figures of a controller, whether it leads or not."""
LEADING = (
    Figure("nodes", "nodes", "nodes that are not removed"),
    Figure("watchers", "agents", "agents that are told of changes"),
    Figure(
        "requests_total",
        "requests",
        "requests by what became of them: `ok`, or why they were refused",
        ("path", "code"),
    ),
    Figure("revision", "revision", "revision of the cluster"),
    Figure(
        "cluster_key_info",
        "always 1",
        "the key that signs for the cluster, in short, as `limpet network show` has it",
        ("key",),
    ),
    Figure(
        "segments",
        "segments",
        "`held`, `resting` after a node was removed, `unknown` after a restore, and `free`, where "
        "the controller has space of its own to grant from",
        ("family", "state"),
    ),
    Figure("cloned_nodes", "keys", "keys that two machines use"),
    Figure("recovering", _TRUTH, "1 after a restore, until it is over"),
    Figure("store_trouble", _TRUTH, "1 while the last change could not be written"),
    Figure(
        "addresses_held_twice",
        "addresses",
        "with Kubernetes: addresses that two live pods have",
    ),
    Figure(
        "events_dropped",
        "Events",
        "with Kubernetes: Events that were one too many, or that nobody took",
    ),
)
"""Figures of the one that leads."""
_FIGURES = Figures(PREFIX, ROOM_ON_DISK, EVERY, LEADING)


class FollowerMetrics:
    """Metrics of a controller that does not lead."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self.text = Exposition(self._collect).text

    def _collect(self) -> Iterator[Metric]:
        yield from _of_every(self._started_s, leads=False)


class Metrics:
    """Metrics of one controller that leads; `text` is the exposition."""

    def __init__(self, folders: Mapping[str, Path] | None = None) -> None:
        """`folders`: on whose disks it writes, by what they are called."""
        self.watchers = 0
        self._started_s = time.monotonic()
        self._folders = folders or {}
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._watched: dict[str, Callable[[], float]] = {}
        self._exposition = Exposition(self._collect)
        self._tables: Tables | None = None
        """While it is asked."""

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """A figure more of `LEADING`, whose value is asked for each time."""
        self._watched[name] = read

    def count(self, path: str, code: str) -> None:
        self._requests[path, code] += 1

    def text(self, tables: Tables) -> bytes:
        self._tables = tables
        return self._exposition.text()

    def _collect(self) -> Iterator[Metric]:
        yield from _of_every(self._started_s, leads=True)
        yield from room_on_disk(_FIGURES, self._folders)
        yield from _FIGURES.each(("watchers", self.watchers))
        yield from _FIGURES.each(*((name, read()) for name, read in self._watched.items()))
        yield _FIGURES.make("requests_total", self._requests)
        if self._tables is not None:
            yield from _of_tables(self._tables)


def _of_every(started_s: float, *, leads: bool) -> Iterator[Metric]:
    yield from _FIGURES.of_process(started_s)
    yield from _FIGURES.each(("leads", leads))


def _of_tables(tables: Tables) -> Iterator[Metric]:
    yield from _FIGURES.each(
        ("nodes", sum(1 for grant in tables.grants.values() if not grant.tombstone)),
        ("revision", tables.state.revision),
        ("recovering", tables.state.recovery is not None),
        ("cloned_nodes", sum(1 for each in tables.presences.values() if each.cloned_at_s)),
    )
    yield _FIGURES.make("cluster_key_info", {(key_name(signing_keys(tables)[-1]),): 1})
    yield _FIGURES.make("segments", _segments(tables))


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
