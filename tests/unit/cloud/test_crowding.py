"""When what had no room is asked for again."""

from __future__ import annotations

from limpet.cloud.workloads.crowding import FIRST_S, LONGEST_S, Crowding
from tests.unit.base.bounds.times.clock import StoppedClock, on_stopped_clock


def pauses(rounds: int, random: float, *, has_room: bool = False) -> list[float]:
    """Between being crowded and listing again, each time."""
    found: list[float] = []

    async def body(loop: StoppedClock) -> bool:
        listed: list[str] = []
        crowding = Crowding("policies", listed.append, lambda: random)
        for _ in range(rounds):
            crowding.note("pods")
            crowding.note("policies")
            began_s = loop.now_s
            while not listed:
                await loop.pass_by(FIRST_S / 4)
            found.append(loop.now_s - began_s)
            assert listed == ["pods", "policies"]
            listed.clear()
            if has_room:
                crowding.hear_list()
        await loop.pass_by(4 * LONGEST_S)
        assert not listed, "nothing had no room since"
        return True

    on_stopped_clock(body)
    return found


def test_kinds_without_room_are_listed_again_ever_more_seldom() -> None:
    assert pauses(5, 0.0) == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, LONGEST_S, LONGEST_S]


def test_nodes_that_were_crowded_in_one_moment_ask_at_different_times() -> None:
    assert pauses(1, 0.5) == [1.5 * FIRST_S]


def test_once_all_had_room_the_first_pause_is_short_again() -> None:
    assert pauses(3, 0.0, has_room=True) == [FIRST_S] * 3
