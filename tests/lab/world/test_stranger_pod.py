"""A pod as a stranger on its node: what it sends to nodes' own ports, and what becomes of it."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import vici

from limpet.base.ownership import IPSEC_FOLDER, IPSEC_SOCKET
from limpet.cluster.datagrams.peer_datagram import RELAY_MAGIC, BodyKind, Codec
from limpet.cluster.identity import Identity, load_identity
from limpet.datapath.tunnel.key import tunnel_port, tunnel_public_key
from limpet.lab.world.machine import Machine
from limpet.lab.world.node import DEFAULT_CONF
from limpet.lab.world.tunnels import ipsec_pid
from limpet.lab.world.world import World
from tests.beds.namespaces import Netns
from tests.claims.claims_bed import counting
from tests.lab.bed import a_world, limpet
from tests.lab.rungs import peer, the_pod, until_on
from tests.lab.sites.test_ipsec import until_by
from tests.lab.strangers import SEND_RAW
from tests.waiting import wait_until

TOPOLOGY = """
ipsec = true
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
nodes = { hub = 1 }
relays = ["hub"]
[site.lan]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { node-1 = 1 }
"""
_SEND = """
import socket, sys
kind, address, port, count, data = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), sys.argv[5]
protocol = {"udp": 0, "esp": 50}[kind]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
with socket.socket(family, socket.SOCK_RAW if protocol else socket.SOCK_DGRAM, protocol) as s:
    for number in range(count):
        s.sendto(bytes.fromhex(data)[:-4] + number.to_bytes(4, "big"), (address, port))
"""
_IKE = """
import os, select, socket, struct, sys
def payload(following, body):
    return struct.pack(">BBH", following, 0, 4 + len(body)) + body
transforms = [(1, 20, b"\\x80\\x0e\\x00\\x80"), (2, 5, b""), (4, 31, b"")]
offered = b"".join(
    struct.pack(">BBHBBH", 3 if n < 2 else 0, 0, 8 + len(more), kind, 0, number) + more
    for n, (kind, number, more) in enumerate(transforms)
)
offer = struct.pack(">BBHBBBB", 0, 0, 8 + len(offered), 1, 1, 0, 3) + offered
def ask(spi):
    key = struct.pack(">HH", 31, 0) + os.urandom(32)
    body = payload(34, offer) + payload(40, key) + payload(0, os.urandom(32))
    return spi + bytes(8) + struct.pack(">BBBBII", 33, 0x20, 34, 8, 0, 28 + len(body)) + body
sockets, waits_s = {}, float(sys.argv[1])
for end in sys.argv[2:]:
    address, _, port = end.rpartition(":")
    where = socket.getaddrinfo(address, int(port), type=socket.SOCK_DGRAM)[0]
    made = socket.socket(where[0], socket.SOCK_DGRAM)
    sockets[made] = end
    for number in range(20):
        spi = os.urandom(8)
        made.sendto(ask(spi), where[4])
        made.sendto(bytes(4) + ask(spi), where[4])
answered = set()
while len(answered) < len(sockets):
    ready = select.select([each for each in sockets if each not in answered], [], [], waits_s)[0]
    if not ready:
        break
    for each in ready:
        try:
            if b"\\x21\\x20\\x22\\x20" in each.recv(4096)[:24]:
                print(sockets[each], flush=True)
        except OSError:
            pass
        answered.add(each)
"""
"""Asks for IKE_SAs, as who knows the cluster's proposal, with the marker of NAT traversal and
without; prints where that is answered with a proposal. Source: RFC 7296 sections 3.1 to 3.4."""
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
_COMMAND = """
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    try:
        s.connect(sys.argv[1])
        print("connected")
    except OSError as error:
        print(type(error).__name__)
"""
_VERSIONS = pytest.mark.parametrize("version", [4, 6], ids=["ipv4", "ipv6"])
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


def address_of(machine: Machine, version: int = 4) -> str:
    return next(str(each.ip) for each in machine.addresses if each.version == version)


def overlay_address_of(machine: Machine, version: int) -> str:
    """The address at which the machine is its pods' gateway."""
    return next(str(each) for each in machine.overlay_addresses() if each.version == version)


def pod_address_of(machine: Machine, version: int) -> str:
    return next(str(each.ip) for each in the_pod(machine).addresses if each.version == version)


def gateway_link_local(machine: Machine) -> str:
    """The gateway's, as its pod writes it."""
    said = json.loads(machine.run("ip", "-j", "-6", "addr", "show", "dev", "limpet0"))
    found = next(each["local"] for each in said[0]["addr_info"] if each["scope"] == "link")
    return f"{found}%eth0"


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


def test_no_host_port_of_a_pod_takes_what_other_nodes_send(hub: Machine, node: Machine) -> None:
    ports = (8472, 7471, tunnel_port_of(node))
    mappings = [{"hostPort": each, "containerPort": 9, "protocol": "udp"} for each in ports]
    conf = {**DEFAULT_CONF, "runtimeConfig": {"portMappings": mappings}}
    greedy = node.pod("greedy")
    greedy.add(conf=conf)
    try:
        shown = node.run("nft", "list", "chain", "inet", "limpet", "hostports")
        assert all(f"udp dport {each} return" in shown for each in ports)
        assert_still_peers(hub, node)
    finally:
        greedy.delete(conf=conf)
        del node.pods["greedy"]


@_VERSIONS
def test_nothing_leaves_for_a_peers_ports_whatever_it_looks_like(
    hub: Machine, node: Machine, version: int
) -> None:
    """Words of ours, WireGuard's first message, and neither."""
    at, ports = address_of(hub, version), (tunnel_port_of(hub), 7471)
    said = (like_ours(node), b"\1\0\0\0" + bytes(144), bytes(77))
    passed = "udp dport 7000 udp length 85"
    # The nodes' own messages have these lengths now and then, and other bytes in their middle.
    matches = [
        f"udp dport {{ {ports[0]}, {ports[1]} }} udp length {8 + len(each)} "
        f"@th,{8 * (8 + 40)},32 {int.from_bytes(each[40:44])}"
        for each in said
    ]
    with counting(Netns(hub.name), passed, *matches) as seen:
        for port in ports:
            for data in said:
                send(node, "udp", at, port, data, count=20)
        send(node, "udp", at, 7000, bytes(77), count=1)
        wait_until(lambda: seen() == 1, "what follows has arrived")
        assert not any(seen(1 + number) for number in range(len(said)))
    assert_still_peers(hub, node)


@_VERSIONS
def test_at_a_relays_ports_a_pod_takes_nothing_of_its_nodes(
    hub: Machine, node: Machine, version: int
) -> None:
    """The first of them is nobody's; words for the relay itself are a stranger's there."""
    at, first = address_of(hub, version), 21000
    for_relay = RELAY_MAGIC + like_ours(node)[len(RELAY_MAGIC) :]
    with counting(Netns(hub.name), f"udp dport {first}") as seen:
        for data in (for_relay, bytes(100)):
            send(node, "udp", at, first, data, count=1500)
        wait_until(lambda: seen() > 0, "an attempt that comes to nothing anyway")
    assert_still_peers(hub, node)


@_VERSIONS
def test_ike_and_esp_of_a_pod_change_no_tunnel(hub: Machine, node: Machine, version: int) -> None:
    at = address_of(hub, version)
    with counting(Netns(hub.name), "meta l4proto esp", "udp dport { 500, 4500 }") as seen:
        send(node, "esp", at, 0, bytes(200), count=200)
        for port in (500, 4500):
            send(node, "udp", at, port, bytes(200), count=200)
        wait_until(lambda: seen() > 0 and seen(1) > 0, "they arrive: nobody listens there")
    assert_still_peers(hub, node)


@pytest.fixture
def charon(world: World, hub: Machine, node: Machine) -> Iterator[Path]:
    """Both nodes' tunnels are strongSwan's while it lasts; gives the socket by which the node's is
    commanded."""
    world.controller.command("network", "set", "--tunnel-backend", "ipsec")
    until_by(world, hub.label, node.label, "ipsec0")
    yield node.run_dir / IPSEC_FOLDER / IPSEC_SOCKET
    world.controller.command("network", "set", "--tunnel-backend", "wireguard")
    until_by(world, hub.label, node.label, "")


def established(vici_socket: Path) -> set[bytes]:
    """Its IKE_SAs with whoever has proven a key."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(vici_socket))
        found = [sa for each in vici.Session(connection).list_sas() for sa in each.values()]
    return {sa["remote-id"] for sa in found if sa["state"] == b"ESTABLISHED"}


def udp_ports_of(pid: int) -> set[int]:
    """UDP ports at which a process hears."""
    folder = Path(f"/proc/{pid}")
    held = {os.readlink(each) for each in (folder / "fd").iterdir() if each.is_symlink()}
    lines = [
        line.split()
        for name in ("udp", "udp6")
        for line in (folder / "net" / name).read_text().splitlines()[1:]
    ]
    return {int(each[1].rpartition(":")[2], 16) for each in lines if f"socket:[{each[9]}]" in held}


def test_at_strongswans_ports_of_its_own_node_a_pod_becomes_nobodys_peer(
    hub: Machine, node: Machine, charon: Path
) -> None:
    """It hears at the tunnel's port and at one of chance, and takes up what begins as a peer would;
    its answers go to no pod, since what it sends keeps out of the pods' network. Nothing hears at
    500 and 4500, and a peer's port is shut."""
    pid = wait_until(lambda: ipsec_pid(node.name) or 0, "strongSwan is started")
    heard = udp_ports_of(pid)
    own, peers = tunnel_port_of(node), tunnel_port_of(hub)
    assert own in heard
    assert not heard & {500, 4500}
    before = {identity_of(hub).uid.encode()}
    wait_until(lambda: established(charon) == before, "its peer is the other node")
    log, ports = charon.with_name("charon.log"), (500, 4500, *sorted(heard))

    answered: list[str] = []

    def begins(version: int) -> bool:
        """Whether strongSwan says that the pod has begun something with it."""
        places = [overlay_address_of(node, version), address_of(node, version)]
        places += [gateway_link_local(node)] if version == 6 else []
        ends = [f"{at}:{port}" for at in places for port in ports]
        ends.append(f"{address_of(hub, version)}:{peers}")
        answered.extend(the_pod(node).run(sys.executable, "-c", _IKE, "0.5", *ends).split())
        return f"{pod_address_of(node, version)} is initiating an IKE_SA" in log.read_text()

    for version in (4, 6):
        wait_until(partial(begins, version), "an attempt that comes to nothing anyway")
    assert answered == []
    assert established(charon) <= before, "somebody else has become a peer"
    wait_until(lambda: established(charon) == before, "its peer is who was it")
    assert ipsec_pid(node.name) == pid
    assert_still_peers(hub, node)
    # And who is a peer becomes it anew.
    node.run("kill", "-9", str(pid))
    wait_until(lambda: ipsec_pid(node.name) not in (None, pid), "it is started again")
    wait_until(lambda: established(charon) == before, "its peer is its peer again")
    assert_still_peers(hub, node)


def test_nobody_but_root_of_the_node_commands_strongswan(node: Machine, charon: Path) -> None:
    """Its socket is a file in a folder that only root enters, and has no name that a network
    namespace shows; a pod's root has another file system, and is asked as another user here."""
    pid = wait_until(lambda: ipsec_pid(node.name), "strongSwan is started")
    abstract = re.findall(r"@\S*", Path(f"/proc/{pid}/net/unix").read_text())
    assert [name for name in abstract if re.search("vici|charon|swan", name)] == []
    places = [str(each) for each in node.overlay_addresses()]
    ends = [f"{at}:4502" for at in (*places, *(str(each.ip) for each in node.addresses))]
    assert the_pod(node).run(sys.executable, "-c", _CONNECT, *ends) == ""
    as_nobody = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")

    said = the_pod(node).run(*as_nobody, sys.executable, "-c", _COMMAND, str(charon))

    assert said == "PermissionError\n"
    assert the_pod(node).run(sys.executable, "-c", _COMMAND, str(charon)) == "connected\n"


def listening(machine: Machine) -> dict[bool, set[int]]:
    """TCP ports of the node, by whether they are loopback's alone."""
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for name, loopback in (("tcp", "0100007F"), ("tcp6", "0" * 24 + "01000000")):
        text = machine.run("cat", f"/proc/self/net/{name}")
        for address, port in ENDS.findall(text):
            found[address == loopback].add(int(port, 16))
    return found


@_VERSIONS
def test_of_a_nodes_own_programs_a_pod_reaches_those_that_listen_to_all(
    hub: Machine, node: Machine, version: int
) -> None:
    """Limpet's own listen to nobody by default: figures and the page are not bound, or to loopback.
    What else a node runs is open to pods as Kubernetes wants it, but for loopback."""
    assert listening(node)[False] == set()
    everywhere, loopback = {4: ("0.0.0.0", "127.0.0.1"), 6: ("::", "::1")}[version]
    places = [overlay_address_of(node, version), address_of(node, version)]
    if version == 6:
        places.append(gateway_link_local(node))
    netns = Netns(node.name)
    with netns.listening(everywhere, 2222), netns.listening(loopback, 9999):
        ends = [f"{at}:{port}" for at in places for port in (2222, 9999)]
        ends.append(f"{loopback}:9999")
        reached = the_pod(node).run(sys.executable, "-c", _CONNECT, *ends).split()
    assert reached == [f"{at}:2222" for at in places]
    assert listening(hub)[False] <= {443, 7472}, "a relay's port for TLS"


@_VERSIONS
def test_a_pod_that_forges_its_source_gets_to_no_port_of_a_node(
    hub: Machine, node: Machine, version: int
) -> None:
    """A NodePort, the kubelet, any: it does not leave the pod's own port."""
    gateway, own = overlay_address_of(node, version), pod_address_of(node, version)
    anothers = [pod_address_of(hub, version), gateway, address_of(hub, version)]
    anothers += {
        4: ["169.254.169.254"],
        6: ["fe80::1", gateway_link_local(node).removesuffix("%eth0"), "::1"],
    }[version]
    match = f"udp dport 30080 {'ip' if version == 4 else 'ip6'} saddr {own}"
    with counting(Netns(node.name), "udp dport 30080", match) as seen:
        for source in (*anothers, own):
            for target in (gateway, address_of(node, version)):
                the_pod(node).run(sys.executable, "-c", SEND_RAW, source, target, "30080", "knock")
        wait_until(lambda: seen(1) == 2, "what is its own arrives")
        assert seen() == 2


@_VERSIONS
def test_link_local_addresses_are_open_unless_a_policy_shuts_them(
    world: World, node: Machine, version: int
) -> None:
    """As that of a cloud's metadata, which has an address of its own by IPv6: as in every
    Kubernetes, a policy says who may not."""
    metadata, pod = {4: "169.254.169.254", 6: "fd00:ec2::254"}[version], the_pod(node)
    every, length = {4: ("0.0.0.0/0", 32), 6: ("::/0", 128)}[version]
    other = {4: "::/0", 6: "0.0.0.0/0"}[version]
    gateway = world.gateway("lan")
    router = Netns(gateway.wires.router(gateway.site))
    router.ip(f"addr add {metadata}/{length} dev lo")
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "no-metadata", "namespace": pod.namespace},
        "spec": {
            "podSelector": {},
            "policyTypes": ["Egress"],
            "egress": [
                {"to": [{"ipBlock": {"cidr": every, "except": [f"{metadata}/{length}"]}}]},
                {"to": [{"ipBlock": {"cidr": other}}]},
            ],
        },
    }
    file = node.folder / "policy.json"
    file.write_text(json.dumps(policy), encoding="utf-8")
    own = next(str(a.ip) for a in gateway.site.router_addresses if a.version == version)

    def reached() -> list[str]:
        return pod.run(sys.executable, "-c", _CONNECT, f"{metadata}:80", f"{own}:80").split()

    with router.listening({4: "0.0.0.0", 6: "::"}[version], 80):
        assert len(reached()) == 2
        limpet(node, "policy", "apply", str(file))
        try:
            assert reached() == [f"{own}:80"]
        finally:
            limpet(node, "policy", "delete", f"{pod.namespace}/no-metadata")
