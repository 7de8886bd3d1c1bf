"""A pod as a stranger on its node: what it sends to nodes' own ports, and what becomes of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

import pytest

from limpet.cluster.datagrams.peer_datagram import RELAY_MAGIC, BodyKind, Codec
from limpet.cluster.identity import Identity, load_identity
from limpet.datapath.tunnel.key import tunnel_port, tunnel_public_key
from limpet.lab.world.machine import Machine
from limpet.lab.world.world import World
from tests.beds.namespaces import Netns
from tests.claims.claims_bed import counting
from tests.lab.bed import a_world, limpet
from tests.lab.rungs import peer, the_pod, until_on
from tests.lab.strangers import SEND_RAW
from tests.waiting import wait_until

TOPOLOGY = """
[cloud]
addresses = ["203.0.113.10/24"]
nodes = { hub = 1 }
relays = ["hub"]
[site.lan]
lan = ["192.168.10.0/24"]
nodes = { node-1 = 1 }
"""
_SEND = """
import socket, sys
kind, address, port, count, data = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), sys.argv[5]
protocol = {"udp": 0, "esp": 50}[kind]
with socket.socket(socket.AF_INET, socket.SOCK_RAW if protocol else socket.SOCK_DGRAM, protocol) as s:
    for number in range(count):
        s.sendto(bytes.fromhex(data)[:-4] + number.to_bytes(4, "big"), (address, port))
"""  # noqa: E501
_CONNECT = """
import socket, sys
for end in sys.argv[1:]:
    address, _, port = end.rpartition(":")
    try:
        socket.create_connection((address, int(port)), timeout=1).close()
        print(end)
    except OSError:
        pass
"""
ENDS = re.compile(r"\s*\d+: ([0-9A-F]+):([0-9A-F]{4}) \S+ 0A ")
"""Of a listening socket in /proc/net/tcp: address and port."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("stranger")) as made:
        until_on(made, "hub", "node-1", "tunnel")
        yield made


@pytest.fixture(name="hub")
def _hub(world: World) -> Machine:
    return world.machine("hub")


@pytest.fixture(name="node")
def _node(world: World) -> Machine:
    return world.machine("node-1")


def send(node: Machine, kind: str, to: object, port: int, data: bytes, *, count: int) -> None:
    """From its pod; the last four bytes are another each time."""
    words = (kind, str(to), str(port), str(count), data.hex())
    the_pod(node).run(sys.executable, "-c", _SEND, *words)


def address_of(machine: Machine) -> str:
    return str(machine.addresses[0].ip)


def identity_of(machine: Machine) -> Identity:
    found = load_identity(machine.disk / "state" / "cluster")
    assert found is not None
    return found


def tunnel_port_of(machine: Machine) -> int:
    return tunnel_port(tunnel_public_key(identity_of(machine).public_key))


def like_ours(node: Machine) -> bytes:
    """A probe to anybody in the cluster, that no member has signed."""
    codec = Codec(bytes(range(32)), identity_of(node).pinned_key)
    return codec.encode(BodyKind.PROBE, bytes(600))


def assert_still_peers(hub: Machine, node: Machine) -> None:
    for one, other in ((hub, node), (node, hub)):
        assert peer(one, other.label)["rung"] == "tunnel"
        for each in the_pod(other).addresses:
            found = the_pod(one).reaches(each.ip, within_s=10)
            assert found, f"{one.label} - {each}"


def test_nothing_leaves_for_a_peers_ports_whatever_it_looks_like(
    hub: Machine, node: Machine
) -> None:
    """Words of ours, WireGuard's first message, and neither."""
    at, ports = address_of(hub), (tunnel_port_of(hub), 7471)
    said = (like_ours(node), b"\1\0\0\0" + bytes(144), bytes(77))
    lengths = ", ".join(str(8 + len(each)) for each in said)
    passed = "udp dport 7000 udp length 85"
    match = f"udp dport {{ {ports[0]}, {ports[1]} }} udp length {{ {lengths} }}"
    with counting(Netns(hub.name), match, passed) as seen:
        for port in ports:
            for data in said:
                send(node, "udp", at, port, data, count=20)
        send(node, "udp", at, 7000, bytes(77), count=1)
        wait_until(lambda: seen(1) == 1, "what follows has arrived")
        assert seen() == 0
    assert_still_peers(hub, node)


def test_at_a_relays_ports_a_pod_takes_nothing_of_its_nodes(hub: Machine, node: Machine) -> None:
    """The first of them is nobody's; words for the relay itself are a stranger's there."""
    at, first = address_of(hub), 21000
    for_relay = RELAY_MAGIC + like_ours(node)[len(RELAY_MAGIC) :]
    with counting(Netns(hub.name), f"udp dport {first}") as seen:
        for data in (for_relay, bytes(100)):
            send(node, "udp", at, first, data, count=1500)
        wait_until(lambda: seen() > 0, "an attempt that comes to nothing anyway")
    assert_still_peers(hub, node)


def test_ike_and_esp_of_a_pod_change_no_tunnel(hub: Machine, node: Machine) -> None:
    at = address_of(hub)
    with counting(Netns(hub.name), "ip protocol esp", "udp dport { 500, 4500 }") as seen:
        send(node, "esp", at, 0, bytes(200), count=200)
        for port in (500, 4500):
            send(node, "udp", at, port, bytes(200), count=200)
        wait_until(lambda: seen() > 0 and seen(1) > 0, "they arrive: nobody listens there")
    assert_still_peers(hub, node)


def listening(machine: Machine) -> dict[bool, set[int]]:
    """TCP ports of the node, by whether they are loopback's alone."""
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for name, loopback in (("tcp", "0100007F"), ("tcp6", "0" * 24 + "01000000")):
        text = machine.run("cat", f"/proc/self/net/{name}")
        for address, port in ENDS.findall(text):
            found[address == loopback].add(int(port, 16))
    return found


def test_of_a_nodes_own_programs_a_pod_reaches_those_that_listen_to_all(
    hub: Machine, node: Machine
) -> None:
    """Limpet's own listen to nobody by default: figures and the page are not bound, or to loopback.
    What else a node runs is open to pods as Kubernetes wants it, but for loopback."""
    assert listening(node)[False] == set()
    gateway = str(node.overlay_addresses()[0])
    with Netns(node.name).listening("0.0.0.0", 2222), Netns(node.name).listening("127.0.0.1", 9999):
        ends = [f"{at}:{port}" for at in (gateway, address_of(node)) for port in (2222, 9999)]
        ends.append("127.0.0.1:9999")
        reached = the_pod(node).run(sys.executable, "-c", _CONNECT, *ends).split()
    assert reached == [f"{gateway}:2222", f"{address_of(node)}:2222"]
    assert listening(hub)[False] <= {443, 7472}, "a relay's port for TLS"


def test_a_pod_that_forges_its_source_gets_to_no_port_of_a_node(
    hub: Machine, node: Machine
) -> None:
    """A NodePort, the kubelet, any: it does not leave the pod's own port."""
    gateway = str(node.overlay_addresses()[0])
    own = str(the_pod(node).addresses[0].ip)
    anothers = (str(the_pod(hub).addresses[0].ip), gateway, address_of(hub), "169.254.169.254")
    with counting(Netns(node.name), "udp dport 30080", f"udp dport 30080 ip saddr {own}") as seen:
        for source in (*anothers, own):
            for target in (gateway, address_of(node)):
                the_pod(node).run(sys.executable, "-c", SEND_RAW, source, target, "30080", "knock")
        wait_until(lambda: seen(1) == 2, "what is its own arrives")
        assert seen() == 2


def test_link_local_addresses_are_open_unless_a_policy_shuts_them(
    world: World, node: Machine
) -> None:
    """As that of a cloud's metadata: as in every Kubernetes, a policy says who may not."""
    metadata, pod = "169.254.169.254", the_pod(node)
    gateway = world.gateway("lan")
    router = Netns(gateway.wires.router(gateway.site))
    router.ip(f"addr add {metadata}/32 dev lo")
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "no-metadata", "namespace": pod.namespace},
        "spec": {
            "podSelector": {},
            "policyTypes": ["Egress"],
            "egress": [
                {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [f"{metadata}/32"]}}]},
                {"to": [{"ipBlock": {"cidr": "::/0"}}]},
            ],
        },
    }
    file = node.folder / "policy.json"
    file.write_text(json.dumps(policy), encoding="utf-8")
    own = str(gateway.site.router_addresses[0].ip)

    def reached() -> list[str]:
        return pod.run(sys.executable, "-c", _CONNECT, f"{metadata}:80", f"{own}:80").split()

    with router.listening("0.0.0.0", 80):
        assert len(reached()) == 2
        limpet(node, "policy", "apply", str(file))
        try:
            assert reached() == [f"{own}:80"]
        finally:
            limpet(node, "policy", "delete", f"{pod.namespace}/no-metadata")
