"""The controller's key and a node are stolen, half of the others being away; all is mended."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.lab.bed import ONE_LAN, a_world, is_refused, limpet, remember
from tests.lab.rungs import peer
from tests.lab.thefts.thief import (
    MOLE,
    another_successor,
    grant_for_a_mole,
    known_on,
    steal_key,
    tell_as,
)
from tests.waiting import wait_until


@pytest.fixture
def world(tmp_path: Any) -> Iterator[World]:
    with a_world(ONE_LAN.replace("node-3 = 1", "node-3 = 1, node-4 = 1"), tmp_path) as made:
        yield made


def cluster_of(machine: Machine) -> dict[str, Any]:
    """The cluster's part of what the agent says."""
    found: dict[str, Any] = machine.ask("status")["cluster"]
    return found


def accusations(machine: Machine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster_of(machine)["by_former_keys"]
    return found


def reach_each_other(*machines: Machine) -> bool:
    pods = [next(iter(each.pods.values())) for each in machines]
    return all(
        one.reaches(address.ip, within_s=1)
        for one in pods
        for other in pods
        if one is not other
        for address in other.addresses
    )


def test_a_stolen_key_is_revoked_while_half_of_the_nodes_are_away(world: World) -> None:
    near, late, lost, stolen = (world.machine(f"node-{number}") for number in range(1, 5))
    command = world.controller.command
    key = steal_key(world)
    used_token = world.controller.token()

    # What a thief can do with it before anybody knows.
    stolen.stop_agent()
    tell_as(stolen, grant_for_a_mole(key, era=0))
    stolen.start_agent()
    wait_until(lambda: peer(near, MOLE) and peer(late, MOLE))

    # Half of the nodes are away, and the key is rotated.
    late.stop_agent()
    lost.stop_agent()
    shown = command("controller", "rotate-key")
    wait_until(lambda: cluster_of(near)["rotations"] == 1)
    assert cluster_of(near)["key"] in shown
    assert cluster_of(near)["key"] in command("network", "show")
    assert f"(key {cluster_of(near)['key']})" in limpet(near, "status")
    command("controller", "backup", str(world.folder / "backup"))
    # Nobody has granted the mole: it is withdrawn for all.
    wait_until(lambda: not peer(near, MOLE))

    # One that was away hears of it from a neighbour alone, and lets nothing go meanwhile.
    world.cut("cloud")
    late.start_agent()
    wait_until(lambda: cluster_of(late)["rotations"] == 1 and not peer(late, MOLE))
    wait_until(lambda: reach_each_other(near, late))

    # The thief's own successor: refused by who knows the true one, and told of.
    stolen.stop_agent()
    tell_as(stolen, another_successor(known_on(stolen), key))
    stolen.start_agent()
    for machine in (near, late):
        wait_until(partial(accusations, machine))
        assert "node-4" in {each["by"] for each in cluster_of(machine)["by_former_keys"]}
        assert "SOMEBODY HAS A FORMER KEY OF THE CLUSTER: node-4" in limpet(machine, "status")
        assert cluster_of(machine)["key"] in shown

    # One that was away and meets the thief first is taken in. It is seen, and joins anew.
    near.stop_agent()
    late.stop_agent()
    lost.start_agent()
    wait_until(lambda: cluster_of(lost)["rotations"] == 1)
    assert cluster_of(lost)["key"] not in shown
    world.restore("cloud")
    world.start_agents([near, late])
    lost.stop_agent()
    lost.start_agent()
    assert cluster_of(lost)["key"] not in shown
    wait_until(lambda: "has to join anew" in cluster_of(lost)["controller"]["error"])
    pods = remember(lost)
    command("node", "replace", "node-3")
    lost.stop_agent()
    lost.join(used_token, world.controller.endpoints, "--new-identity")
    lost.start_agent()
    assert cluster_of(lost)["key"] in shown
    wait_until(lambda: reach_each_other(near, late, lost))
    assert remember(lost) == pods

    # The stolen node: removed, by who hears the cloud and who does not.
    stolen_uid = cluster_of(stolen)["uid"]
    segments = {each["prefix"] for each in stolen.ask("status")["segments"]}
    late.stop_agent()
    command("node", "remove", "node-4")
    wait_until(lambda: not peer(near, "node-4"))
    world.cut("cloud")
    late.start_agent()
    wait_until(lambda: not peer(late, "node-4"))
    world.restore("cloud")
    assert not reach_each_other(near, stolen)
    assert not reach_each_other(late, stolen)
    resting = [
        each
        for each in world.controller.ask("segment.list")["segments"]
        if each["segment"] in segments
    ]
    assert resting
    assert all(each["resting_since_s"] is not None for each in resting)
    assert stolen_uid in {each["uid"] for each in resting}
    # With the key of before it does not get in again, nor with a token that was used.
    stolen.stop_agent()
    refused = is_refused(
        lambda: stolen.join(used_token, world.controller.endpoints, "--new-identity")
    )
    assert "was used by another node" in refused
