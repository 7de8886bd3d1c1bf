"""Events that are to be written: equal ones counted, floods held off, none lost while waiting."""

from __future__ import annotations

import math

from limpet.controller.orchestrator.event_backlog import (
    MOST,
    REPEAT_S,
    About,
    Backlog,
    Key,
    node,
)


def key(message: str = "joined", name: str = "edge-1") -> Key:
    return (node(name), "Normal", "Joined", message)


def write(backlog: Backlog, now_s: float) -> int:
    """The count that was written."""
    entry = backlog.take(now_s)
    assert entry is not None
    backlog.written(entry, entry.count, now_s)
    return entry.count


def test_one_is_written_at_once_and_once() -> None:
    backlog = Backlog()
    backlog.add(key(), 100.0, 1e9)

    assert write(backlog, 100.0) == 1
    assert backlog.take(1000.0) is None
    assert math.isinf(backlog.first_s)


def test_repetitions_are_counted_and_written_together() -> None:
    backlog = Backlog()
    backlog.add(key(), 100.0, 1e9)
    write(backlog, 100.0)
    for second in range(50):
        backlog.add(key(), 100.0 + second, 1e9 + second)

    assert backlog.take(100.0 + REPEAT_S - 1) is None
    assert write(backlog, 100.0 + REPEAT_S) == 51


def test_what_comes_while_it_is_written_is_written_later() -> None:
    backlog = Backlog()
    backlog.add(key(), 0.0, 0.0)
    entry = backlog.take(0.0)
    assert entry is not None
    count = entry.count
    backlog.add(key(), 0.1, 0.1)
    backlog.written(entry, count, 0.2)

    assert backlog.take(1.0) is None
    assert write(backlog, 0.2 + REPEAT_S) == 2


def test_one_object_cannot_flood_and_takes_nothing_from_others() -> None:
    backlog = Backlog()
    for number in range(1000):
        backlog.add(key(f"{number}"), 0.0, 0.0)
    backlog.add(key(name="edge-2"), 0.0, 0.0)

    written = 0
    while (entry := backlog.take(0.0)) is not None:
        backlog.written(entry, entry.count, 0.0)
        written += 1
        last = entry.key[0]
    assert written < 50
    assert backlog.dropped == 1000 - (written - 1)
    assert last == node("edge-2")


def test_however_many_there_are_a_bounded_number_waits() -> None:
    backlog = Backlog()
    for number in range(3 * MOST):
        backlog.add(key(name=f"edge-{number}"), 0.0, 0.0)

    assert backlog.dropped == 2 * MOST
    while (entry := backlog.take(0.0)) is not None:
        backlog.written(entry, entry.count, 0.0)
    backlog.add(key(name="later"), 1.0, 0.0)
    assert write(backlog, 1.0) == 1


def test_what_could_not_be_written_comes_again_until_it_is_given_up() -> None:
    backlog = Backlog()
    backlog.add(key(), 0.0, 0.0)
    entry = backlog.take(0.0)
    assert entry is not None
    backlog.again(entry, 5.0)
    assert backlog.take(4.0) is None
    backlog.add(key(), 4.0, 4.0)
    again = backlog.take(5.0)
    assert again is entry
    assert again.count == 2
    backlog.give_up(again)
    assert backlog.take(100.0) is None
    assert backlog.dropped == 1


def test_a_node_is_found_by_its_name_where_its_uid_is_not_known() -> None:
    assert node("edge-1") == About("Node", "edge-1", "edge-1")
    assert node("edge-1", "5b0c") == About("Node", "edge-1", "5b0c")
