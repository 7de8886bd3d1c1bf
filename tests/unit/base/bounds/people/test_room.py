"""Room that owners share: what each may have, and what is left to those who have little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.bounds.bound import Above, Bound
from limpet.base.bounds.room import RESERVED_PART, SMALL_PART, Room

ALL = Bound("things", 64 << 10, "things", Above.REFUSED)
ONE = Bound("... of one", 16 << 10, "things", Above.REFUSED)
SMALL = ONE.most // SMALL_PART


def fill(room: Room, owner: str, step: int) -> int:
    """How much the owner gets."""
    got = 0
    while not room.refusal(owner, step):
        room.change(owner, step)
        got += step
    return got


def test_who_fills_all_that_it_may_leaves_what_is_small_to_others() -> None:
    room = Room(ALL, ONE)
    large = [fill(room, f"large-{number}", 64) for number in range(8)]

    assert large[:2] == [ONE.most, ONE.most]
    assert sum(large) < ALL.most
    small = [fill(room, f"small-{number}", SMALL) for number in range(100)]
    assert small == [SMALL] * 100
    assert room.refusal("small-0", 1).startswith("the cluster has more than 65,536")


def test_without_a_share_one_owner_fills_all() -> None:
    assert fill(Room(ALL), "one", 1) == ALL.most


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(-ONE.most, ONE.most))))
def test_what_goes_leaves_its_room_whatever_came_before(changes: list[tuple[str, int]]) -> None:
    room, has = Room(ALL, ONE), dict.fromkeys("abcde", 0)
    for owner, change in changes:
        if has[owner] + change >= 0 and not room.refusal(owner, change):
            room.change(owner, change)
            has[owner] += change
    assert max(has.values()) <= ONE.most
    assert sum(has.values()) <= ALL.most
    for owner, amount in has.items():
        room.change(owner, -amount)
    assert fill(room, "f", 1) == ONE.most
    assert sum(fill(room, f"g{number}", SMALL) for number in range(4096)) == ALL.most - ONE.most


def test_the_reserved_part_is_what_many_small_ones_have() -> None:
    room = Room(ALL, ONE)
    assert sum(fill(room, f"large-{number}", 1) for number in range(8)) == (
        ALL.most - ALL.most // RESERVED_PART + 8 * SMALL
    )
