"""When a recovery begins and ends, in the tables alone."""

from __future__ import annotations

from limpet.controller.registry.records import STATE
from limpet.controller.state import nodes, recovery
from tests.unit.controller.state.cluster_tables import copy, join, new_tables


def test_reports_of_one_recovery_do_not_count_for_the_next_where_the_state_was_lost_twice() -> None:
    """The epoch is lost with the state; the nodes' records tell what it was."""
    tables = new_tables()
    uids = [join(tables, number, f"n{number}").uid for number in (1, 2)]

    for _ in range(2):
        tables.put(STATE, STATE, None)
        tables = copy(tables)
        recovery.remake_state(tables)
        recovery.begin(tables, 4, 0.0, paused=True)

        assert {each.uid for each in recovery.waiting_for(tables)} == set(uids)
        assert not recovery.note_report(tables, uids[0], 4)
        assert recovery.note_report(tables, uids[1], 4)
        assert tables.state.recovery is None


def test_a_recovery_ends_with_the_next_report_when_the_last_that_was_awaited_is_removed() -> None:
    tables = new_tables()
    uids = [join(tables, number, f"n{number}").uid for number in (1, 2)]
    recovery.begin(tables, 4, 0.0, paused=True)
    assert not recovery.note_report(tables, uids[0], 4)

    nodes.remove(tables, uids[1], 0.0)

    assert recovery.note_report(tables, uids[0], 4)
    assert tables.state.recovery is None
