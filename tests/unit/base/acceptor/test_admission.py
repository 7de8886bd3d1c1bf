"""Who is let in, in what order, and who has to leave: in seconds that are passed in."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.acceptor.admission import Admission, Patience, SourceCapacity

_ROOM = SourceCapacity(
    waiting=8, waiting_of_one=5, inside=4, inside_of_one=2, rate=(1e9, 1e9), rate_of_one=(1e9, 1e9)
)
_PATIENCE = Patience(first_s=10, turn_s=30, hurried_s=3, longest_s=60)


def admission(**changes: tuple[float, float]) -> Admission[str]:
    room = SourceCapacity(
        **{**{key: getattr(_ROOM, key) for key in SourceCapacity.__slots__}, **changes}
    )
    return Admission(room, room, _PATIENCE)


def come(into: Admission[str], source: bytes, *names: str, now_s: float = 0.0) -> list[str]:
    """Those who left for them."""
    left = []
    for name in names:
        left.append(into.arrive(name, source, now_s))
        into.has_sent(name)
    return [name for name in left if name is not None]


def let_in(into: Admission[str], now_s: float = 0.0) -> list[str]:
    found = []
    while (name := into.take(now_s)) is not None:
        found.append(name)
    return found


def test_whoever_says_nothing_is_never_let_in_and_leaves_in_ten_seconds() -> None:
    into = admission()
    into.arrive("silent", b"a", 0.0)
    assert let_in(into) == []
    assert into.take_overdue(9.9) == []
    assert into.take_overdue(10.0) == ["silent"]
    assert into.is_empty


def test_the_newest_of_a_source_comes_first_and_no_source_takes_all_places() -> None:
    into = admission()
    come(into, b"a", "a1", "a2", "a3")
    come(into, b"b", "b1")
    assert let_in(into) == ["b1", "a3", "a2"]
    into.leave("a3")
    assert let_in(into) == ["a1"]


def test_those_from_where_members_come_have_places_of_their_own() -> None:
    into = admission()
    into.know(b"site")
    come(into, b"a", "a1", "a2", "a3")
    come(into, b"b", "b1", "b2", "b3")
    assert len(let_in(into)) == 4
    come(into, b"site", "s1")
    assert let_in(into) == ["s1"]
    assert into.inside == 5


def test_those_that_ask_nothing_leave_sooner_where_others_wait_for_their_place() -> None:
    into = admission()
    come(into, b"a", "a1", "a2", "a3", "a4")
    assert let_in(into) == ["a4", "a3"]
    into.has_asked("a3")
    assert into.take_overdue(2.9) == []
    assert into.take_overdue(3.0) == ["a4"]
    assert let_in(into, 3.0) == ["a2"]
    into.leave("a1")
    assert into.take_overdue(12.9) == []
    assert into.take_overdue(13.0) == ["a2"]
    assert into.take_overdue(59.9) == []
    assert into.take_overdue(60.0) == ["a3"]


def test_a_flood_of_one_source_does_not_take_another_s_turns() -> None:
    into = admission(rate=(10, 10), rate_of_one=(1, 2))
    come(into, b"a", *(f"a{number}" for number in range(5)))
    assert let_in(into) == ["a4", "a3"]
    into.leave("a4")
    into.leave("a3")
    assert let_in(into) == []  # there is place, and it is not its turn
    come(into, b"b", "b1")
    assert let_in(into) == ["b1"]
    assert let_in(into, 1.0) == ["a2"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "send", "take", "ask", "leave", "know", "overdue"]),
            st.integers(0, 40),
            st.sampled_from([b"a", b"b", b"c"]),
        ),
        max_size=120,
    )
)
def test_nobody_is_lost_and_no_bound_is_passed(steps: list[tuple[str, int, bytes]]) -> None:
    into = admission(rate=(1, 3), rate_of_one=(1, 2))
    here: dict[str, bytes] = {}
    inside: set[str] = set()
    for now_s, (step, which, source) in enumerate(steps):
        one = list(here)[which % len(here)] if here else ""
        match step:
            case "arrive":
                left = into.arrive(f"{now_s}", source, now_s)
                here[f"{now_s}"] = source
                if left is not None:
                    assert left not in inside
                    del here[left]
            case "send":
                if one and one not in inside:
                    into.has_sent(one)
            case "take":
                taken = into.take(now_s)
                if taken is not None:
                    assert taken in here
                    assert taken not in inside
                    inside.add(taken)
            case "ask":
                into.has_asked(one)
            case "leave":
                into.leave(one)
                here.pop(one, None)
                inside.discard(one)
            case "know":
                into.know(source)
            case "overdue":
                for gone in into.take_overdue(now_s):
                    del here[gone]
                    inside.discard(gone)
        assert into.inside == len(inside)
        assert into.inside + into.waiting == len(here)
        assert into.waiting <= 2 * _ROOM.waiting
        assert max(Counter(here[each] for each in inside).values(), default=0) <= 4
