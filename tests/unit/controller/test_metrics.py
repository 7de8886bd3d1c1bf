"""Figures of controllers: what leads and what follows say the same thing in the same words."""

from __future__ import annotations

from limpet.controller.metrics import FollowerMetrics, Metrics
from tests.unit.controller.state.cluster_tables import join, new_tables


def test_a_controller_that_follows_says_so_as_one_that_leads() -> None:
    leading = Metrics().text(new_tables()).decode().splitlines()
    following = FollowerMetrics().text().decode().splitlines()

    assert "limpet_controller_leads 1.0" in leading
    assert following[-1] == "limpet_controller_leads 0.0"
    assert set(following[:-1]) <= set(leading)


def test_a_figure_more_is_asked_for_each_time() -> None:
    metrics, found = Metrics(), [2]
    metrics.watch("addresses_held_twice", "Addresses that two live pods hold.", lambda: found[0])
    tables = new_tables()
    join(tables, 1, "n1")

    assert "limpet_controller_addresses_held_twice 2.0" in metrics.text(tables).decode()
    assert "limpet_controller_nodes 1.0" in metrics.text(tables).decode()
    found[0] = 0
    assert "limpet_controller_addresses_held_twice 0.0" in metrics.text(tables).decode()
