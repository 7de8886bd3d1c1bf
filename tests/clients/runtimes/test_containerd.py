"""Pods of containerd, on a node that stays up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

import pytest

from tests.clients.containerd import Containerd, Pod, containerd_on, url
from tests.clients.machine import NODE_V4, NODE_V6, OUTSIDE, Machine
from tests.clients.networks import SEGMENT_V4, SEGMENT_V6, Network, network_under_test
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def node(machine: Machine) -> Iterator[Containerd]:
    with containerd_on(machine, network_under_test(machine)) as containerd:
        yield containerd


@pytest.fixture
def containerd(node: Containerd) -> Iterator[Containerd]:
    """containerd without pods, before and after."""
    yield node
    node.remove_all_pods()


@pytest.fixture
def network(containerd: Containerd) -> Network:
    return containerd.network


def test_two_pods_fetch_http_from_each_other_over_both_families(containerd: Containerd) -> None:
    one, two = run_pods(containerd, "one", "two")
    one_server, two_server = containerd.serve_http(one), containerd.serve_http(two)

    for pod in (one, two):
        assert len(pod.addresses) == 2
        assert ip_address(pod.v4) in SEGMENT_V4
        assert ip_address(pod.v6) in SEGMENT_V6
    assert containerd.fetch(one_server, url(two.v4)) == "two"
    assert containerd.fetch(one_server, url(two.v6)) == "two"
    assert containerd.fetch(two_server, url(one.v4)) == "one"
    assert containerd.fetch(two_server, url(one.v6)) == "one"
    containerd.stop_container(one_server)  # while the pod goes on
    assert containerd.pod(one.id, one.config).addresses == one.addresses


def test_a_pod_reaches_the_world_outside_masqueraded(
    machine: Machine, containerd: Containerd
) -> None:
    (pod,) = run_pods(containerd, "traveller")
    server = containerd.serve_http(pod)
    outside = machine.serve_http(OUTSIDE, "outside")  # which has no route back to pods

    assert containerd.fetch(server, url("192.0.2.1")) == "outside"
    assert containerd.fetch(server, url("2001:db8::1")) == "outside"
    outside.kill()


def test_a_pod_without_a_container_answers_its_node_and_other_pods(
    machine: Machine, containerd: Containerd
) -> None:
    empty, other = run_pods(containerd, "empty", "other")
    shell = containerd.serve_http(other)

    machine.ping_all(empty.addresses)
    for address in empty.addresses:
        code, output = containerd.execute(shell, "ping", "-c", "1", "-W", "3", address)
        assert code == 0, output


def test_a_host_port_is_reached_from_outside_from_the_node_and_from_pods(
    machine: Machine, containerd: Containerd
) -> None:
    served = containerd.run_pod(containerd.pod_config("served", host_ports={18080: 80}))
    (client,) = run_pods(containerd, "client")
    server, client_shell = containerd.serve_http(served), containerd.serve_http(client)

    for node in (NODE_V4, NODE_V6):
        assert machine.fetch(url(node, 18080), netns=OUTSIDE) == "served"
        assert machine.fetch(url(node, 18080)) == "served"
        assert containerd.fetch(client_shell, url(node, 18080)) == "served"
        assert containerd.fetch(server, url(node, 18080)) == "served"  # the pod itself: hairpin
    assert machine.fetch(url("127.0.0.1", 18080)) == "served"

    containerd.stop_pod(served.id)
    for node in (NODE_V4, NODE_V6):
        with pytest.raises(AssertionError, match="busybox"):
            machine.fetch(url(node, 18080), netns=OUTSIDE)


def test_a_host_port_passes_to_the_pod_that_comes_after(
    machine: Machine, containerd: Containerd
) -> None:
    for name in ("first", "second"):
        pod = containerd.run_pod(containerd.pod_config(name, host_ports={18081: 80}))
        containerd.serve_http(pod)

        assert machine.fetch(url(NODE_V4, 18081), netns=OUTSIDE) == name
        assert machine.fetch(url(NODE_V6, 18081), netns=OUTSIDE) == name
        containerd.stop_pod(pod.id)


def test_bandwidth_annotations_limit_the_pods_interface(
    machine: Machine, containerd: Containerd
) -> None:
    before = queues(machine)
    annotations = {
        "kubernetes.io/ingress-bandwidth": "37M",
        "kubernetes.io/egress-bandwidth": "23M",
    }
    pod = containerd.run_pod(containerd.pod_config("slow", annotations=annotations))

    limits = machine.run("tc", "qdisc", "show")
    assert "37Mbit" in limits
    assert "23Mbit" in limits
    containerd.stop_pod(pod.id)
    # Fewer than before: of a pod that was stopped just then the kernel may have had some still.
    wait_until(lambda: queues(machine) <= before, "no trace of the limit")


def queues(machine: Machine) -> set[str]:
    """What is set up on all interfaces, one a line; interfaces that queue nothing are left out."""
    lines = machine.run("tc", "qdisc", "show").splitlines()
    return {line for line in lines if " noqueue " not in line}


def test_stop_and_remove_leave_no_address_and_no_interface(
    machine: Machine, containerd: Containerd, network: Network
) -> None:
    one, two = run_pods(containerd, "one", "two")
    assert set(network.reservations()) == {*one.addresses, *two.addresses}

    containerd.stop_pod(one.id)
    assert set(network.reservations()) == set(two.addresses)
    containerd.stop_pod(one.id)  # as kubelets do, several times
    containerd.remove_pod(one.id)
    assert set(network.reservations()) == set(two.addresses)
    machine.ping_all(two.addresses)

    containerd.stop_pod(two.id)
    containerd.remove_pod(two.id)
    assert network.reservations() == {}
    wait_until(lambda: not machine.links("veth"), "no interface of a pod is left")


def test_the_files_of_the_record_say_who_holds_what(
    containerd: Containerd, network: Network
) -> None:
    one, two = run_pods(containerd, "one", "two")
    held = {address: pod.id for pod in (one, two) for address in pod.addresses}

    wait_until(lambda: network.files() == held, "a file for each address that is held")
    containerd.stop_pod(one.id)
    containerd.stop_pod(two.id)
    wait_until(lambda: network.files() == {}, "no file of a reservation is left")


def test_a_pod_that_comes_back_has_its_addresses(containerd: Containerd) -> None:
    (first,) = run_pods(containerd, "web-0")
    containerd.stop_pod(first.id)
    containerd.remove_pod(first.id)
    others = run_pods(containerd, "web-1", "web-2")

    (again,) = run_pods(containerd, "web-0")
    namesake = containerd.run_pod(containerd.pod_config("web-0", namespace="elsewhere"))

    assert again.addresses == first.addresses
    taken = {address for pod in (*others, namesake) for address in pod.addresses}
    assert not taken & set(first.addresses)


def test_the_late_second_del_of_an_old_sandbox_changes_nothing_for_the_new(
    machine: Machine, containerd: Containerd, network: Network
) -> None:
    (old,) = run_pods(containerd, "web-0")
    containerd.stop_pod(old.id)
    new = containerd.run_pod(containerd.pod_config("web-0", attempt=1))

    containerd.remove_pod(old.id)

    assert new.addresses == old.addresses
    assert network.reservations() == dict.fromkeys(new.addresses, new.id)
    machine.ping_all(new.addresses)


def test_the_newest_sandbox_of_a_pod_wins_while_the_old_one_lives(
    machine: Machine, containerd: Containerd, network: Network
) -> None:
    (old,) = run_pods(containerd, "web-0")
    new = containerd.run_pod(containerd.pod_config("web-0", attempt=1))

    assert new.addresses == old.addresses
    containerd.stop_pod(old.id)
    containerd.remove_pod(old.id)
    assert network.reservations() == dict.fromkeys(new.addresses, new.id)
    machine.ping_all(new.addresses)


def test_twenty_pods_started_eight_at_a_time_have_different_addresses_and_answer(
    machine: Machine, containerd: Containerd, network: Network
) -> None:
    configs = [containerd.pod_config(f"pod-{number}") for number in range(20)]
    with ThreadPoolExecutor(8) as kubelet:
        pods = list(kubelet.map(containerd.run_pod, configs))

    addresses = [address for pod in pods for address in pod.addresses]
    assert len(set(addresses)) == len(addresses) == 40
    assert set(network.reservations()) == set(addresses)
    machine.ping_all(addresses)

    with ThreadPoolExecutor(8) as kubelet:
        list(kubelet.map(containerd.stop_pod, [pod.id for pod in pods]))
    assert network.reservations() == {}
    wait_until(lambda: not machine.links("veth"), "no interface of a pod is left")


def test_the_runtime_is_network_ready_while_the_conflist_is_there(
    machine: Machine, containerd: Containerd
) -> None:
    assert containerd.network_ready() == (True, "")

    written = containerd.network.write_conflist()
    written.unlink()
    wait_until(lambda: not containerd.network_ready()[0], "not ready without the conflist")
    containerd.network.write_conflist()
    wait_until(lambda: containerd.network_ready()[0], "ready with the conflist")

    (pod,) = run_pods(containerd, "after")
    machine.ping_all(pod.addresses)


def run_pods(containerd: Containerd, *names: str) -> list[Pod]:
    return [containerd.run_pod(containerd.pod_config(name)) for name in names]
