"""Whether this machine's clock is right."""

from __future__ import annotations

import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.kubernetes.access.server_clock import WRONG_S, ServerClock, read_date_s

YEAR_S = 365 * 86_400


@given(st.integers(0, 200 * YEAR_S))
def test_dates_are_read_as_the_standard_library_writes_them(at_s: int) -> None:
    assert read_date_s(email.utils.formatdate(at_s, usegmt=True)) == at_s


@pytest.mark.parametrize(
    "text", ["", "now", "Sun, 31 Feb 2021 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 CET"]
)
def test_what_is_no_date_says_nothing(text: str) -> None:
    clock = ServerClock()
    clock.tell(text, 0.0)

    assert read_date_s(text) is None
    assert clock.ahead_s(1e9, 5.0) == 0.0


@given(st.floats(-60 * YEAR_S, 60 * YEAR_S), st.floats(0, YEAR_S))
def test_it_is_known_how_far_a_clock_is_off_also_later_and_until_it_is_set(
    off_s: float, later_s: float
) -> None:
    there_s = 60 * YEAR_S
    clock = ServerClock()
    clock.tell(email.utils.formatdate(there_s, usegmt=True), 100.0)

    found_s = clock.ahead_s(there_s + off_s + later_s, 100.0 + later_s)

    assert found_s == pytest.approx(off_s if abs(off_s) > WRONG_S else 0.0, abs=1)
    assert clock.ahead_s(there_s + later_s, 100.0 + later_s) == 0.0
