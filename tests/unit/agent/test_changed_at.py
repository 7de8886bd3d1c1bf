"""Since when a way is as it is, on a machine whose clock is set."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.agent.happenings.changed_at import ChangedAt


@dataclass
class Machine:
    clock_s: float = 20.0
    """As without a battery: 1970."""
    passed_s: float = 12.0

    def wait(self, s: float, *, set_by_s: float = 0.0) -> None:
        self.clock_s += s + set_by_s
        self.passed_s += s

    def changed_at(self) -> ChangedAt:
        return ChangedAt(lambda: self.clock_s, lambda: self.passed_s)


def test_a_moment_moves_with_the_clock_that_is_set() -> None:
    machine = Machine()
    changed_at = machine.changed_at()
    changed_at.note("u1")
    assert changed_at.get("u1") == 20

    machine.wait(30.0, set_by_s=1_000_000.0)
    assert changed_at.get("u1") == 1_000_020
    machine.wait(30.0, set_by_s=-32_400.0)
    assert changed_at.get("u1") == 1_000_020 - 32_400
    changed_at.note("u1")
    assert changed_at.get("u1") == int(machine.clock_s)


def test_what_is_told_is_the_same_while_time_only_passes() -> None:
    machine = Machine()
    changed_at = machine.changed_at()
    changed_at.note("u1")
    told = changed_at.get("u1")
    for _ in range(50):
        machine.wait(7.77, set_by_s=0.01)
        assert changed_at.get("u1") == told


def test_a_clock_before_1970_is_no_figure_below_zero() -> None:
    machine = Machine()
    changed_at = machine.changed_at()
    changed_at.note("u1")
    machine.wait(50.0, set_by_s=-60.0)
    assert changed_at.get("u1") == 0


def test_who_did_not_change_or_is_gone_has_no_moment() -> None:
    changed_at = Machine().changed_at()
    changed_at.note("u1")
    changed_at.forget("u1")
    assert (changed_at.get("u1"), changed_at.get("u2")) == (None, None)
