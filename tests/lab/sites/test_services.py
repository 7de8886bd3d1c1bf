"""Services of real nodes while a node dies, is cut off, and comes back: nobody in the cloud says
anything of Services."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import msgspec
import pytest

from limpet.base.errors import LimpetError
from limpet.cluster.kinds.grant import ZONE_LABEL
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from limpet.services.kept_here import HERE_FILE, decode_here
from limpet.services.values import Endpoint, EndpointSlice, Exposure, Service
from tests.beds.namespaces import Netns
from tests.dns.test_process import Serving, ask, values
from tests.lab.bed import a_world
from tests.lab.services import Connecting, endpoints, ipv4, serving_all, tell, web
from tests.waiting import wait_until

# Addresses of its own: an address that a namespace has is not taken for a container's that is gone,
# and the worlds of other tests are on this machine, too.
TOPOLOGY = """
[controller]
pod_cidrs = ["10.251.0.0/16", "fd00:251::/48"]
service_cidrs = ["10.96.0.0/16"]
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
nodes = { hub = 1 }
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { crane-1 = 1, crane-2 = 1 }
[site.quarry]
lan = ["192.168.20.0/24", "fd00:20::/64"]
nodes = { digger-1 = 1 }
"""
SERVERS = ("crane-2", "digger-1")
PAIR = "shop/pair"
HEALTH_PORT = 31234
ZONED = {"10.96.0.10": "hinted", "10.96.0.11": "preferred"}
"""Services of the endpoints of both sites, by their address."""
TAKEN = 50
API_SERVER = EndpointSlice(
    "default", "kubernetes", "kubernetes", 4, (), (Endpoint("203.0.113.10"),)
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A Service of a pod beside crane-1 and of one at another site; crane-1 has a client."""
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("services")) as world:
        pods = [
            (machine, next(iter(machine.pods.values())))
            for machine in map(world.machine, ("crane-1", *SERVERS))
        ]
        pair = web(*pods[:2], name="pair", address="10.96.0.8", distribution="Even")
        outside = Exposure(is_local=True, health_check_node_port=HEALTH_PORT)
        balanced = web(*pods[1:], name="balanced", address="10.96.0.9", exposure=outside)
        headless = web(*pods[1:], name="heads", address="None")
        resolv_conf = world.machine("crane-1").folder / "resolv.conf"
        resolv_conf.write_text("")
        names = {"dns": "on", "dns_resolv_conf": str(resolv_conf)}
        world.machine("crane-1").settings |= names
        for name in ("crane-1", *SERVERS):
            told = [*web(*pods[1:]), *pair, *balanced, *headless, *zoned(pods[1:])]
            told += [*outer(world, pods[1]), API_SERVER]
            tell(world.machine(name), told)
        yield world


def zoned(pods: list[tuple[Machine, LabPod]]) -> list[Service | EndpointSlice]:
    """Of those in `ZONED` one has hints for zones, and one asks for `PreferSameZone`: the near
    endpoint is in the zone hall, the far one in the zone yard."""
    found = []
    for address, name in ZONED.items():
        distribution = "PreferSameZone" if name == "preferred" else ""
        service, piece = web(*pods, name=name, address=address, distribution=distribution)
        assert isinstance(piece, EndpointSlice)
        ends = tuple(
            msgspec.structs.replace(each, zone=zone, for_zones=(zone,) if name == "hinted" else ())
            for each, zone in zip(piece.endpoints, ("hall", "yard"), strict=True)
        )
        found += [service, msgspec.structs.replace(piece, endpoints=ends)]
    return found


OUTER = ("of-crane-1", "of-crane-2", "of-nobody")
"""Services that ask for an external address: one of a node, or a free one."""


def outer(world: World, pod: tuple[Machine, LabPod]) -> list[Service | EndpointSlice]:
    found = []
    for number, name in enumerate(OUTER):
        label = name.removeprefix("of-")
        is_free = label == "nobody"
        address = "198.51.100.9" if is_free else ipv4_of(world.machine(label))
        exposure = Exposure(external_ips=(address,))
        found += web(pod, name=name, address=f"10.96.0.{20 + number}", exposure=exposure)
    return found


def ipv4_of(machine: Machine) -> str:
    return next(str(each.ip) for each in machine.addresses if each.version == 4)


def test_a_service_has_an_address_of_this_node_and_of_no_neighbour_as_an_external_one(
    world: World,
) -> None:
    """The neighbour serves it itself. Its address counts as soon as it has answered there."""
    node = world.machine("crane-1")

    def troubles() -> dict[str, str]:
        shown = (node.ask("service", name=f"shop/{name}")["service"] for name in OUTER)
        return {each["name"]: each["trouble"] for each in shown}

    neighbour = ipv4_of(world.machine("crane-2"))
    wanted = {
        "of-crane-1": "",
        "of-crane-2": f"{neighbour} is another node's address: that node serves it, and no other "
        "does",
        "of-nobody": "",
    }
    wait_until(lambda: troubles() == wanted, "the neighbour's is its own")


def test_nothing_goes_out_for_a_cluster_address_that_no_service_has(world: World) -> None:
    """By the network's `service_cidrs`, which the controller has signed."""
    node = Netns(world.machine("crane-1").name)

    def is_sent(address: str) -> bool:
        with node.open_socket(4, socket.SOCK_DGRAM) as sender:
            try:
                return sender.sendto(b"words", (address, 5140)) > 0
            except PermissionError:
                return False

    wait_until(lambda: not is_sent("10.96.0.200"), "the node knows what is of Services")
    assert is_sent("10.97.0.200")


def test_an_endpoint_whose_node_dies_leaves_the_rotation_and_comes_back_with_it(
    world: World,
) -> None:
    node, dies = world.machine("crane-1"), world.machine("crane-2")
    client = next(iter(node.pods.values()))
    wait_until(lambda: endpoints(node)["crane-2"] == (1, ""), "the near one serves")
    wait_until(lambda: endpoints(node)["digger-1"] == (0, "others are nearer"), "the far one waits")

    with serving_all(world, "digger-1"), Connecting(client) as connecting:
        with serving_all(world, "crane-2"):
            connecting.until("crane-2")
            dies.power_off()
        tried = connecting.until("digger-1")
        gap_s = (
            tried.at_s
            + tried.took_s
            - max(each.at_s for each in connecting.tried if each.answer == "crane-2")
        )
        sys.stderr.write(f"no answer for {gap_s:.2f} s; failed: {connecting.failed}\n")
        gone = {"crane-2": (0, "node crane-2 does not answer"), "digger-1": (1, "")}
        wait_until(lambda: endpoints(node) == gone, "the far one serves, and why is said")

        dies.power_on()
        wait_until(lambda: endpoints(node)["crane-2"] == (1, ""), "it serves again")
        with serving_all(world, "crane-2"):
            connecting.until("crane-2")


def test_a_name_leads_to_no_node_that_is_silent(world: World) -> None:
    node, dies = world.machine("crane-1"), world.machine("crane-2")
    near, far = (ipv4(next(iter(world.machine(name).pods.values()))) for name in SERVERS)

    def told() -> list[str]:
        return values(ask(Netns(node.name), "heads.shop.svc.cluster.local"))

    with closing(Serving(Netns(node.name), node.config_path, node.run_dir)) as serving:
        serving.start()
        wait_until(lambda: told() == [near, far], "both are told, the near one first")
        dies.power_off()
        wait_until(lambda: told() == [far], "who lives is told alone")
        dies.power_on()
        wait_until(lambda: told() == [near, far], "it is told again")


def test_a_name_leads_to_no_container_that_is_gone(world: World) -> None:
    """Services and names know it at one moment: later, something else may tell names, too."""
    node, other = world.machine("crane-1"), world.machine("crane-2")
    pod = next(iter(other.pods.values()))
    near, far = (ipv4(next(iter(world.machine(name).pods.values()))) for name in SERVERS)

    def told() -> list[str]:
        return values(ask(Netns(node.name), "heads.shop.svc.cluster.local"))

    with closing(Serving(Netns(node.name), node.config_path, node.run_dir)) as serving:
        serving.start()
        wait_until(lambda: told() == [near, far], "both are told, the near one first")
        other.stop_pod(pod.name)
        gone = (0, "its container is gone")
        wait_until(lambda: endpoints(node)["crane-2"] == gone, "it is out of the rotation")
        assert near in decode_here((node.run_dir / HERE_FILE).read_bytes())[0].gone
        wait_until(lambda: told() == [far], "who lives is told alone")
        other.start_pod(pod.name)
        wait_until(lambda: told() == [near, far], "it is told again")


def test_a_pod_of_another_node_that_serves_is_found_by_its_name(world: World) -> None:
    node, other = world.machine("crane-1"), world.machine("digger-1")
    client, pod = (next(iter(each.pods.values())) for each in (node, other))
    (path,) = node.ask("path", origin=client.name, target=f"shop/{pod.name}")["paths"]
    assert path["there"]["target"] == ipv4(pod)
    with pytest.raises(LimpetError, match="none has it"):
        node.ask("path", origin=client.name, target=f"garage/{pod.name}")


def test_a_node_of_clients_alone_uses_endpoints_of_the_zone_that_its_label_names(
    world: World,
) -> None:
    """No slice says in which zone it is. It knows also after a boot while it is cut off."""
    node = world.machine("crane-1")
    await_served(node, "crane-2")  # the near one, as long as no zone is known
    with labelled(world, node, "yard"):
        await_served(node, "digger-1")
        world.cut("cloud")
        world.reboot([node])
        client = next(iter(node.pods.values()))
        with serving_all(world, *SERVERS):
            await_served(node, "digger-1")
            for address in ZONED:
                with Connecting(client, address) as connecting:
                    connecting.until("digger-1")
                    assert {connecting.next().answer for _ in range(TAKEN)} == {"digger-1"}
        world.restore("cloud")
    await_served(node, "crane-2")


def test_a_nodes_label_goes_before_the_zone_that_its_endpoints_say(world: World) -> None:
    node = world.machine("crane-2")
    await_served(node, "crane-2")
    with labelled(world, node, "yard"):
        await_served(node, "digger-1")
    await_served(node, "crane-2")


def await_served(node: Machine, by: str) -> None:
    """All in `ZONED`, and by no other."""

    def serving() -> set[str]:
        shown = [endpoints(node, f"shop/{name}") for name in ZONED.values()]
        return {at for each in shown for at, (weight, _) in each.items() if weight}

    wait_until(lambda: serving() == {by}, f"{by} alone serves")


@contextlib.contextmanager
def labelled(world: World, node: Machine, zone: str) -> Iterator[None]:
    world.controller.ask("node.label", node=node.label, add={ZONE_LABEL: zone})
    yield
    world.controller.ask("node.label", node=node.label, drop=[ZONE_LABEL])


def test_where_all_are_in_doubt_all_are_tried(world: World) -> None:
    node = world.machine("crane-1")
    for name in SERVERS:
        world.machine(name).power_off()
    wait_until(
        lambda: node.ask("service", name="shop/web")["service"]["used"] == 2, "both are tried"
    )
    for name in SERVERS:
        world.machine(name).power_on()
    wait_until(lambda: endpoints(node)["crane-2"] == (1, ""), "as before")
    wait_until(lambda: endpoints(node)["digger-1"] == (0, "others are nearer"), "as before")


def test_a_load_balancer_elsewhere_is_told_by_each_node_whether_it_has_an_endpoint(
    world: World,
) -> None:
    balancer, server = world.machine("digger-1"), world.machine("crane-2")
    pod = next(iter(server.pods.values()))

    def answers(name: str) -> list[tuple[int, dict[str, Any]]]:
        """Empty where its port is not open yet."""
        addresses = [str(each.ip) for each in world.machine(name).addresses]
        with suppress(ConnectionRefusedError):
            return [health(balancer, each, HEALTH_PORT) for each in addresses]
        return []

    def said(status: int, count: int) -> list[tuple[int, dict[str, Any]]]:
        of = {"namespace": "shop", "name": "balanced"}
        found = {"service": of, "localEndpoints": count, "serviceProxyHealthy": True}
        return [(status, found)] * 2  # at an address of each family

    wait_until(lambda: answers("crane-2") == said(200, 1), "it has one")
    wait_until(lambda: answers("crane-1") == said(503, 0), "it has none")
    server.stop_pod(pod.name)
    wait_until(lambda: answers("crane-2") == said(503, 0), "its container is gone")
    server.start_pod(pod.name)
    wait_until(lambda: answers("crane-2") == said(200, 1), "it serves again")


def health(asker: Machine, address: str, port: int) -> tuple[int, dict[str, Any]]:
    """Status, and what is said."""
    with Netns(asker.name).connected(address, port) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
        received = b""
        while chunk := client.recv(4096):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_a_container_that_is_gone_is_told_to_neighbours_and_comes_back_with_its_address(
    world: World,
) -> None:
    """Of a Service whose other endpoint is on the asking node, so that there is no doubt of one."""
    node, other = world.machine("crane-1"), world.machine("crane-2")
    pod = next(iter(other.pods.values()))
    wait_until(lambda: endpoints(node, PAIR)["crane-2"] == (1, ""), "both serve")

    other.stop_pod(pod.name)
    gone = {"crane-1": (1, ""), "crane-2": (0, "its container is gone")}
    wait_until(lambda: endpoints(node, PAIR) == gone, "it leaves")
    again = other.start_pod(pod.name)
    assert again.addresses == pod.addresses
    wait_until(lambda: endpoints(node, PAIR)["crane-2"] == (1, ""), "it serves again")

    world.cut("cloud")
    # Both lose power: all that they serve with is on their disks, and neither hears any cloud.
    world.reboot([node, other])
    client = next(iter(node.pods.values()))
    wait_until(lambda: endpoints(node)["crane-2"] == (1, ""), "it serves after a boot")
    with serving_all(world, "crane-2"), Connecting(client) as connecting:
        connecting.until("crane-2")
    world.restore("cloud")
