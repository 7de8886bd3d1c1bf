"""What is in deploy/monitoring: written from the present tables, and as Grafana's own types say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

CHECKOUT = Path(__file__).resolve().parents[2]
MONITORING = CHECKOUT / "deploy" / "monitoring"
DASHBOARDS = ("limpet-cluster.json", "limpet-node.json")
# Source: @grafana/schema; scripts/write-grafana-schema.
SCHEMAS = json.loads((Path(__file__).parent / "grafana.json").read_text(encoding="utf-8"))[
    "schemas"
]


def problems(what: str, value: object) -> list[str]:
    """By Grafana's type of that name; unknown keys are problems, too."""
    found = Draft7Validator(SCHEMAS[what]).iter_errors(value)
    return [f"{what}: {'.'.join(map(str, each.absolute_path))}: {each.message}" for each in found]


def dashboard(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / name).read_text(encoding="utf-8"))
    return found


def test_it_was_written_from_the_present_tables(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, CHECKOUT / "scripts" / "write-monitoring", tmp_path], check=True
    )

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 7
    for fresh in written:
        present = CHECKOUT / fresh.relative_to(tmp_path)
        assert present.read_text() == fresh.read_text(), "run scripts/write-monitoring"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_knows_each_key_of_a_dashboard(name: str) -> None:
    found = dashboard(name)
    said = problems("dashboard", {**found, "panels": []})
    for panel in found["panels"]:
        kind = panel["type"]
        if kind == "row":
            said += problems("row", panel)
            continue
        said += problems("panel", panel) + problems(f"{kind}.options", panel["options"])
        custom = panel["fieldConfig"]["defaults"]["custom"]
        said += problems(f"{kind}.custom", custom) if custom else []

    assert said == []


def test_the_schema_sees_what_is_wrong() -> None:
    found = dashboard(DASHBOARDS[0])
    panel = next(each for each in found["panels"] if each["type"] == "timeseries")

    assert problems("dashboard", {**found, "pannels": []})
    assert problems("panel", {**panel, "gridPos": {"h": "7", "w": 8, "x": 0, "y": 0}})
    assert problems("timeseries.options", {**panel["options"], "legend": {"placement": "left"}})
    assert problems("timeseries.custom", {"drawStyle": "dotted"})


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_words_and_do_not_overlap(name: str) -> None:
    panels = dashboard(name)["panels"]
    places = [
        (x, y)
        for panel in panels
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]

    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels if panel["type"] != "row")
