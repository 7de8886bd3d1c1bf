"""`limpet trace` in a world of real agents, with a fault of each kind."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from limpet.lab.command import run_command
from limpet.lab.launch import launcher
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from tests.lab.bed import TWO_SITES, a_world, echoing
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TWO_SITES, tmp_path_factory.mktemp("trace")) as world:
        yield world


def pod_of(machine: Machine) -> LabPod:
    (pod,) = machine.pods.values()
    return pod


def address(machine: Machine, version: int = 4) -> str:
    found = (each.ip for each in pod_of(machine).addresses)
    return next(str(each) for each in found if each.version == version)


def trace(machine: Machine, *words: str) -> dict[str, Any]:
    """The answer, whatever the exit code, which has to say the same."""
    command = ("trace", *words, "--output", "json", "--config", str(machine.config_path))
    inside = ("nsenter", f"--net={machine.netns_path}")
    done = launcher().run([*inside, sys.executable, "-m", "limpet", *command])
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == (found["arrived"] is True)
    return found


def leaves_nothing(machine: Machine) -> bool:
    return "limpet_trace" not in machine.run("nft", "list", "tables")


def links(found: dict[str, Any]) -> list[str]:
    return [each["link"] for each in found["stations"]]


@pytest.mark.parametrize("version", [4, 6])
def test_a_packet_that_arrives_is_followed_station_by_station(world: World, version: int) -> None:
    near, far, pod = world.machine("crane-1"), world.machine("digger-1"), "crane-1-pod-0"

    found = trace(near, pod, address(far, version))

    assert found["conclusion"] == "it arrived, and it answered"
    assert any(link.startswith("lim") for link in links(found))
    assert "limpet0" in links(found)
    assert leaves_nothing(near)


def test_a_port_is_asked_for_real(world: World) -> None:
    near, far = world.machine("crane-1"), world.machine("crane-2")
    ends = address(near), address(far)
    with echoing(pod_of(far).netns_path.rpartition("/")[2]):
        for protocol, said in (("tcp", "the connection was taken"), ("udp", "it answered")):
            found = trace(near, *ends, "--port", "7", "--protocol", protocol)
            assert found["conclusion"] == f"it arrived, and {said}"
    found = trace(near, *ends, "--port", "7")
    assert found["conclusion"] == "it arrived, and it answered that nobody listens at that port"


def test_a_policy_that_drops_is_named_with_its_rule(world: World) -> None:
    near, far = world.machine("crane-1"), world.machine("crane-2")
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "none", "namespace": pod_of(near).namespace},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": []},
    }
    near.ask("policy.apply", documents=[policy])
    try:
        found = trace(near, address(near), address(far), "--within", "1")
    finally:
        near.ask("policy.delete", namespace=pod_of(near).namespace, name="none")
    assert found["arrived"] is False
    assert "limpet_policy" in found["conclusion"]
    assert found["stations"][-1]["stopped"]


def test_a_rule_of_others_that_drops_forwarded_packets_is_named(world: World) -> None:
    near, far = world.machine("crane-1"), world.machine("digger-1")
    near.run("nft", "add table inet theirs { chain f { type filter hook forward priority 0; }; }")
    near.run("nft", f"add rule inet theirs f ip daddr {address(far)} drop")
    try:
        found = trace(near, address(near), address(far), "--within", "1")
    finally:
        near.run("nft", "delete table inet theirs")
    rule = f"rule `ip daddr {address(far)} drop` of nftables table inet theirs, chain f"
    assert found["conclusion"] == f"stopped on this node by {rule}"
    stopped = found["stations"][-1]
    assert (stopped["words"], stopped["by"]) == ("forwarding, after routing", rule)


def test_port_security_that_stops_a_pod_with_another_mac_is_named(world: World) -> None:
    near, far = world.machine("crane-1"), world.machine("digger-1")
    inside = pod_of(near).netns_path.rpartition("/")[2]
    (link,) = json.loads(run_command("ip", "-j", "link", "show", "dev", "eth0", netns=inside))
    set_mac = ("ip", "link", "set", "eth0", "address")
    run_command(*set_mac, "02:00:00:00:00:77", netns=inside)
    run_command("ip", "neigh", "flush", "dev", "eth0", netns=inside)
    try:
        found = trace(near, address(near), address(far))
    finally:
        run_command(*set_mac, link["address"], netns=inside)
    assert "limpet_ports" in found["conclusion"]
    assert "its gateway's MAC" in found["conclusion"]
    assert "not its own" in found["advice"]


@contextlib.contextmanager
def without_agent(machine: Machine) -> Iterator[None]:
    """Nobody mends what is done to the node meanwhile."""
    machine.stop_agent(signal.SIGKILL)
    try:
        yield
    finally:
        machine.start_agent()


def test_a_route_that_is_missing_is_told_without_an_agent_too(world: World) -> None:
    near, far = world.machine("crane-2"), world.machine("digger-1")
    with without_agent(near):
        near.run("ip", "route", "flush", "table", "5148", "proto", "148")
        found = trace(near, address(near), address(far), "--within", "1")
    assert found["arrived"] is False
    assert f"routing dropped it: no route leads to {address(far)}" in found["conclusion"]
    assert "says unreachable" in found["conclusion"]


def test_an_interface_that_is_down_is_told(world: World) -> None:
    near, far = world.machine("crane-2"), world.machine("digger-1")
    (link,) = [each for each in near.links() if re.fullmatch("lim[0-9a-f]{12}", each)]
    with without_agent(near):
        near.run("ip", "link", "set", link, "down")
        found = trace(near, address(near), address(far), "--within", "1")
        near.run("ip", "link", "set", link, "up")
    assert found["conclusion"] == f"nothing left the pod: its host end {link} is down"


def test_where_the_sender_is_elsewhere_its_packets_are_waited_for(world: World) -> None:
    near, far = world.machine("crane-1"), world.machine("digger-1")
    ends = address(near), address(far)
    assert trace(far, *ends, "--within", "0.2")["conclusion"] == "nothing came to this node"

    far.run("nft", "add table inet theirs { chain f { type filter hook forward priority 0; }; }")
    far.run("nft", f"add rule inet theirs f ip daddr {ends[1]} drop")
    try:
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(trace, far, *ends, "--within", "4")
            wait_until(lambda: "limpet_trace" in far.run("nft", "list", "tables"))
            sent = trace(near, *ends, "--within", "1")
            found = waiting.result()
    finally:
        far.run("nft", "delete table inet theirs")
    assert sent["arrived"] is None
    assert "node digger-1 answers probes" in sent["conclusion"]
    assert "on digger-1, which waits for packets" in sent["advice"]
    assert f"ip daddr {ends[1]} drop" in found["conclusion"]


def test_a_trace_that_is_killed_leaves_nothing(world: World) -> None:
    near, far = world.machine("crane-1"), world.machine("digger-1")
    ends = address(far), address(near)
    words = (*ends, "--within", "60", "--config", str(near.config_path))
    process = subprocess.Popen(
        ["nsenter", f"--net={near.netns_path}", sys.executable, "-m", "limpet", "trace", *words],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: not leaves_nothing(near))
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: leaves_nothing(near))


def test_a_tunnel_that_is_down_and_a_node_that_is_silent_are_told(world: World) -> None:
    """The last: what it does to the world stays."""
    near, far = world.machine("crane-1"), world.machine("digger-1")
    ends = address(near), address(far)
    world.controller.command("network", "set", "--encryption", "all")

    def through_tunnel() -> str:
        found = trace(near, *ends)
        names = [each for each in links(found) if each.startswith("limwg")]
        return names[0] if found["arrived"] and names else ""

    tunnel = wait_until(through_tunnel, "packets go by the tunnel")

    near.stop_agent(signal.SIGKILL)
    near.run("ip", "link", "set", tunnel, "down")
    found = trace(near, *ends, "--within", "1")
    assert f"no route leads to {ends[1]}" in found["conclusion"]
    assert f"{tunnel} is down" in found["conclusion"]
    near.start_agent()
    wait_until(through_tunnel, "the agent has the tunnel again")

    far.stop_agent(signal.SIGKILL)
    far.run("ip", "link", "set", "eth0", "down")
    found = trace(near, *ends, "--within", "1")
    assert found["arrived"] is False
    assert "node digger-1 is silent" in found["conclusion"]
    assert "limpet path" in found["advice"]
