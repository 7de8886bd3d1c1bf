"""Which of two other sites serves, when both are reached by the same rung: the one whose round trip
is measured to be short."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from limpet.lab.world.world import World
from tests.lab.bed import a_world
from tests.lab.rungs import until_on
from tests.lab.services import Connecting, endpoints, serving_all, tell, web
from tests.waiting import wait_until

DELAY_MS = 150
"""A round trip of another class (see limpet.paths.ladder.silence) also where a busy machine adds
to the near one's."""
# The far site's name and its node's come first, so that no order of names picks the near one.
TOPOLOGY = f"""
[controller]
pod_cidrs = ["10.248.0.0/16", "fd00:248::/48"]
[cloud]
addresses = ["203.0.113.10/24"]
nodes = {{ hub = 1 }}
relays = ["hub"]
[site.harbour]
lan = ["192.168.10.0/24"]
nat = "cone"
nodes = {{ crane-1 = 1 }}
[site.atoll]
lan = ["192.168.30.0/24"]
nat = "cone"
delay_ms = {DELAY_MS}
nodes = {{ buoy-1 = 1 }}
[site.quarry]
lan = ["192.168.20.0/24"]
nat = "cone"
nodes = {{ digger-1 = 1 }}
"""
NEAR, FAR = "digger-1", "buoy-1"
TAKEN = 50


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("near")) as world:
        machines = [world.machine(name) for name in (FAR, NEAR)]
        pods = [(machine, next(iter(machine.pods.values()))) for machine in machines]
        tell(world.machine("crane-1"), web(*pods))
        yield world


def test_of_two_sites_behind_the_same_rung_the_one_with_the_shorter_round_trip_serves(
    world: World,
) -> None:
    node = world.machine("crane-1")
    client = next(iter(node.pods.values()))
    until_on(world, node.label, NEAR, "tunnel")
    until_on(world, node.label, FAR, "tunnel")
    wait_until(lambda: endpoints(node)[FAR] == (0, "others are nearer"), "the slow one waits")
    assert endpoints(node)[NEAR] == (1, "")

    with serving_all(world, NEAR, FAR), Connecting(client) as connecting:
        connecting.until(NEAR)
        assert {connecting.next().answer for _ in range(TAKEN)} == {NEAR}

        world.machine(NEAR).power_off()
        slow = connecting.until(FAR)
        assert slow.took_s >= 2 * DELAY_MS / 1e3  # its SYN and its answer, there and back

        world.machine(NEAR).power_on()
        wait_until(lambda: endpoints(node)[NEAR] == (1, ""), "it serves again")
        wait_until(lambda: endpoints(node)[FAR] == (0, "others are nearer"), "the slow one waits")
