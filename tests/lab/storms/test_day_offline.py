"""24 hours without the cloud, compressed: pods, agents and nodes come and go, and nobody tells any
node of it but its neighbours. In the end each Service leads to who is there, and to all of them,
and policies hold for every pod."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from limpet.lab.command import LabError
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from tests.beds.traffic.tcp import fetch, serving
from tests.lab.bed import a_world
from tests.lab.services import ADDRESS, NAME, PORT, TARGET_PORT, ipv4, tell, web
from tests.waiting import wait_until

# Addresses of its own: see test_services.py of the sites.
TOPOLOGY = """
[controller]
pod_cidrs = ["10.250.0.0/16", "fd00:250::/48"]
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { crane-1 = 1, crane-2 = 2 }
[site.quarry]
lan = ["192.168.20.0/24", "fd00:20::/64"]
nodes = { digger-1 = 2 }
"""
SEED, HOURS = 10, 24
CLOSED_PORT = 8081
SERVERS = ("crane-2", "digger-1")


def policy(client: LabPod) -> dict[str, Any]:
    """To servers' one port, for the client alone."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [
                {
                    "from": [{"ipBlock": {"cidr": f"{ipv4(client)}/32"}}],
                    "ports": [{"port": TARGET_PORT}],
                }
            ],
        },
    }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """All nodes know a Service of the servers' pods, which a policy isolates."""
    with a_world(TOPOLOGY, tmp_path) as world:
        client = next(iter(world.machine("crane-1").pods.values()))
        machines = [world.machine(each) for each in SERVERS]
        pods = [(machine, pod) for machine in machines for pod in machine.pods.values()]
        for machine, pod in pods:
            machine.ask("pod.label", namespace=pod.namespace, name=pod.name, put={"app": "web"})
        for machine in machines:
            machine.ask("policy.apply", documents=[policy(client)])
        for machine in world.machines.values():
            tell(machine, web(*pods, distribution="Even"))
        yield world


# What happens


def pod_goes(machine: Machine, random: Random) -> None:
    if len(machine.pods) > 1:
        machine.stop_pod(random.choice([each.name for each in machine.pods.values()]))


def pod_comes(machine: Machine, random: Random) -> None:
    gone = sorted({f"{machine.label}-pod-{n}" for n in range(2)} - set(machine.wanted_pods))
    if gone:
        machine.start_pod(random.choice(gone))


def agent_dies(machine: Machine, _: Random) -> None:
    machine.stop_agent(signal.SIGKILL)
    machine.start_agent()


def agent_is_upgraded(machine: Machine, _: Random) -> None:
    machine.stop_agent()
    machine.start_agent()


def node_boots(machine: Machine, _: Random) -> None:
    machine.power_off()
    machine.power_on()


KINDS: list[Callable[[Machine, Random], None]] = [
    *(pod_goes, pod_comes) * 3,
    *(agent_dies, agent_is_upgraded, node_boots),
]


# What must be true when it is over


def rotation(machine: Machine) -> dict[str, bool]:
    """By pod: whether it is drawn."""
    shown = machine.ask("service", name=NAME)["endpoints"]
    return {each["pod"].rpartition("/")[2]: each["weight"] > 0 for each in shown}


def await_rotation(machine: Machine, right: dict[str, bool]) -> None:
    """Raises: AssertionError with what the node says of each endpoint instead."""
    try:
        wait_until(lambda: rotation(machine) == right)
    except AssertionError:
        shown = machine.ask("service", name=NAME)["endpoints"]
        raise AssertionError(f"{machine.label} has to lead to {right}: {shown}") from None


def is_let_in(client: LabPod, address: str, port: int) -> bool:
    try:
        return bool(fetch(address, port, netns=client.netns))
    except LabError:
        return False


def test_after_24_hours_without_the_cloud_services_and_policies_are_right(world: World) -> None:
    random = Random(SEED)
    client_node = world.machine("crane-1")
    every = {pod.name for name in SERVERS for pod in world.machine(name).pods.values()}
    wait_until(lambda: rotation(client_node) == dict.fromkeys(every, True), "all serve")
    world.cut("cloud")
    for _ in range(HOURS):
        random.choice(KINDS)(world.machine(random.choice((*SERVERS, "crane-1"))), random)

    there = {pod.name: pod for name in SERVERS for pod in world.machine(name).pods.values()}
    assert set() < there.keys() < every, "the day has left some, and not all"
    right = {each: each in there for each in every}
    for machine in world.machines.values():
        await_rotation(machine, right)
    client = next(iter(client_node.pods.values()))
    with ExitStack() as stack:
        for name, pod in there.items():
            stack.enter_context(serving(pod, TARGET_PORT, name))
            stack.enter_context(serving(pod, CLOSED_PORT, "closed"))
        answers: set[str] = set()

        def all_have_answered() -> bool:
            answers.add(fetch(ADDRESS, PORT, netns=client.netns))
            return answers >= there.keys()

        wait_until(all_have_answered, f"each of {sorted(there)} answers")
        assert answers == there.keys()
        for pod in there.values():
            assert is_let_in(client, ipv4(pod), TARGET_PORT)
            assert not is_let_in(client, ipv4(pod), CLOSED_PORT)
            for other in there.values():
                if other is not pod:
                    assert not is_let_in(other, ipv4(pod), TARGET_PORT)
