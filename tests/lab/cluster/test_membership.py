"""Nodes that are removed, replaced, or there twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from limpet.lab.command import run_command
from limpet.lab.world.world import World
from tests.lab.bed import ONE_LAN, a_world, findings, is_refused, limpet, remember, routes
from tests.waiting import wait_until

NODES = ONE_LAN.replace("node-3 = 1", "node-3 = 1, node-4 = 1, node-5 = 1, node-6 = 1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Each test has nodes of its own in it."""
    with a_world(NODES, tmp_path_factory.mktemp("membership")) as made:
        yield made


def reaches(world: World, source: str, target: str) -> bool:
    """Whether any address of the first node's pod is answered by the second's."""
    (pod,) = world.machine(source).pods.values()
    (peer,) = world.machine(target).pods.values()
    return any(pod.reaches(address.ip, within_s=1) for address in peer.addresses)


def test_a_removed_node_is_refused_by_who_heard_of_it_from_a_neighbour_alone(world: World) -> None:
    """Node 2 sleeps while node 3 is removed, and wakes up when the cloud is cut."""
    first, second, third = (world.machine(f"node-{n}") for n in (1, 2, 3))
    segments = {each["prefix"] for each in third.ask("status")["segments"]}
    second.stop_agent()
    third.stop_agent()

    world.controller.command("node", "remove", "node-3")
    wait_until(lambda: segments.isdisjoint({*routes(first, 4), *routes(first, 6)}))
    world.cut("cloud")
    second.start_agent()

    wait_until(lambda: segments.isdisjoint({*routes(second, 4), *routes(second, 6)}))
    third.start_agent()  # with its old grant
    wait_until(lambda: third.ask("status")["cluster"]["removed"])
    assert not reaches(world, "node-3", "node-1")
    assert not reaches(world, "node-3", "node-2")
    assert not reaches(world, "node-1", "node-3")
    wait_until(lambda: reaches(world, "node-1", "node-2"))
    world.restore("cloud")
    third.stop_agent()
    third.start_agent()
    wait_until(lambda: third.ask("status")["cluster"]["removed"])
    assert not reaches(world, "node-3", "node-1")


def test_a_dead_machine_is_replaced_by_new_hardware(world: World) -> None:
    dead = world.machine("node-4")
    segments = [each["prefix"] for each in dead.ask("status")["segments"]]
    pods = remember(dead)
    reported = [pod.name for pod in dead.pods.values()]
    wait_until(lambda: all(n in world.controller.command("pod", "list") for n in reported))
    dead.power_off()
    shutil.rmtree(dead.disk / "state")
    shutil.rmtree(dead.disk / "networks")

    world.controller.command("node", "replace", "node-4")
    dead.create()
    dead.join(world.controller.token(), world.controller.endpoints)
    dead.start_agent()
    for name in dead.wanted_pods:
        dead.attach(name)

    assert [each["prefix"] for each in dead.ask("status")["segments"]] == segments
    assert remember(dead) == pods
    wait_until(lambda: reaches(world, "node-1", "node-4") and reaches(world, "node-4", "node-1"))


def test_a_cloned_disk_is_told_loudly_and_says_nothing_any_more(world: World) -> None:
    original, copy = world.machine("node-5"), world.machine("node-6")
    copy.stop_agent()
    shutil.rmtree(copy.disk / "state" / "cluster")
    shutil.copytree(original.disk / "state" / "cluster", copy.disk / "state" / "cluster")

    copy.start_agent()

    wait_until(lambda: any(m.ask("status")["cluster"]["cloned"] for m in (original, copy)))
    assert "another machine has this node's identity" in original.log() + copy.log()
    told = [findings(m).get("identity-cloned", "") for m in (original, copy)]
    assert any("another machine has this node's identity" in words for words in told)


def test_a_token_lets_one_node_in_once(world: World) -> None:
    node = world.machine("node-1")
    token = world.controller.token()

    words = is_refused(lambda: node.join(token, world.controller.endpoints))

    assert "joined" in words
    assert "--new-identity" in words


def test_a_node_is_told_where_its_controller_moved_and_goes_on_there(world: World) -> None:
    node, cloud = world.machine("node-1"), world.wires.cloud
    run_command("ip", "address", "add", "203.0.113.9/24", "dev", "eth0", netns=cloud)
    try:
        said = limpet(node, "join", "--controller", "203.0.113.9:7470")
        assert said.startswith("node-1 asks its controller at 203.0.113.9:7470 now")
        is_there = {"address": "203.0.113.9:7470", "connected": True}
        wait_until(lambda: is_there.items() <= node.ask("status")["cluster"]["controller"].items())
        node.stop_agent()
        node.start_agent()
        wait_until(lambda: is_there.items() <= node.ask("status")["cluster"]["controller"].items())
        assert "Nothing was changed" in is_refused(
            lambda: limpet(node, "join", "--controller", "203.0.113.8:7470")
        )
    finally:
        limpet(node, "join", *(f"--controller={each}" for each in world.controller.endpoints))
        run_command("ip", "address", "del", "203.0.113.9/24", "dev", "eth0", netns=cloud)
