"""Pods of containerd when containerd, the agent or the whole machine goes down."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.clients.containerd import Containerd, Pod, containerd_on, url
from tests.clients.machine import NODE_V4, OUTSIDE, Machine
from tests.clients.networks import LimpetNetwork
from tests.waiting import wait_until


@pytest.fixture
def machine(runtimes: None, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """With the containerd that a test is parametrized for; else as the other tests."""
    version = getattr(request, "param", os.environ.get("LIMPET_CLIENTS_CONTAINERD", ""))
    with Machine(containerd=version) as machine:
        yield machine


@pytest.fixture
def network(machine: Machine) -> LimpetNetwork:
    return LimpetNetwork(machine)


@pytest.fixture
def containerd(machine: Machine, network: LimpetNetwork) -> Iterator[Containerd]:
    with containerd_on(machine, network) as containerd:
        yield containerd


def drop_what_was_cut_short(machine: Machine) -> None:
    """The runtime's library writes its cache in place: of a file that a crash has cut short it
    says for ever that it cannot be read, and removes nothing. A person would do this too."""
    for file in machine.path("/var/lib/cni/results").glob("*"):
        try:
            json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            file.unlink()


@pytest.mark.parametrize("machine", ["1.6", "1.7", "2"], indirect=True)
@pytest.mark.parametrize("addresses_at_crash", [1, 6])
def test_after_a_crash_of_containerd_in_the_middle_of_starts_everything_can_be_removed(
    machine: Machine, network: LimpetNetwork, containerd: Containerd, addresses_at_crash: int
) -> None:
    names = [f"pod-{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as kubelet:
        starts = [kubelet.submit(try_run_pod, containerd, name) for name in names]
        wait_until(
            lambda: len(network.reservations()) >= addresses_at_crash, "some pods have addresses"
        )
        containerd.kill()
        assert None in [start.result() for start in starts]  # the crash came in the middle

    drop_what_was_cut_short(machine)
    containerd.start()
    containerd.remove_all_pods()
    # containerd 1.7 forgets a start that was cut off before its DEL is done.
    wait_until(lambda: network.reservations() == {}, "no address is held")
    wait_until(lambda: not machine.links("veth"), "no interface of a pod is left")

    pods = [run_as_kubelet(containerd, name) for name in names]
    assert len({address for pod in pods for address in pod.addresses}) == 2 * len(names)
    machine.ping_all(address for pod in pods for address in pod.addresses)


def test_pods_come_back_from_a_reboot_with_their_addresses_and_without_the_old_dels(
    machine: Machine, network: LimpetNetwork, containerd: Containerd
) -> None:
    names = ["one", "two", "three", "stays-away"]
    before = {name: containerd.run_pod(containerd.pod_config(name)) for name in names}

    machine.power_off()
    machine.boot()
    network.start()
    containerd.start()

    old = {name: sandbox for sandbox, name in containerd.sandboxes().items()}
    assert sorted(old) == sorted(names)  # containerd has called no DEL
    containerd.stop_pod(old["one"])  # this one's DEL comes before the new ADD
    after = [
        containerd.run_pod(containerd.pod_config(name, attempt=1))
        for name in ("three", "two", "one")
    ]
    for name in ("two", "three"):
        containerd.stop_pod(old[name])  # these after it
    for name in ("one", "two", "three"):
        containerd.remove_pod(old[name])

    for pod in after:
        assert pod.addresses == before[pod.name].addresses
    machine.ping_all(address for pod in after for address in pod.addresses)
    expected = {address: pod.id for pod in after for address in pod.addresses}
    wait_until(
        lambda: network.reservations() == expected,
        "the agent has released what is held by a sandbox of before the reboot",
    )
    servers = [containerd.serve_http(pod) for pod in after[:2]]
    assert containerd.fetch(servers[0], url(after[1].v4)) == "two"

    returned = containerd.run_pod(containerd.pod_config("stays-away", attempt=1))
    assert returned.addresses == before["stays-away"].addresses
    containerd.remove_all_pods()
    assert network.reservations() == {}
    wait_until(lambda: not machine.links("veth"), "no interface of a pod is left")


def test_pods_talk_while_the_agent_is_away_and_are_served_when_it_is_back(
    machine: Machine, network: LimpetNetwork, containerd: Containerd
) -> None:
    one = containerd.run_pod(containerd.pod_config("one", host_ports={18080: 80}))
    two = containerd.run_pod(containerd.pod_config("two"))
    one_server, two_server = containerd.serve_http(one), containerd.serve_http(two)

    network.kill_agent()
    assert containerd.fetch(one_server, url(two.v4)) == "two"
    assert containerd.fetch(two_server, url(one.v6)) == "one"
    assert machine.fetch(url(NODE_V4, 18080), netns=OUTSIDE) == "one"
    network.start()

    assert containerd.fetch(one_server, url(two.v6)) == "two"
    assert machine.fetch(url(NODE_V4, 18080), netns=OUTSIDE) == "one"
    three = containerd.run_pod(containerd.pod_config("three"))
    machine.ping_all(address for pod in (one, two, three) for address in pod.addresses)
    containerd.remove_all_pods()
    assert network.reservations() == {}
    wait_until(lambda: not machine.links("veth"), "no interface of a pod is left")


def test_every_start_and_stop_succeeds_though_the_agent_crashes_under_them(
    machine: Machine, network: LimpetNetwork, containerd: Containerd
) -> None:
    machine.write("/etc/limpet/shim.conf", "wait_s=60\n")  # however slow this machine is
    configs = [containerd.pod_config(f"pod-{number}") for number in range(10)]
    with ThreadPoolExecutor(len(configs)) as kubelet:
        starts = [kubelet.submit(containerd.run_pod, config) for config in configs[:7]]
        wait_until(network.reservations, "some pods have addresses")
        network.kill_agent()
        starts += [kubelet.submit(containerd.run_pod, config) for config in configs[7:]]
        wait_until(lambda: request_waits(machine), "a request waits for the agent")
        network.start()
        pods = [start.result() for start in starts]
        assert len({address for pod in pods for address in pod.addresses}) == 2 * len(pods)
        machine.ping_all(address for pod in pods for address in pod.addresses)

        stops = [kubelet.submit(containerd.stop_pod, pod.id) for pod in pods[:7]]
        wait_until(lambda: len(network.reservations()) < 2 * len(pods), "some pods are stopped")
        network.kill_agent()
        stops += [kubelet.submit(containerd.stop_pod, pod.id) for pod in pods[7:]]
        wait_until(lambda: request_waits(machine), "a request waits for the agent")
        network.start()
        for stop in stops:
            stop.result()

    assert network.reservations() == {}
    wait_until(lambda: not machine.links("veth"), "no interface of a pod is left")
    containerd.remove_all_pods()


def test_a_namespace_that_vanished_without_a_del_gives_its_addresses_back(
    machine: Machine, network: LimpetNetwork, containerd: Containerd
) -> None:
    lost = containerd.run_pod(containerd.pod_config("lost"))
    kept = containerd.run_pod(containerd.pod_config("kept"))

    containerd.kill()
    crash_sandbox(machine, lost)

    wait_until(
        lambda: network.reservations() == dict.fromkeys(kept.addresses, kept.id),
        "the addresses of the lost pod are released",
    )
    machine.ping_all(kept.addresses)


def try_run_pod(containerd: Containerd, name: str, *, attempt: int = 0) -> Pod | None:
    """None where the runtime goes away meanwhile, or cannot."""
    try:
        return containerd.run_pod(containerd.pod_config(name, attempt=attempt))
    except grpc.RpcError:
        return None


def run_as_kubelet(containerd: Containerd, name: str) -> Pod:
    """Tries again: a crash may leave a folder of a snapshot that containerd does not know, and it
    says "file exists" until it has cleaned up."""
    attempts = itertools.count(1)
    pod = wait_until(lambda: try_run_pod(containerd, name, attempt=next(attempts)), f"{name} runs")
    assert pod is not None
    return pod


def request_waits(machine: Machine) -> bool:
    """A plugin process is there, which ends at once where an agent answers."""
    return machine.try_run("pgrep", "-x", "limpet").returncode == 0


def crash_sandbox(machine: Machine, pod: Pod) -> None:
    """End a pod's processes and its network namespace; nobody is told."""
    state = machine.path(f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{pod.id}")
    namespaces = json.loads((state / "config.json").read_text())["linux"]["namespaces"]
    (netns,) = [entry["path"] for entry in namespaces if entry["type"] == "network"]
    machine.run("runc", "--root", "/run/containerd/runc/k8s.io", "delete", "--force", pod.id)
    machine.run("umount", netns)
