"""What differs between containerd 1.6, 1.7 and 2, on the conflist that `limpet install` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pytest

from tests.clients.containerd import Containerd, containerd_on, url
from tests.clients.machine import NODE_V4, NODE_V6, OUTSIDE, Machine
from tests.clients.networks import LimpetNetwork
from tests.waiting import wait_until

VERSIONS = ("1.6", "1.7", "2")
ASKS_STATUS = ("2",)


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def machine(runtimes: None, version: str) -> Iterator[Machine]:
    with Machine(containerd=version) as machine:
        yield machine


@pytest.fixture(scope="module")
def network(machine: Machine) -> LimpetNetwork:
    return LimpetNetwork(machine)


@pytest.fixture(scope="module")
def containerd(machine: Machine, network: LimpetNetwork) -> Iterator[Containerd]:
    with containerd_on(machine, network) as containerd:
        yield containerd


def test_pods_start_talk_and_go(
    machine: Machine, containerd: Containerd, network: LimpetNetwork
) -> None:
    one = containerd.run_pod(containerd.pod_config("one", host_ports={18080: 80}))
    two = containerd.run_pod(containerd.pod_config("two"))
    one_server, two_server = containerd.serve_http(one), containerd.serve_http(two)

    assert containerd.fetch(one_server, url(two.v4)) == "two"
    assert containerd.fetch(two_server, url(one.v6)) == "one"
    for node in (NODE_V4, NODE_V6):
        assert machine.fetch(url(node, 18080), netns=OUTSIDE) == "one"

    containerd.remove_all_pods()
    assert network.reservations() == {}
    wait_until(lambda: not machine.links("veth"), "no interface of a pod is left")


def test_the_runtime_keeps_results_of_the_newest_version_that_it_speaks(
    machine: Machine, containerd: Containerd, version: str
) -> None:
    containerd.run_pod(containerd.pod_config("one"))

    files = machine.path("/var/lib/cni/results").glob("limpet-*")
    results = [json.loads(file.read_text())["result"]["cniVersion"] for file in files]

    assert results == ["1.1.0" if version in ASKS_STATUS else "1.0.0"]
    containerd.remove_all_pods()


def test_a_dead_agent_makes_the_node_not_ready_where_the_runtime_asks(
    containerd: Containerd, network: LimpetNetwork, version: str
) -> None:
    wait_until(lambda: containerd.network_ready()[0], "ready with the agent")

    network.kill_agent()
    ready, why = containerd.network_ready()
    assert ready is (version not in ASKS_STATUS)
    if not ready:
        assert "the limpet agent cannot be reached on /run/limpet/agent.sock" in why

    network.start()
    wait_until(lambda: containerd.network_ready()[0], "ready again")


def test_without_the_agent_starts_and_stops_fail_and_work_when_it_is_back(
    machine: Machine, containerd: Containerd, network: LimpetNetwork
) -> None:
    machine.write("/etc/limpet/shim.conf", "wait_s=0.5\n")
    there = containerd.run_pod(containerd.pod_config("there"))
    network.kill_agent()

    with pytest.raises(grpc.RpcError, match=r"agent cannot be reached .* \(tried for 0.5 s\)"):
        containerd.run_pod(containerd.pod_config("one"))
    with pytest.raises(grpc.RpcError, match="agent cannot be reached"):
        containerd.stop_pod(there.id)

    network.start()
    pod = containerd.run_pod(containerd.pod_config("one", attempt=1))
    machine.ping_all(pod.addresses)
    containerd.remove_all_pods()
    assert network.reservations() == {}
    wait_until(lambda: not machine.links("veth"), "no interface of a pod is left")
