"""A relay is stolen: the steps of docs/security.md, while a pair that needs a relay talks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.lab.bed import a_world
from tests.lab.rungs import FAR, NATED, NEAR, peer, the_pod, until_on
from tests.waiting import wait_until

ONE, OTHER = "digger-1", "radio-1"
"""Their NATs cannot be opened for each other."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with a_world(NATED, tmp_path) as made:
        yield made


def relays(machine: Machine) -> dict[str, bool]:
    """Whether each answers, by its name."""
    found = machine.ask("status")["cluster"]["nat_traversal"]["relays"]["relays"]
    return {each["name"]: each["answers"] for each in found}


def reaches(machine: Machine, other: Machine) -> bool:
    addresses = the_pod(other).addresses
    return all(the_pod(machine).reaches(each.ip, within_s=1) for each in addresses)


def test_pairs_leave_a_stolen_relay_and_nobody_goes_back_to_it(world: World) -> None:
    one, other, stolen = (world.machine(name) for name in (ONE, OTHER, NEAR))
    until_on(world, ONE, OTHER, "relay")
    wait_until(lambda: relays(one).get(FAR) and relays(other).get(FAR), "another relay is there")

    world.controller.command("node", "set", NEAR, "--remove-role", "relay")
    wait_until(
        lambda: peer(one, OTHER)["relay"] == peer(other, ONE)["relay"] == FAR,
        "the pair names the other relay, at both ends",
    )
    wait_until(lambda: reaches(one, other), "and its pods reach each other")
    assert NEAR not in {**relays(one), **relays(other)}

    world.controller.command("node", "remove", NEAR)
    wait_until(lambda: not peer(one, NEAR) and not peer(other, NEAR), "it is no peer any more")
    assert not reaches(stolen, one)
    assert not reaches(one, stolen)
    wait_until(lambda: reaches(one, other), "they reach each other still")
    wait_until(lambda: reaches(other, one), "and back")
