"""Errors that nobody has foreseen: got over and counted; what ends a task ends it."""

from __future__ import annotations

import asyncio

import pytest

from limpet.base import faults


def test_what_fails_is_counted_by_its_part_and_what_follows_is_done() -> None:
    before = faults.counts["a part"]
    done = []
    for number in range(3):
        with faults.noted("a part"):
            if number == 1:
                raise ValueError("not foreseen")
            done.append(number)

    assert done == [0, 2]
    assert faults.counts["a part"] == before + 1


@pytest.mark.parametrize("end", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_what_ends_a_task_or_the_process_is_no_fault(end: type[BaseException]) -> None:
    before = faults.counts["a part"]
    with pytest.raises(end), faults.noted("a part"):
        raise end

    assert faults.counts["a part"] == before
