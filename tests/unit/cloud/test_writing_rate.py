"""Whoever changes objects on and on wears out no disk: the whole is written for each change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.bounds.tenants import KEPT_AT_ONCE, KEPT_PER_S
from limpet.cloud.workloads.keeping import WritingRate

WRITINGS = st.lists(
    st.tuples(st.integers(0, KEPT_AT_ONCE.most), st.floats(0, 86_400)), min_size=1, max_size=40
)
"""Size in bytes of each, and how long after the rest that it demands the next one begins."""


@given(WRITINGS)
def test_no_stretch_of_time_has_more_written_than_is_let_pass_in_it(
    writings: list[tuple[int, float]],
) -> None:
    rate, now_s = WritingRate(0.0), 0.0
    written: list[tuple[float, int]] = []
    for size_bytes, later_s in writings:
        written.append((now_s, size_bytes))
        now_s += rate.rest_s(size_bytes, now_s) + later_s
    for first, (began_s, _) in enumerate(written):
        for last in range(first, len(written)):
            ended_s, one_bytes = written[last]
            in_all = sum(size for _, size in written[first : last + 1])
            # The writing by which it is above may be a whole one.
            most = KEPT_AT_ONCE.most + KEPT_PER_S.most * (ended_s - began_s) + one_bytes
            assert in_all <= most * (1 + 1e-9)


@given(st.integers(0, KEPT_AT_ONCE.most), st.integers(1, 1 << 30))
def test_after_a_long_time_all_may_be_written_at_once_again(first: int, second: int) -> None:
    rate = WritingRate(0.0)
    rate.rest_s(first, 0.0)
    rest_s = rate.rest_s(second, KEPT_AT_ONCE.most / KEPT_PER_S.most)
    assert rest_s == WritingRate(0.0).rest_s(second, 0.0)
