"""Time that passes while the machine's clock is set."""

from __future__ import annotations

from dataclasses import dataclass

from limpet.controller.orchestrator.node_keeper.grace_clock import GraceClock


@dataclass
class Machine:
    clock_s: float = 1000.0
    passed_s: float = 5.0

    def wait(self, s: float, *, set_by_s: float = 0.0) -> None:
        self.clock_s += s + set_by_s
        self.passed_s += s

    def clock(self) -> GraceClock:
        return GraceClock(lambda: self.clock_s, lambda: self.passed_s)


def test_the_lead_is_as_long_as_what_has_passed_whatever_the_clock_was_set_to() -> None:
    machine = Machine()
    clock = machine.clock()

    for set_by_s in (0.0, 10_800.0, -32_400.0):
        machine.wait(10.0, set_by_s=set_by_s)
        clock.look()
        assert clock.now_s == machine.clock_s
        assert clock.now_s - clock.led_since_s == machine.passed_s - 5.0


def test_a_clock_that_is_set_forward_is_seen_once() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wait(600.0, set_by_s=0.5)
    clock.look()
    assert clock.set_at_s is None

    machine.wait(10.0, set_by_s=10_800.0)
    clock.look()
    assert clock.set_at_s == machine.clock_s
    machine.wait(10.0)
    clock.look()
    assert clock.set_at_s == machine.clock_s - 10.0


def test_a_clock_that_is_set_back_makes_nothing_older() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wait(10.0, set_by_s=-32_400.0)
    clock.look()
    assert clock.set_at_s is None
