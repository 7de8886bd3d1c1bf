"""The walks of ARCHITECTURE.md are what agents do: each step is entered behind the one before it.

The agent's own interpreter tells of the functions that it enters, by a profile of all its threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from limpet.lab.command import run_command
from limpet.lab.world.machine import Machine
from limpet.lab.world.node import LabNode
from limpet.lab.world.world import World
from tests.beds.traffic.silence import Silence
from tests.lab.bed import ONE_LAN, a_world
from tests.unit.test_walks import WALKS, steps
from tests.waiting import PATIENCE_S

ADD, GRANT, PATH = "A CNI ADD.", *(walk for walk in WALKS if walk != "A CNI ADD.")
STRICT = """
table bridge strict {
    chain forward {
        type filter hook forward priority 0
        ip saddr != { 192.168.10.0/24, 203.0.113.0/24 } drop
        ip6 saddr != { fd00:10::/64, 2001:db8:c::/64, fe80::/10 } drop
    }
}
"""
"""Of a switch that lets nobody send but the machines of the LAN and of the cloud."""
PROFILE = """
import os, sys, threading

wanted = {tuple(line.split()) for line in os.environ["WALKED_STEPS"].splitlines()}
names = {function for _, function in wanted}
log = os.open(os.environ["WALKED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_name in names:
        step = frame.f_code.co_filename.rpartition("/limpet/")[2], frame.f_code.co_name
        if step in wanted:
            os.write(log, (" ".join(step) + chr(10)).encode())

sys.setprofile(watch)
threading.setprofile(watch)
"""


class Walker:
    """A node whose agent tells of the steps of all walks."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self._log = folder / "walked"
        (folder / "sitecustomize.py").write_text(PROFILE)
        machine.stop_agent()
        machine.agent_environment = {
            "PYTHONPATH": str(folder),
            "WALKED": str(self._log),
            "WALKED_STEPS": "\n".join(" ".join(step) for walk in WALKS for step in steps(walk)),
        }
        LabNode.start_agent(machine)  # a machine's own would set its clock and nothing else

    def begin(self) -> None:
        self._log.write_text("")

    def goes(self, walk: str) -> None:
        """It has gone all of the walk since it began. Raises: AssertionError."""
        end_s = time.monotonic() + PATIENCE_S
        while left := self._left(walk):
            assert time.monotonic() < end_s, f"{walk} Not entered in its turn: {left[0]}"
            time.sleep(0.05)

    def _left(self, walk: str) -> list[tuple[str, str]]:
        entered = (tuple(line.split()) for line in self._log.read_text().splitlines())
        return left_of(steps(walk), entered)


def left_of(
    wanted: list[tuple[str, str]], entered: Iterable[tuple[str, ...]]
) -> list[tuple[str, str]]:
    """The steps that were not entered, each behind the one before it."""
    left = list(wanted)
    for step in entered:
        if left and step == left[0]:
            del left[0]
    return left


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(ONE_LAN, tmp_path_factory.mktemp("walks")) as world:
        yield world


@pytest.fixture(scope="module")
def walker(world: World, tmp_path_factory: pytest.TempPathFactory) -> Walker:
    return Walker(world.machine("node-1"), tmp_path_factory.mktemp("walked"))


def test_a_walk_whose_steps_come_in_another_order_is_not_gone() -> None:
    one, two, three = ("a.py", "f"), ("b.py", "g"), ("c.py", "h")
    assert left_of([one, two, three], [two, one, one, two, three]) == []
    assert left_of([one, two, three], [two, one, three]) == [two, three]


def test_an_add_goes_as_it_is_written(walker: Walker) -> None:
    walker.begin()
    walker.machine.start_pod("walked")
    walker.goes(ADD)


def test_a_silent_path_goes_as_it_is_written(world: World, walker: Walker) -> None:
    pods = [next(iter(world.machine(name).pods.values())) for name in ("node-1", "node-3")]
    with Silence(*pods, within_s=PATIENCE_S):  # who is talked to is asked often
        walker.begin()
        # No plain route passes any more, and VXLAN does.
        switch = world.wires.switch(walker.machine.site)
        run_command("nft", "-f", "-", netns=switch, stdin=STRICT)
        walker.goes(PATH)


def test_a_changed_grant_goes_as_it_is_written(world: World, walker: Walker) -> None:
    walker.begin()
    world.controller.ask("node.remove", node="node-3")
    walker.goes(GRANT)
