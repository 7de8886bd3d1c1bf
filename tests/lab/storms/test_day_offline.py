"""24 hours without the cloud, compressed: pods, agents and nodes come and go, labels change, and
nobody tells any node of it but its neighbours. In the end each Service leads to who is there, and
to all of them, names say so too, and policies hold for every pod, in both IP versions.

An hour is made of what happens in it, and of holds and timers that expire: addresses rest for a
second, and all is looked at every second.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from errno import EINPROGRESS
from pathlib import Path
from random import Random

import dns.rcode
import pytest

from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from limpet.services.kept_here import HERE_FILE
from limpet.services.values import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort
from tests.beds.namespaces import Netns
from tests.beds.traffic.tcp import fetch, serving
from tests.dns.test_process import Serving, ask, values
from tests.effort import effort
from tests.lab.bed import a_world
from tests.lab.policies_of_all_nodes import asked
from tests.lab.services import NAME, PORT, TARGET_PORT, tell
from tests.waiting import wait_until

# Addresses of its own: see test_services.py of the sites.
TOPOLOGY = """
[controller]
pod_cidrs = ["10.250.0.0/16", "fd00:250::/48"]
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { crane-1 = 2, crane-2 = 2 }
[site.quarry]
lan = ["192.168.20.0/24", "fd00:20::/64"]
nodes = { digger-1 = 2 }
[agent]
rest_s = 1
resync_s = 1
"""
HOURS = effort(9, 24)
SEED = 10
"""`LIMPET_DAY_SEED` sets another one."""
ADDRESSES = ("10.96.0.7", "fd96::7")
CLOSED_PORT = 8081
CLIENTS, SERVERS = "crane-1", ("crane-2", "digger-1")
OPS = "ops"
"""A namespace whose pods are let in for its label, whatever theirs are."""
POLICIES = f"""
apiVersion: v1
kind: Namespace
metadata: {{ name: {OPS}, labels: {{ team: ops }} }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{ name: web, namespace: default }}
spec:
  podSelector: {{ matchLabels: {{ app: web }} }}
  ingress:
  - from:
    - podSelector: {{ matchLabels: {{ app: client }} }}
    - namespaceSelector: {{ matchLabels: {{ team: ops }} }}
    ports: [{{ port: {TARGET_PORT} }}]
"""
Pods = list[tuple[Machine, LabPod]]


class Day:
    """A world, what happens in it, and what has to be true of it."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.client_node = world.machine(CLIENTS)
        self.servers = [world.machine(name) for name in SERVERS]
        self.pods: Pods = [(each, pod) for each in self.servers for pod in each.pods.values()]
        """Of the Service, as they were in the morning; they keep their addresses."""
        self.clients = {each.name: False for each in self.client_node.pods.values()}
        """Pods of the client's node, and whether a label lets them in."""
        self.jobs = 0

    # What happens

    def pod_goes(self) -> None:
        machine = self.random.choice(self.servers)
        if len(machine.pods) > 1:
            machine.stop_pod(self.random.choice(sorted(x.name for x in machine.pods.values())))

    def pod_comes(self) -> None:
        machine = self.random.choice(self.servers)
        gone = {pod.name for at, pod in self.pods if at is machine} - set(machine.wanted_pods)
        if gone:
            machine.start_pod(self.random.choice(sorted(gone)))

    def job_runs(self) -> None:
        """A pod that nobody knows; its address rests and is another's afterwards."""
        machine = self._any()
        self.jobs += 1
        machine.start_pod(f"job-{self.jobs}")
        machine.stop_pod(f"job-{self.jobs}")

    def label_moves(self) -> None:
        """Who was let in is not any more, or the other way round."""
        self.label(self.random.choice(sorted(self.clients)))

    def label(self, name: str) -> None:
        pod = self.client_node.find_pod(name)
        is_client = self.clients[name] = not self.clients[name]
        change = {"put": {"app": "client"}} if is_client else {"drop": ["app"]}
        self.client_node.ask("pod.label", namespace=pod.namespace, name=name, **change)

    def agent_dies(self) -> None:
        machine = self._any()
        machine.stop_agent(signal.SIGKILL)
        machine.start_agent()

    def agent_is_upgraded(self) -> None:
        machine = self._any()
        machine.stop_agent()
        machine.start_agent()

    def server_boots(self) -> None:
        machine = self.random.choice(self.servers)
        machine.power_off()
        machine.power_on()

    def clients_boot(self) -> None:
        self.client_node.power_off()
        self.client_node.power_on()
        start_ops(self.client_node)

    def _any(self) -> Machine:
        return self.random.choice([*self.servers, self.client_node])

    def hour(self, happens: Callable[[], None]) -> None:
        """Until no address rests any more and every agent has looked at everything since."""
        happens()
        rounds = {each: self._rounds(each) for each in self.world.machines.values()}
        for machine, before in rounds.items():
            wait_until(lambda at=machine: not resting(at), "addresses are free")  # type: ignore[misc]
            wait_until(lambda at=machine, n=before: self._rounds(at) > n, "it has looked")  # type: ignore[misc]

    @staticmethod
    def _rounds(machine: Machine) -> int:
        return int(machine.ask("status")["cluster"]["last_round"]["rounds"])

    # What has to be true

    def there(self) -> Pods:
        """Pods of the Service that run now."""
        named = [(machine, pod.name) for machine, pod in self.pods]
        return [
            (machine, pod)
            for machine in self.servers
            for pod in machine.pods.values()
            if (machine, pod.name) in named
        ]

    def right(self) -> dict[str, bool]:
        """Rotation, by endpoint's address."""
        now = {address for _, pod in self.there() for address in addresses(pod)}
        every = [address for _, pod in self.pods for address in addresses(pod)]
        return {each: each in now for each in every}


def resting(machine: Machine) -> int:
    return sum(int(each["resting"]) for each in machine.ask("status")["segments"])


def addresses(pod: LabPod) -> list[str]:
    return [str(each.ip) for each in pod.addresses]


def start_ops(machine: Machine) -> LabPod:
    pod = machine.pod("ops", container_id=f"ops-{secrets.token_hex(3)}", namespace=OPS)
    pod.add()
    return pod


def items(pods: Pods) -> list[Service | EndpointSlice]:
    """A Service of both IP versions, and one of names alone, of the same pods."""
    ports = (ServicePort("http", "TCP", PORT),)
    found: list[Service | EndpointSlice] = [
        Service("shop", "web", cluster_ips=ADDRESSES, ports=ports, distribution="Even"),
        Service("shop", "heads", cluster_ips=("None",), ports=ports),
    ]
    for name in ("web", "heads"):
        for version in (4, 6):
            ends = tuple(
                Endpoint(str(each.ip), node=machine.label, pod=pod.name)
                for machine, pod in pods
                for each in pod.addresses
                if each.version == version
            )
            ways = (EndpointPort("http", "TCP", TARGET_PORT),)
            found.append(EndpointSlice("shop", f"{name}-{version}", name, version, ways, ends))
    return found


@pytest.fixture
def day(tmp_path: Path) -> Iterator[Day]:
    """All nodes know the Service, and a policy that isolates its pods."""
    seed = int(os.environ.get("LIMPET_DAY_SEED") or SEED)
    print(f"LIMPET_DAY_SEED={seed}")  # noqa: T201 - pytest shows it when the test fails
    with a_world(TOPOLOGY, tmp_path) as world:
        day = Day(world, Random(seed))
        (tmp_path / "policies.yaml").write_text(POLICIES)
        asked(world, "policy", "apply", str(tmp_path / "policies.yaml"))
        for machine, pod in day.pods:
            machine.ask("pod.label", namespace=pod.namespace, name=pod.name, put={"app": "web"})
        (tmp_path / "resolv.conf").write_text("")
        day.client_node.settings |= {"dns": "on", "dns_resolv_conf": f"{tmp_path}/resolv.conf"}
        start_ops(day.client_node)
        for machine in world.machines.values():
            tell(machine, items(day.pods))
        day.label(next(iter(day.clients)))
        yield day


def rotation(machine: Machine) -> dict[str, bool]:
    """By endpoint's address: whether it is drawn."""
    shown = machine.ask("service", name=NAME)["endpoints"]
    return {each["address"]: each["weight"] > 0 for each in shown}


def await_rotation(machine: Machine, right: dict[str, bool]) -> None:
    """Raises: AssertionError with what the node says of each endpoint instead."""
    try:
        wait_until(lambda: rotation(machine) == right)
    except AssertionError:
        shown = machine.ask("service", name=NAME)["endpoints"]
        raise AssertionError(f"{machine.label} has to lead to {right}: {shown}") from None


@pytest.mark.soak
def test_after_24_hours_without_the_cloud_rotation_names_and_policies_are_right(day: Day) -> None:
    await_rotation(day.client_node, dict.fromkeys(day.right(), True))
    for each in day.servers:
        wait_until(lambda at=each: len(at.ask("policy.list")["policies"]) == 1, "it is heard")  # type: ignore[misc]
    day.world.cut("cloud")
    once = [
        *(day.pod_goes, day.pod_comes, day.job_runs, day.label_moves, day.agent_dies),
        *(day.agent_is_upgraded, day.server_boots, day.clients_boot),
    ]
    happens = [*once, *day.random.choices(once, k=HOURS - len(once) - 1)]
    day.random.shuffle(happens)
    for hour, event in enumerate(happens, 1):
        sys.stderr.write(f"hour {hour}: {event.__name__}\n")
        day.hour(event)
    # In the end some are there and some are gone, whatever the day was.
    day.hour(day.pod_goes if len(day.there()) == len(day.pods) else day.label_moves)
    assert 0 < len(day.there()) < len(day.pods)

    right = day.right()
    for machine in day.world.machines.values():
        await_rotation(machine, right)
    names_say(day, {address for address, is_there in right.items() if is_there})
    with ExitStack() as stack:
        for _, pod in day.there():
            stack.enter_context(serving(pod, TARGET_PORT, pod.name))
            stack.enter_context(serving(pod, CLOSED_PORT, "closed"))
        services_lead_to_all(day)
        policies_hold(day)


def names_say(day: Day, there: set[str]) -> None:
    """The process that answers names on the clients' node begins with what the agent knows."""
    netns, node = Netns(day.client_node.name), day.client_node
    with closing(Serving(netns, node.config_path, node.run_dir)) as names:
        names.start()

        def told(name: str) -> set[str]:
            return {x for kind in ("A", "AAAA") for x in values(ask(netns, name, kind))}

        try:
            wait_until(lambda: told("heads.shop.svc.cluster.local.") == there)
        except AssertionError:
            now = told("heads.shop.svc.cluster.local.")
            known = (node.run_dir / HERE_FILE).read_text()
            raise AssertionError(f"names have to say {there}, not {now}: {known}") from None
        assert told("web.shop.svc.cluster.local.") == set(ADDRESSES)
        assert ask(netns, "nobody.shop.svc.cluster.local.").rcode() == dns.rcode.NXDOMAIN


def services_lead_to_all(day: Day) -> None:
    ops = day.client_node.find_pod("ops")
    there = {pod.name for _, pod in day.there()}
    for address in ADDRESSES:
        answers: set[str] = set()

        def all_have_answered(address: str = address, answers: set[str] = answers) -> bool:
            answers.add(fetch(address, PORT, netns=ops.netns))
            return answers >= there

        wait_until(all_have_answered, f"each of {sorted(there)} answers at {address}")
        assert answers == there


def policies_hold(day: Day) -> None:
    """For each client, by its label or its namespace's, and for the Service's own pods."""
    asking = {name: (day.client_node.find_pod(name), may) for name, may in day.clients.items()}
    asking["ops"] = day.client_node.find_pod("ops"), True
    asking |= {pod.name: (pod, False) for _, pod in day.there()}
    wanted: dict[tuple[str, str, int], bool] = {}
    with ExitStack() as stack:
        tried = {}
        for name, (client, may) in asking.items():
            targets = [
                each for _, pod in day.there() if pod is not client for each in addresses(pod)
            ]
            for address in targets:
                for port in (CLOSED_PORT, TARGET_PORT):
                    asked_for = name, address, port
                    wanted[asked_for] = may and port == TARGET_PORT
                    tried[asked_for] = trying(stack, client, address, port)
        allowed = {each for each, may in wanted.items() if may}
        wait_until(lambda: allowed <= connected(tried), "who may is let in")
        # Whoever was not by then was asked no later than those.
        assert connected(tried) == allowed


def trying(stack: ExitStack, client: LabPod, address: str, port: int) -> socket.socket:
    """A connection that is under way."""
    version = 6 if ":" in address else 4
    made = stack.enter_context(Netns(client.netns).open_socket(version, socket.SOCK_STREAM))
    made.setblocking(False)
    assert made.connect_ex((address, port)) == EINPROGRESS
    return made


def connected(tried: dict[tuple[str, str, int], socket.socket]) -> set[tuple[str, str, int]]:
    ready = set(select.select([], tried.values(), [], 0)[1])
    return {
        name
        for name, each in tried.items()
        if each in ready and not each.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    }
