"""Figures of controllers: what leads and what follows say the same thing in the same words."""

from __future__ import annotations

from limpet.controller.figures.metrics import FollowerMetrics, Metrics
from tests.unit.controller.state.cluster_tables import join, new_tables


def test_a_controller_that_follows_says_so_as_one_that_leads() -> None:
    leading = Metrics().text(new_tables()).decode().splitlines()
    following = FollowerMetrics().text().decode().splitlines()

    assert "limpet_controller_leads 1.0" in leading
    assert "limpet_controller_leads 0.0" in following
    assert {each for each in following if each.startswith("#")} < set(leading)


def test_segments_that_are_left_are_told_by_family() -> None:
    tables = new_tables("10.244.0.0/22", "fd00:244::/120", segment_lengths={4: 24, 6: 122})
    join(tables, 1, "n1")
    shown = Metrics().text(tables).decode()

    for family in ("ipv4", "ipv6"):
        assert f'limpet_controller_segments{{family="{family}",state="held"}} 1.0' in shown
        assert f'limpet_controller_segments{{family="{family}",state="free"}} 3.0' in shown


def test_a_figure_more_is_asked_for_each_time() -> None:
    metrics, found = Metrics(), [2]
    metrics.watch("addresses_held_twice", lambda: found[0])
    tables = new_tables()
    join(tables, 1, "n1")

    assert "limpet_controller_addresses_held_twice 2.0" in metrics.text(tables).decode()
    assert "limpet_controller_nodes 1.0" in metrics.text(tables).decode()
    found[0] = 0
    assert "limpet_controller_addresses_held_twice 0.0" in metrics.text(tables).decode()
