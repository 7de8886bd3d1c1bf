"""Figures are those of their tables: each that is told is there, and each that is there is told."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from limpet.agent.figures import cluster, metrics, table
from limpet.base.metrics import figures, room_on_disk
from limpet.base.metrics.figures import OF_PROCESS, Figure, Figures
from limpet.base.metrics.room_on_disk import ROOM_ON_DISK
from limpet.base.metrics.room_on_disk import room_on_disk as room
from limpet.cli.usage.figures import all_names
from limpet.controller import replica, serving
from limpet.controller.figures import metrics as controller
from limpet.dns.status import metrics as names

COUNTS = Figures("test_", (Figure("doors_total", "doors", "doors that were opened", ("floor",)),))


def test_none_is_told_that_stands_in_no_table() -> None:
    with pytest.raises(KeyError):
        COUNTS.make("windows_total", {})


def test_none_is_told_with_other_labels_than_its_table_says() -> None:
    with pytest.raises(ValueError, match="doors_total"):
        COUNTS.make("doors_total", {("1", "left"): 2})


@pytest.mark.parametrize(
    ("modules", "tables"),
    [
        (
            (metrics, cluster),
            (table.NODE, table.POLICIES, table.CLUSTER, table.SERVICES, table.RELAY),
        ),
        ((controller, serving, replica), (controller.EVERY, controller.LEADING)),
        ((names,), (names.NAMES,)),
        ((figures,), (OF_PROCESS,)),
        ((room_on_disk,), (ROOM_ON_DISK,)),
    ],
    ids=["agent", "controller", "names", "process", "disks"],
)
def test_each_of_a_table_is_told(
    modules: tuple[object, ...], tables: tuple[tuple[Figure, ...], ...]
) -> None:
    """By who collects them; tests/monitoring holds it at a real Prometheus."""
    told = [
        argument.value
        for module in modules
        for call in ast.walk(ast.parse(inspect.getsource(module)))  # type: ignore[arg-type]
        if not _makes_a_row(call)
        for argument in ast.iter_child_nodes(call)
        if isinstance(argument, ast.Constant)
    ]

    assert {each.name for rows in tables for each in rows} - set(told) == set()


def _makes_a_row(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Figure"


def test_each_has_a_name_of_its_own_a_unit_and_a_meaning() -> None:
    found = list(all_names())
    rows = (OF_PROCESS, ROOM_ON_DISK, table.NODE, table.CLUSTER, controller.LEADING, names.NAMES)

    assert len(found) == len(set(found))
    for each in (one for some in rows for one in some):
        assert each.unit, each
        assert each.meaning, each
        for word in ("bytes", "seconds"):  # as Prometheus' own names do
            assert (word in each.name) == (each.unit == word), each


def test_room_is_that_of_the_disk_where_a_folder_will_be(tmp_path: Path) -> None:
    figures = Figures("test_", ROOM_ON_DISK)
    folders = {"state": tmp_path, "addresses": tmp_path / "not" / "yet"}

    told = {each.name: each.samples for each in room(figures, folders)}

    for name in ("test_disk_free_bytes", "test_disk_size_bytes"):
        one, other = told[name]
        assert one.labels == {"folder": "state"}
        assert other.labels == {"folder": "addresses"}
        # Others write to the disk between the two looks.
        assert one.value == pytest.approx(other.value, rel=0.1)
        assert one.value > 0
