"""A cloud keeps its own pod network: its pods and those of the edge reach each other by address.

The cloud's pods are attached by the reference plugins bridge and host-local; Limpet's agent on that
node attaches none.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest

from limpet.lab.command import LabError, run_command
from limpet.lab.topology import parse_topology
from limpet.lab.world.machine import Machine
from limpet.lab.world.node import DEFAULT_CONF, LabNode
from limpet.lab.world.pod import LabPod, pings
from limpet.lab.world.world import World
from tests.clients.machine import CHECKOUT, RUNTIMES
from tests.lab.bed import echo, echoing, everybody_reaches_everybody, findings, routes
from tests.waiting import wait_until

WORLD = """
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
nodes = { hub = 0 }
[site.harbour]
lan = ["192.168.10.0/24", "2001:db8:10::/64"]
nat = "port-restricted"
nodes = { crane-1 = 1, crane-2 = 1 }
"""
PLUGINS = RUNTIMES / "usr/lib/cni"
ANOTHERS_FIREWALL = (
    "add table inet others;"
    "add chain inet others forward { type filter hook forward priority 0; policy drop; };"
    'add rule inet others forward iifname "cni0" oifname "cni0" accept;'
)
BEHIND = ("10.1.0.0/16", "fd01::/48")
PORT = 8080

_TELL_WHO = """
import socket, sys
server = socket.create_server(
    ("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True
)
print("up", flush=True)
while True:
    client, address = server.accept()
    client.sendall(address[0].removeprefix("::ffff:").encode())
    client.close()
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Whatever befalls it in a test, everybody reaches everybody in it before the next one."""
    subprocess.run([CHECKOUT / "scripts" / "fetch-runtimes"], check=True)
    name = f"tg{os.getpid()}"
    folder = tmp_path_factory.mktemp("gateway")
    world = World(parse_topology(WORLD, name, "a test"), name, folder / name)
    hub = world.machine("hub")
    hub.settings |= {"cni": False, "allow_forward": True}
    try:
        world.up()
        hub.run("nft", ANOTHERS_FIREWALL)
        behind = [word for prefix in BEHIND for word in ("--behind", prefix)]
        world.controller.command("node", "set", "hub", *behind)
        for number in range(2):
            attach_foreign(hub, f"orders-{number}", folder)
        everybody_reaches_everybody(world)
        yield world
    finally:
        world.down()


def attach_foreign(hub: Machine, name: str, folder: Path) -> LabPod:
    """A pod of the cloud's own network, as a runtime there would attach it."""
    pod = hub.pod(name)
    pod.run("sysctl", "-q", "-w", "net.ipv6.conf.default.accept_dad=0")
    conf = {
        "cniVersion": "1.0.0",
        "name": "cloud",
        "type": "bridge",
        "bridge": "cni0",
        "isDefaultGateway": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(folder / "networks"),
            "ranges": [[{"subnet": "10.1.7.0/24"}], [{"subnet": "fd01:0:0:7::/64"}]],
        },
    }
    done = subprocess.run(
        ["nsenter", f"--net={hub.netns_path}", PLUGINS / "bridge"],
        input=json.dumps(conf),
        env={**hub.cni_environment("ADD", pod), "CNI_PATH": str(PLUGINS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pod.addresses = [ip_interface(ip["address"]) for ip in json.loads(done.stdout)["ips"]]
    return pod


@dataclass(frozen=True)
class Told:
    """What a server in a namespace was asked from."""

    netns: str

    def by(self, client: str, address: object) -> str:
        """The source that the server has seen. Raises: LabError when it was not reached."""
        script = (
            "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 3);"
            "print(s.recv(99).decode())"
        )
        words = (sys.executable, "-c", script, str(address), str(PORT))
        return run_command(*words, netns=client).strip()


@contextlib.contextmanager
def telling_who(netns: str) -> Iterator[Told]:
    process = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{netns}", sys.executable, "-c", _TELL_WHO, str(PORT)],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield Told(netns)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_full_size_packets_get_through_both_ways(world: World) -> None:
    (edge,), cloud = pods_of(world, "crane-1"), pods_of(world, "hub")
    for server, client in ((edge, cloud[0]), (cloud[0], edge)):
        with echoing(server.netns):
            for address in server.addresses:
                assert echo(client.netns, "tcp", address.ip, 300_000) == "same"
                assert echo(client.netns, "udp", address.ip, 4_000) == "same"


def pods_of(world: World, name: str) -> list[LabPod]:
    return [*world.machine(name).pods.values()]


def test_each_side_sees_the_others_pods_by_their_own_addresses(world: World) -> None:
    hub, crane = world.machine("hub"), world.machine("crane-1")
    (edge,), cloud = pods_of(world, "crane-1"), pods_of(world, "hub")
    for prefix in BEHIND:
        version = ip_network(prefix).version
        assert routes(crane, version)[prefix]["dev"] == crane.settings["tunnel_ifname"]
    with telling_who(cloud[0].netns) as in_cloud, telling_who(edge.netns) as at_edge:
        for theirs, own in zip(cloud[0].addresses, edge.addresses, strict=True):
            assert in_cloud.by(edge.netns, theirs.ip) == str(own.ip)
            assert at_edge.by(cloud[0].netns, own.ip) == str(theirs.ip)
            assert in_cloud.by(crane.name, theirs.ip) in map(str, crane.overlay_addresses())
            assert at_edge.by(hub.name, own.ip) in map(str, hub.overlay_addresses())
        at = world.topology.controller_addresses[0].ip
        with telling_who(world.wires.cloud) as outside:  # no pod: masqueraded, as ever
            assert outside.by(edge.netns, at) == str(world.gateway("harbour").public)


def test_the_agent_there_attaches_no_pods_and_leaves_the_other_networks_alone(
    world: World,
) -> None:
    hub = world.machine("hub")
    before = hub.run("ip", "-j", "address", "show", "dev", "cni0")

    with pytest.raises(LabError, match=r"this node attaches no pods.*cni = false"):
        hub.attach("stranger")
    answer = hub.cni("STATUS", conf={**CONF, "cniVersion": "1.1.0"})

    assert answer.exit_code == 1
    assert "cni = false" in answer.document["msg"] + answer.document.get("details", "")
    status = hub.ask("status")
    assert (status["ready"], status["attachments"], status["networks"]) == (True, 0, [])
    assert "chain postrouting" not in hub.run("nft", "list", "table", "inet", "limpet")
    assert not hub.data_dir.exists()
    hub.stop_agent()
    hub.start_agent()
    everybody_reaches_everybody(world)
    assert hub.run("ip", "-j", "address", "show", "dev", "cni0") == before


CONF: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "limpet",
    "type": "limpet",
    "ipam": {"type": "limpet"},
}


def test_without_a_way_to_the_node_what_is_behind_it_is_unreachable_and_never_sent_elsewhere(
    world: World,
) -> None:
    crane = world.machine("crane-1")
    (edge,), cloud = pods_of(world, "crane-1"), pods_of(world, "hub")
    world.cut("cloud")
    crane.stop_agent()
    (crane.disk / "state/cluster/paths.json").unlink()
    crane.start_agent()
    wait_until(lambda: routes_behind(crane) == set())

    for theirs in cloud[0].addresses:
        with pytest.raises(LabError, match=r"No route to host|Network is unreachable"):
            Told(cloud[0].netns).by(edge.netns, theirs.ip)

    world.restore("cloud")
    everybody_reaches_everybody(world)


def test_a_prefix_that_is_taken_away_is_no_longer_reached_and_another_can_not_be_put_over_it(
    world: World,
) -> None:
    crane = world.machine("crane-1")
    (edge,), cloud = pods_of(world, "crane-1"), pods_of(world, "hub")
    command = world.controller.command
    with pytest.raises(LabError, match=r"it overlaps 10\.1\.0\.0/16, which is behind hub"):
        command("node", "set", "crane-2", "--behind", "10.1.7.0/24")
    command("node", "set", "hub", "--remove-behind", BEHIND[0])

    wait_until(lambda: routes_behind(crane) == {BEHIND[1]})
    assert BEHIND[0] not in crane.run("ip", "route", "show", "table", "5148")
    assert not pings(edge.netns, cloud[0].addresses[0].ip, within_s=1)
    assert pings(edge.netns, cloud[0].addresses[1].ip)

    command("node", "set", "hub", "--add-behind", BEHIND[0])
    everybody_reaches_everybody(world)


def test_a_right_node_is_told_from_a_wrong_one_by_what_its_agent_goes_by(world: World) -> None:
    """By prefixes behind other nodes where it is silent, and by the ports that it has read when its
    settings have others by now."""
    crane = world.machine("crane-2")
    wait_until(lambda: routes_behind(crane) == set(BEHIND))
    crane.stop_agent()
    found = findings(crane)
    assert "agent-silent" in found
    assert found.get("not-as-planned") is None
    crane.start_agent()

    mapping = {"hostPort": 7999, "containerPort": 80, "protocol": "udp"}
    pod, conf = crane.pod("open"), {**DEFAULT_CONF, "runtimeConfig": {"portMappings": [mapping]}}
    pod.add(conf=conf)
    before = dict(crane.settings)
    crane.settings["peer_port"] = 7999
    crane.write_config()
    try:
        assert findings(crane).get("host-port-of-node") is None
    finally:
        crane.settings = before
        crane.write_config()
        pod.delete(conf=conf)
        pod.remove()
        del crane.pods["open"]
    everybody_reaches_everybody(world)


def test_a_node_of_no_cluster_that_attaches_no_pods_says_that_it_has_nothing_to_do(
    tmp_path: Path,
) -> None:
    node = LabNode(f"tg{os.getpid()}-lone", tmp_path / "lone", cni=False)
    try:
        node.start_agent()
        status = node.ask("status")
        assert status["ready"] is False
        assert "it has nothing to do (limpet join)" in status["reasons"][0]
    finally:
        node.power_off()


def routes_behind(machine: Machine) -> set[str]:
    """Prefixes behind others that the node has routes to."""
    return {prefix for v in (4, 6) for prefix in routes(machine, v) if prefix in BEHIND}
