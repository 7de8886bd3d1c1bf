"""Nodes of the edge reach each other inside a community that they share, on every rung."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from limpet.base.decoding import convert
from limpet.lab.world.controller import LabController
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from limpet.picture.pair import PairDetail, Reach
from tests.lab.bed import a_world, everybody_reaches_everybody, is_refused, limpet, routes
from tests.lab.forging import (
    PORT,
    dropped,
    hearing,
    send_datagram,
    send_in_clear,
    send_in_vxlan,
)
from tests.waiting import wait_until

WORLD = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { crane-1 = 1, crane-2 = 1, crane-3 = 1 }
[site.quarry]
lan = ["192.168.20.0/24", "fd00:20::/64"]
nodes = { digger-1 = 1 }
"""
NODES = ("crane-1", "crane-2", "crane-3", "digger-1")
Command = Callable[..., str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(WORLD, tmp_path_factory.mktemp("communities")) as world:
        yield world


@pytest.fixture
def world(built: World) -> Iterator[World]:
    """Everybody reaches everybody in it, before and after."""
    everybody_reaches_everybody(built)
    yield built
    for community in built.controller.ask("community.list")["communities"]:
        built.controller.command("community", "remove", community["name"], "--all")
    built.controller.command("network", "set", "--default-community", "all")
    everybody_reaches_everybody(built)


def the_pod(machine: Machine) -> LabPod:
    (pod,) = machine.pods.values()
    return pod


def segments(machine: Machine) -> set[str]:
    return {each["prefix"] for each in machine.ask("status")["segments"]}


def peer(machine: Machine, other: Machine) -> dict[str, Any]:
    """The other as the node's agent sees it."""
    found = {each["name"]: each for each in machine.ask("peers")["peers"]}
    document: dict[str, Any] = found[other.label]
    return document


def is_apart(machine: Machine, other: Machine) -> bool:
    """Neither route, nor entry of a VXLAN device, nor path, and the agent says why."""
    known = peer(machine, other)
    held = {*routes(machine, 4), *routes(machine, 6)}
    entries = machine.run("bridge", "fdb", "show") + machine.run("ip", "neigh", "show")
    entries += machine.run("ip", "-6", "neigh", "show")
    macs = {link["address"] for name, link in other.links().items() if name.startswith("limvx")}
    return (
        known["state"] == "apart"
        and "shares no community" in known["why"]
        and held.isdisjoint(segments(other))
        and not any(mac in entries for mac in macs)
        and known["uid"] not in kept_paths(machine)
    )


def kept_paths(machine: Machine) -> str:
    """Empty: it has had none yet."""
    try:
        return (machine.disk / "state/cluster/paths.json").read_text()
    except FileNotFoundError:
        return ""


def settle(world: World, *shared: tuple[str, ...]) -> None:
    """Waits until exactly those who are in one of the tuples together are no strangers."""
    for name in NODES:
        for other in NODES:
            together = any(name in each and other in each for each in shared)
            if name != other and not together:
                one, two = world.machine(name), world.machine(other)
                wait_until(lambda one=one, two=two: is_apart(one, two))  # type: ignore[misc]


def reaches(world: World, source: str, target: str) -> list[bool]:
    """Whether the second's pod answers the first's, IPv4 and IPv6."""
    pod, other = the_pod(world.machine(source)), the_pod(world.machine(target))
    return [pod.reaches(address.ip, within_s=1) for address in other.addresses]


def until_reached(world: World, source: str, target: str) -> None:
    wait_until(lambda: all(reaches(world, source, target)))


NONE = [False, False]


def test_nodes_without_a_shared_community_have_neither_route_nor_vxlan_nor_path(
    world: World,
) -> None:
    command = world.controller.command
    command("community", "create", "cranes", "crane-1", "crane-2")
    command("community", "create", "others", "crane-3", "digger-1")

    settle(world, ("crane-1", "crane-2"), ("crane-3", "digger-1"))

    for source, target in [("crane-1", "crane-3"), ("crane-3", "crane-2"), ("crane-1", "digger-1")]:
        assert reaches(world, source, target) == NONE
        assert reaches(world, target, source) == NONE
    for source, target in [("crane-1", "crane-2"), ("crane-3", "digger-1")]:
        until_reached(world, source, target)
    assert world.machine("crane-1").ask("status")["cluster"]["peers"]["apart"] == 2


def why_not_allowed(asked: Machine | LabController, one: str, other: str) -> str:
    """What the detail of a pair says, on a node or in the cloud, by uids."""

    def detail() -> PairDetail:
        return convert(asked.ask("pair", one=one, other=other), PairDetail)

    def is_not_reached() -> bool:
        found = detail()
        told = {each.way.reach for each in (found.there, found.back) if each is not None}
        return told <= {Reach.NOT_ALLOWED, Reach.UNKNOWN}

    why = detail().why_not_allowed
    if why:  # nodes tell the cloud of their ways a moment later
        wait_until(is_not_reached, "the pair is not told as reached")
    return why


def test_a_pair_that_shares_no_community_says_so_on_either_node_and_in_the_cloud(
    world: World,
) -> None:
    command = world.controller.command
    command("community", "create", "cranes", "crane-1", "crane-2")
    command("community", "create", "others", "crane-3")
    settle(world, ("crane-1", "crane-2"))
    crane, near, far = (world.machine(name) for name in ("crane-1", "crane-2", "crane-3"))
    digger = world.machine("digger-1")

    def pairs_say(one: Machine, other: Machine) -> set[str]:
        uids = peer(other, one)["uid"], peer(one, other)["uid"]
        return {why_not_allowed(asked, *uids) for asked in (one, other, world.controller)}

    assert pairs_say(crane, near) == {""}
    for told in pairs_say(crane, far):
        assert told.startswith("they share no community: ")
        assert "crane-1 is in cranes" in told
        assert "crane-3 is in others" in told
        assert "limpet community add puts nodes into one" in told
    for told in pairs_say(crane, digger):
        assert "crane-1 is in cranes" in told
        assert "digger-1 is in no community" in told


def test_forged_sources_of_a_node_outside_are_dropped_and_counted(world: World) -> None:
    """It is on the same link, or behind a router, and writes what it likes."""
    world.controller.command("community", "create", "cranes", "crane-1", "crane-2")
    settle(world, ("crane-1", "crane-2"), ("crane-3", "digger-1"))
    target, friend = world.machine("crane-1"), world.machine("crane-2")
    victim, honest = the_pod(target), the_pod(friend)

    with hearing(victim) as heard:
        for name in ("crane-3", "digger-1"):
            sender = world.machine(name)
            sources = [
                *(each.ip for each in the_pod(sender).addresses),
                *(each.ip for each in honest.addresses),
                *friend.overlay_addresses(),
                *target.overlay_addresses(),
            ]
            for source in sources:
                before = dropped(target)
                send_in_vxlan(sender, target, source, victim)
                wait_until(lambda: dropped(target) >= before + len(target.addresses))  # noqa: B023
        for own in the_pod(world.machine("crane-3")).addresses:
            before = dropped(target)
            send_in_clear(world.machine("crane-3"), target, own.ip, victim)
            wait_until(lambda: dropped(target) >= before + 1)  # noqa: B023
        send_datagram(honest.netns, victim.addresses[0].ip, PORT, b"honest")

        assert heard.stdout is not None
        assert heard.stdout.readline() == "honest\n"


def test_a_node_that_gets_a_label_while_agents_run_is_let_in_at_once_by_all(world: World) -> None:
    command = world.controller.command
    command("node", "label", "crane-1", "site=harbour")
    command("node", "label", "crane-2", "site=harbour")
    command("community", "create", "harbour", "--selector", "site=harbour,tier!=gate")
    settle(world, ("crane-1", "crane-2"), ("crane-3", "digger-1"))
    rounds = [world.machine(name).agent_pid for name in NODES]

    command("node", "label", "digger-1", "site=harbour")

    until_reached(world, "digger-1", "crane-1")
    until_reached(world, "crane-2", "digger-1")
    settle(world, ("crane-1", "crane-2", "digger-1"))
    assert reaches(world, "digger-1", "crane-3") == NONE

    command("node", "label", "crane-2", "tier=gate")

    settle(world, ("crane-1", "digger-1"), ("crane-2", "crane-3"))
    assert reaches(world, "crane-1", "crane-2") == NONE
    until_reached(world, "crane-2", "crane-3")
    assert [world.machine(name).agent_pid for name in NODES] == rounds
    for name, labels in [("crane-1", ["site-"]), ("crane-2", ["site-", "tier-"])]:
        command("node", "label", name, *labels)
    command("node", "label", "digger-1", "site-")


def test_what_was_said_holds_without_the_cloud_and_over_a_restart(world: World) -> None:
    """A node that slept while it changed hears of it from its neighbours."""
    command = world.controller.command
    command("community", "create", "cranes", "crane-1", "crane-2", "crane-3")
    settle(world, ("crane-1", "crane-2", "crane-3"))
    first, second = world.machine("crane-1"), world.machine("crane-2")
    second.stop_agent()
    command("community", "remove", "cranes", "crane-3")
    wait_until(lambda: is_apart(first, world.machine("crane-3")))
    world.cut("cloud")

    second.start_agent()

    settle(world, ("crane-1", "crane-2"), ("crane-3", "digger-1"))
    assert reaches(world, "crane-2", "crane-3") == NONE
    first.stop_agent()
    first.start_agent()
    until_reached(world, "crane-1", "crane-2")
    settle(world, ("crane-1", "crane-2"), ("crane-3", "digger-1"))
    assert reaches(world, "crane-1", "crane-3") == NONE
    world.restore("cloud")
    wait_until(lambda: first.ask("status")["cluster"]["controller"]["connected"])


def test_the_cloud_is_reached_from_everywhere_whatever_communities_there_are(world: World) -> None:
    command = world.controller.command
    command("community", "create", "cranes", "crane-1", "crane-2")
    command("network", "set", "--default-community", "none")
    settle(world, ("crane-1", "crane-2"))

    command("node", "set", "crane-3", "--role", "cloud")

    for name in ("crane-1", "crane-2", "digger-1"):
        until_reached(world, name, "crane-3")
        until_reached(world, "crane-3", name)
    settle(world, ("crane-1", "crane-2"), *((name, "crane-3") for name in NODES))
    assert reaches(world, "digger-1", "crane-1") == NONE
    command("node", "set", "crane-3", "--role", "edge")
    settle(world, ("crane-1", "crane-2"))
    assert reaches(world, "digger-1", "crane-3") == NONE


def test_without_a_default_community_nodes_in_none_reach_nobody_of_the_edge(world: World) -> None:
    world.controller.command("network", "set", "--default-community", "none")

    settle(world)

    assert reaches(world, "crane-1", "crane-2") == NONE
    assert reaches(world, "crane-1", "digger-1") == NONE
    digger = world.machine("digger-1")
    assert digger.ask("status")["cluster"]["peers"]["apart"] == 3
    (pod,) = world.machine("crane-1").pods.values()
    words = is_refused(lambda: limpet(digger, "path", pod.name, "10.244.0.1"))
    assert "0 other nodes were asked" in words, "nor is told of others' pods"
