"""docs/reference/metrics.md: every figure for Prometheus, of the tables that make the figures."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector

from limpet.agent.figures import table as agent
from limpet.base.metrics.figures import OF_PROCESS, Figure
from limpet.base.metrics.room_on_disk import ROOM_ON_DISK
from limpet.controller.figures import metrics as controller
from limpet.dns.status import metrics as names

TABLES: dict[str, tuple[str, dict[str, tuple[Figure, ...]]]] = {
    "The agent": (
        agent.PREFIX,
        {
            "On every node; `folder` is `state` or `addresses`": (
                *OF_PROCESS,
                *ROOM_ON_DISK,
                *agent.NODE,
            ),
            "On a node that has [network policies](../policies.md) also": agent.POLICIES,
            "On a node of a cluster also": agent.CLUSTER,
            "On a node that serves [Services](../services.md) also": agent.SERVICES,
            "On a node that is a relay also": agent.RELAY,
        },
    ),
    "Names": (
        names.PREFIX,
        {"Of the process that answers [names](../dns.md)": (*OF_PROCESS, *names.NAMES)},
    ),
    "The controller": (
        controller.PREFIX,
        {
            "Of every controller; what it counts begins anew when it begins or ends to lead": (
                *OF_PROCESS,
                *controller.EVERY,
            ),
            "Of the one that leads also; `folder` is `state`, where it keeps that on a disk": (
                *ROOM_ON_DISK,
                *controller.LEADING,
            ),
        },
    ),
}
"""By process: what its names begin with, and by whose they are: the tables."""


def metrics_page() -> str:
    """docs/reference/metrics.md."""
    return "".join(f"{line}\n" for line in _lines())


def all_names() -> Iterator[str]:
    """Whole name of every figure, as Prometheus has it; without `process_…`."""
    for prefix, tables in TABLES.values():
        for figures in tables.values():
            yield from (prefix + each.name for each in figures)


def _lines() -> Iterator[str]:
    yield from (
        "# Figures for Prometheus",
        "",
        "<!-- scripts/write-reference makes this page of the tables in the code -->",
        "",
        "Where they are served, and what to do with them: [metrics](../metrics.md). Names that end",
        "in `_total` count from the process's start; the others are as things are now.",
        "",
        "**Assumes** a Prometheus, or whatever reads its format. **Undo**: nothing to undo of",
        "being read; a process that is to tell no figures has no `metrics_listen` in its settings.",
    )
    for whose, (prefix, tables) in TABLES.items():
        yield from ("", f"## {whose}", "", f"All names begin with `{prefix}`.")
        for when, figures in tables.items():
            yield from (
                "",
                f"{when}:",
                "",
                "| figure | labels | unit | meaning |",
                "|---|---|---|---|",
            )
            for each in figures:
                labels = ", ".join(f"`{label}`" for label in each.labels)
                yield f"| `{each.name}` | {labels} | {each.unit} | {each.meaning} |"
    yield from ("", "## Each process", "", "What the kernel says of it:", "")
    yield from ("| figure | meaning |", "|---|---|")
    for family in ProcessCollector(registry=CollectorRegistry()).collect():
        for sample in family.samples:
            yield f"| `{sample.name}` | {family.documentation} |"
