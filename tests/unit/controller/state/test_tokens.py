"""A token lets one node in, and is spent when that has confirmed what it was answered."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as replace_fields

from limpet.cluster.api import Code, token_id
from limpet.controller.registry.records import TOKEN
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state import grants, nodes, recovery, tokens
from limpet.controller.state.tokens import TokenState
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


# Taken back


def state(tables: Tables, token: str, now_s: float) -> TokenState:
    return tokens.state_of(tables, token_id(token), now_s)


def test_a_token_goes_from_state_to_state_and_lets_in_as_its_state_says() -> None:
    tables = new_tables()
    token = new_token(tables)
    assert state(tables, token, 1.0) is TokenState.UNUSED
    assert state(tables, token, 2e9) is TokenState.EXPIRED
    first = join_with(tables, token, 1, "a")
    assert state(tables, token, 1.0) is TokenState.HELD
    assert state(tables, token, 2e9) is TokenState.USED
    tokens.spend_token(tables, first.uid)
    assert state(tables, token, 1.0) is TokenState.USED

    of_a_removed_node = new_token(tables)
    gone = join_with(tables, of_a_removed_node, 2, "b")
    nodes.remove(tables, gone.uid, 1.0)
    assert state(tables, of_a_removed_node, 2.0) is TokenState.USED
    assert {each for each in TokenState if each.lets_in} == {TokenState.UNUSED, TokenState.HELD}


def test_a_removed_token_lets_in_nobody_says_so_for_a_day_and_is_forgotten_then() -> None:
    tables = new_tables()
    token, kept = new_token(tables), new_token(tables)
    done = tokens.remove_tokens(tables, [token_id(token)], 10.0, by="anne")
    assert done == tokens.Removed((token_id(token),), (), ())
    assert state(tables, token, 10.0) is TokenState.REMOVED
    assert tables.tokens[token_id(token)].removed_by == "anne"
    for now_s in (10.0, 5.0):  # also by a clock that was put back
        said = refused(tables, token, 1, "a", now_s)
        assert said.refused.code is Code.BAD_TOKEN
        assert "an administrator removed the token 0 s ago" in str(said)

    tokens.forget_tokens(tables, 10.0 + 86_400)
    assert "removed the token 86400 s ago" in str(refused(tables, token, 1, "a", 86_410.0))
    tokens.forget_tokens(tables, 11.0 + 86_400)
    assert "nobody made this token" in str(refused(tables, token, 1, "a", 86_411.0))
    join_with(tables, kept, 1, "a", 86_411.0)


def test_what_can_be_removed_is_also_where_something_else_cannot() -> None:
    tables = new_tables()
    used, token = new_token(tables), new_token(tables)
    node = join_with(tables, used, 1, "a")
    tokens.spend_token(tables, node.uid)
    for _ in range(2):  # asked again, as whoever has not heard the answer does
        done = tokens.remove_tokens(tables, ["none", *map(token_id, (used, token))], 1.0)
        assert done == tokens.Removed((token_id(token),), (token_id(used),), ("none",))
    assert state(tables, used, 2.0) is TokenState.USED
    assert not tables.grants[node.uid].tombstone


def test_all_tokens_that_let_somebody_in_are_removed_at_once_and_no_others() -> None:
    tables = new_tables()
    used, held, unused, expired = (new_token(tables) for _ in range(4))
    tokens.spend_token(tables, join_with(tables, used, 1, "a").uid)
    join_with(tables, held, 2, "b")
    short = tables.tokens[token_id(expired)]
    tables.put(TOKEN, token_id(expired), replace_fields(short, expires_at_s=1.0))

    done = tokens.remove_tokens(tables, (), 2.0, every=True)
    assert set(done.removed) == {token_id(held), token_id(unused)}
    assert done.let_in == (token_id(held),)
    assert state(tables, used, 2.0) is TokenState.USED
    assert state(tables, expired, 2.0) is TokenState.EXPIRED


def test_a_machine_that_was_answered_before_is_in_and_nobody_takes_its_place() -> None:
    tables = new_tables()
    token = new_token(tables)
    first = join_with(tables, token, 1, "a")
    done = tokens.remove_tokens(tables, [token_id(token)], 1.0)
    assert done == tokens.Removed((token_id(token),), (token_id(token),), ())
    assert "an administrator removed" in str(refused(tables, token, 2, "a", LATER_S))
    assert join_with(tables, token, 1, "a", LATER_S) == first
    tokens.spend_token(tables, first.uid)
    assert join_with(tables, token, 1, "a", 2 * LATER_S) == first
    nodes.remove(tables, first.uid, 3 * LATER_S)
    assert refused(tables, token, 1, "a", 3 * LATER_S).refused.code is Code.REMOVED


def test_who_shows_another_secret_with_the_id_of_a_removed_token_hears_nothing_of_it() -> None:
    tables = new_tables()
    token, other = new_token(tables), new_token(tables)
    tokens.remove_tokens(tables, [token_id(token)], 1.0)
    mark, _, secret, digest = other.split("_")
    forged = "_".join((mark, token_id(token), secret, digest))
    assert "nobody made this token" in str(refused(tables, forged, 1, "a", 2.0))


def test_a_controller_that_was_put_back_lets_nobody_in_by_a_token_of_before() -> None:
    """Removed since, used since, or confirmed since: it does not know."""
    tables = new_tables()
    unused, held = new_token(tables), new_token(tables)
    first = join_with(tables, held, 1, "a")
    recovery.begin(tables, 4, 1.0, paused=False)
    assert refused(tables, unused, 2, "b", 2.0).refused.code is Code.BAD_TOKEN
    assert refused(tables, held, 2, "a", LATER_S).refused.code is Code.BAD_TOKEN
    assert join_with(tables, held, 1, "a", LATER_S) == first
