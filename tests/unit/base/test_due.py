"""Things that are due, against a list that is searched."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.rate_limit import DueQueue

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcd"), st.sampled_from([0, 1, 2, 5, math.inf])),
        st.tuples(st.just("drop"), st.sampled_from("abcd"), st.just(0)),
        st.tuples(st.just("take"), st.just(""), st.sampled_from([0, 1, 2, 9])),
    ),
    max_size=40,
)


@given(STEPS)
def test_what_is_due_first_is_taken_once(steps: list[tuple[str, str, float]]) -> None:
    due: DueQueue[str] = DueQueue()
    simple: dict[str, float] = {}
    for verb, item, at_s in steps:
        match verb:
            case "put":
                due.put(item, at_s)
                simple[item] = at_s
            case "drop":
                due.drop(item)
                simple.pop(item, None)
            case _:
                taken = due.take(at_s)
                first_s = min(simple.values(), default=math.inf)
                assert (taken is not None) == (first_s <= at_s)
                if taken is not None:
                    assert simple.pop(taken) == first_s
        assert due.first_s == min(simple.values(), default=math.inf)
