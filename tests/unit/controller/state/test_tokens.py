"""A token lets one node in, and is spent when that has confirmed what it was answered."""

from __future__ import annotations

import pytest

from limpet.cluster.api import Code
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state import grants, nodes, tokens
from tests.unit.controller.state.cluster_tables import join, join_with, new_tables, new_token

LATER_S = tokens.HELD_S + 1


def refused(tables: Tables, token: str, number: int, name: str, now_s: float) -> RefusedError:
    position = tables.position
    with pytest.raises(RefusedError) as caught:
        join_with(tables, token, number, name, now_s)
    tables.undo(position)
    return caught.value


def test_who_asks_again_with_its_key_gets_the_same_at_any_time() -> None:
    tables = new_tables()
    token = new_token(tables)
    first = join_with(tables, token, 1, "a")
    assert join_with(tables, token, 1, "a", LATER_S) == first
    tokens.spend_token(tables, first.uid)
    assert join_with(tables, token, 1, "a", 2 * LATER_S) == first


def test_a_machine_that_gave_up_amid_joining_has_not_spent_its_token() -> None:
    tables = new_tables()
    token = new_token(tables)
    first = join_with(tables, token, 1, "a")
    again = refused(tables, token, 2, "a", 1.0)
    assert again.refused.code is Code.TRY_AGAIN
    assert again.refused.after_s == tokens.HELD_S - 1

    second = join_with(tables, token, 2, "a", LATER_S)
    assert second.segments == first.segments
    assert tables.grants[first.uid].tombstone
    with pytest.raises(RefusedError, match="was removed"):
        grants.live_grant(tables, first.uid)
    # It has a key of its own, and as long for it as the first one had.
    assert refused(tables, token, 3, "a", LATER_S + 1).refused.code is Code.TRY_AGAIN
    tokens.spend_token(tables, second.uid)
    assert refused(tables, token, 3, "a", 9 * LATER_S).refused.code is Code.BAD_TOKEN


def test_a_token_that_was_confirmed_lets_in_nobody_else() -> None:
    tables = new_tables()
    token = new_token(tables)
    first = join_with(tables, token, 1, "a")
    tokens.spend_token(tables, first.uid)
    said = refused(tables, token, 2, "a", LATER_S)
    assert said.refused.code is Code.BAD_TOKEN
    assert "used by another node" in str(said)
    assert not tables.grants[first.uid].tombstone


def test_nobody_takes_the_place_of_a_machine_of_another_name() -> None:
    tables = new_tables()
    token = new_token(tables)
    join_with(tables, token, 1, "a")
    said = refused(tables, token, 2, "b", LATER_S)
    assert said.refused.code is Code.BAD_TOKEN
    assert "as a" in str(said)


def test_a_token_that_expired_is_not_handed_on() -> None:
    tables = new_tables()
    token = new_token(tables)
    join_with(tables, token, 1, "a")
    assert "expired" in str(refused(tables, token, 2, "a", 2e9))


def test_a_person_who_removed_the_node_has_spent_its_token() -> None:
    tables = new_tables()
    token = new_token(tables)
    first = join_with(tables, token, 1, "a")
    nodes.remove(tables, first.uid, 1.0)
    assert refused(tables, token, 2, "a", LATER_S).refused.code is Code.BAD_TOKEN


def test_the_place_of_a_dead_machine_goes_on_to_who_joins_in_the_end() -> None:
    tables = new_tables()
    dead = join(tables, 1, "a")
    nodes.await_replacement(tables, "a", wanted=True)
    token = new_token(tables)
    join_with(tables, token, 2, "a")
    last = join_with(tables, token, 3, "a", LATER_S)
    assert last.segments == dead.segments
    assert dead.uid in last.supersedes
