"""What is told of Services and policies by the real commands and the page of figures of real nodes,
and who serves beside kube-proxy's ipvs mode."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from limpet.base.errors import LimpetError
from limpet.lab.world.machine import Machine
from limpet.lab.world.pod import LabPod
from limpet.lab.world.world import World
from tests.beds.namespaces import Netns
from tests.beds.services.service_api import ServiceApi
from tests.beds.traffic.tcp import fetch, serving
from tests.lab.bed import a_world, is_refused, limpet
from tests.lab.services import ADDRESS, PORT, TARGET_PORT, ipv4, keep, tell, web
from tests.waiting import wait_until

TOPOLOGY = """
[controller]
pod_cidrs = ["10.247.0.0/16", "fd00:247::/48"]
[cloud]
addresses = ["203.0.113.10/24", "2001:db8:c::10/64"]
[site.harbour]
lan = ["192.168.10.0/24", "fd00:10::/64"]
nodes = { crane-1 = 1, crane-2 = 1 }
"""
EMPTY, NOBODYS = "10.96.0.8", "10.96.0.99"
IPVS_LINK = "kube-ipvs0"
METRICS = "127.0.0.1:9471"
TROUBLED = "limpet_agent_policies_troubled "
_GET = f"import urllib.request as r; print(r.urlopen('http://{METRICS}/metrics').read().decode())"
ALONE = "the cluster's network says auto, and no kube-proxy is found here"
OWN = 'services = "{}" in the agent\'s configuration'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """crane-1 knows a Service of the other node's pod, and one of nobody."""
    with a_world(TOPOLOGY, tmp_path_factory.mktemp("told")) as world:
        other = world.machine("crane-2")
        nobodys = web(name="empty", address=EMPTY)
        tell(world.machine("crane-1"), [*web((other, the_pod(other))), *nobodys])
        yield world


def the_pod(machine: Machine) -> LabPod:
    return next(iter(machine.pods.values()))


def test_the_way_to_a_services_address_is_told_by_its_endpoints_and_what_policies_allow(
    world: World,
) -> None:
    node, other = world.machine("crane-1"), world.machine("crane-2")
    client, server = the_pod(node), the_pod(other)
    end = f"shop/{server.name} ({ipv4(server)} port {TARGET_PORT}) on crane-2"
    for asked in (ADDRESS, "shop/web"):
        told = limpet(node, "path", client.name, asked, "--port", str(PORT)).splitlines()
        assert told[0].startswith(f"{ADDRESS} is Service shop/web (")
        assert told[1] == f"  http {PORT}/TCP: all to {end}"
        assert told[2].endswith(f" -> {ipv4(server)} on crane-2")
        assert told[3].startswith("  there: ")
        assert "  reachable, as far as this node knows" in told
        # What holds at the other end the other node knows. Its rules name the pod's own port.
        assert told[6] == f"tcp {TARGET_PORT} from {ipv4(client)} to {ipv4(server)}: not known here"
        assert told[7].endswith(": allowed: no policy isolates the pod for egress")
    found: dict[str, Any] = json.loads(limpet(node, "path", client.name, ADDRESS, "-o", "json"))
    assert found["service"]["name"] == "shop/web"
    assert [each["there"]["target"] for each in found["paths"]] == [ipv4(server)]

    with serving(server, TARGET_PORT, "here"):
        assert fetch(ADDRESS, PORT, netns=client.netns) == "here"
        node.ask("policy.apply", documents=[closing(client)])
        words = is_refused(lambda: limpet(node, "path", client.name, ADDRESS, "--port", str(PORT)))
        assert f"tcp {TARGET_PORT} from {ipv4(client)} to {ipv4(server)}: denied" in words
        is_refused(lambda: fetch(ADDRESS, PORT, netns=client.netns))
        node.ask("policy.delete", namespace=client.namespace, name="closed")
        assert fetch(ADDRESS, PORT, netns=client.netns) == "here"


def test_a_port_that_a_service_does_not_have_is_told_as_refused_as_the_kernel_does(
    world: World,
) -> None:
    node, other = world.machine("crane-1"), world.machine("crane-2")
    client, server = the_pod(node), the_pod(other)
    with serving(server, TARGET_PORT, "here"):
        assert fetch(ADDRESS, PORT, netns=client.netns) == "here"
        is_refused(lambda: fetch(ADDRESS, TARGET_PORT, netns=client.netns))
    for port, said in (
        (str(TARGET_PORT), "tcp"),
        (str(PORT), "udp"),
    ):
        asked = ("path", client.name, "shop/web", "--port", port, "--protocol", said)
        words = is_refused(partial(limpet, node, *asked))
        assert f"{ADDRESS} port {port}/{said.upper()}: refused: Service shop/web has no " in words
        assert f"(it has http {PORT}/TCP)" in words
        words = is_refused(partial(limpet, node, *asked, "-o", "json"))
        assert '"refused": "10.96.0.7 port ' in words
    asked = ("path", client.name, "shop/web", "--port", str(PORT), "-o", "json")
    found = json.loads(limpet(node, *asked))
    assert found["refused"] == ""
    assert [(each["protocol"], each["port"]) for each in found["policies"]] == [
        ("tcp", TARGET_PORT)
    ]


def closing(pod: LabPod) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": pod.namespace},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"]},
    }


def test_the_way_to_a_service_without_endpoints_is_none_and_to_an_address_of_none_is_no_service(
    world: World,
) -> None:
    node = world.machine("crane-1")
    client = the_pod(node)
    words = is_refused(lambda: limpet(node, "path", client.name, EMPTY))
    assert f"{EMPTY} is Service shop/empty" in words
    assert "no endpoint is in rotation here: whoever asks is refused" in words
    assert "is Service" not in is_refused(lambda: limpet(node, "path", client.name, NOBODYS))


def test_services_are_left_to_ipvs_until_somebody_says_otherwise_and_taken_from_it_then(
    world: World,
) -> None:
    """Its link and the cluster addresses there stay as they are; they are left to who made them."""
    node, other = world.machine("crane-1"), world.machine("crane-2")
    client, server = the_pod(node), the_pod(other)
    items = web((other, server))
    world.controller.command("network", "set", "--services", "auto")

    def begin(services: str | None, why: str) -> dict[str, Any]:
        """The agent begins anew, with that word of the node's own, and has decided so."""
        node.stop_agent()
        node.settings.pop("services", None)
        if services is not None:
            node.settings["services"] = services
        keep(node, items)
        node.start_agent()
        found: dict[str, Any] = {}

        def has_decided() -> bool:
            with contextlib.suppress(LimpetError):  # it begins anew once more
                found.update(node.ask("status")["cluster"]["services"])
            return found.get("why") == why

        wait_until(has_decided, why)
        return found

    def is_served() -> bool:
        return "limpet_services" in node.run("nft", "list", "tables")

    with serving(server, TARGET_PORT, "here"):
        begin(None, ALONE)
        found = begin(None, ALONE)  # what it kept went while it did not know yet
        assert (found["on"], found["kube_proxy"], is_served()) == (True, "", True)
        # A dummy link in the field, which not every kernel has.
        node.run("ip", "link", "add", IPVS_LINK, "type", "bridge")
        node.run("ip", "address", "add", f"{ADDRESS}/32", "dev", IPVS_LINK)
        given = node.run("ip", "-o", "address", "show", "dev", IPVS_LINK)
        try:
            found = begin(None, "kube-proxy serves them here, and nobody has said otherwise")
            assert not found["on"]
            assert found["kube_proxy"] == f"ipvs, with the link {IPVS_LINK}"
            assert not is_served(), "what it did of them before is taken away"
            is_refused(lambda: fetch(ADDRESS, PORT, netns=client.netns))
            assert f"ipvs, with the link {IPVS_LINK}" in limpet(node, "status")

            found = begin("on", OWN.format("on"))
            assert (found["on"], is_served()) == (True, True)
            for asker in (client.netns, node.name):
                assert fetch(ADDRESS, PORT, netns=asker) == "here"
            assert found["kube_proxy"] == f"ipvs, with the link {IPVS_LINK}"

            found = begin("off", OWN.format("off"))
            assert (found["on"], is_served()) == (False, False)
            assert node.run("ip", "-o", "address", "show", "dev", IPVS_LINK) == given
        finally:
            node.run("ip", "link", "delete", IPVS_LINK)
        found = begin(None, ALONE)
        assert (found["on"], found["kube_proxy"]) == (True, "")
        assert fetch(ADDRESS, PORT, netns=client.netns) == "here"


def test_policies_of_which_something_is_wrong_are_counted(world: World) -> None:
    """As an API server tells them, by the page that Prometheus reads."""
    node = world.machine("crane-2")
    with ServiceApi(Netns(node.name)) as api:
        api.put(policy("first", "In"))
        node.stop_agent()
        node.settings |= {
            "source": "kubernetes",
            "policies": "on",
            "kubernetes_server": api.url,
            "metrics_listen": [METRICS],
        }
        node.start_agent()

        def troubled() -> float:
            text = node.run(sys.executable, "-c", _GET)
            (line,) = (each for each in text.splitlines() if each.startswith(TROUBLED))
            return float(line.removeprefix(TROUBLED))

        wait_until(lambda: node.ask("policy.list")["policies"], "policies are heard")
        assert troubled() == 0
        api.put(policy("second", "Near"), policy("third", "Near"))
        wait_until(lambda: troubled() == 2, "each is counted")
        assert len(node.ask("policy.list")["problems"]) == 2
        api.put(policy("second", "In"))
        wait_until(lambda: troubled() == 1, "it can be read")
        api.delete(policy("third", "Near"))
        wait_until(lambda: troubled() == 0, "it is gone")


def policy(name: str, operator: str) -> dict[str, Any]:
    """Those of Kubernetes are In, NotIn, Exists and DoesNotExist."""
    chosen = {"key": "app", "operator": operator, "values": ["web"]}
    return {
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"podSelector": {"matchExpressions": [chosen]}},
    }
