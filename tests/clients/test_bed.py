"""The bed itself, on the reference plugins: when these fail, the other tests here say nothing."""

from __future__ import annotations

from tests.clients.containerd import containerd_on, url
from tests.clients.machine import NODE_V4, NODE_V6, OUTSIDE, Machine
from tests.clients.networks import ReferenceNetwork
from tests.clients.podman import podman_on


def test_pods_of_containerd_reach_each_other_through_the_reference_plugins(
    machine: Machine,
) -> None:
    with containerd_on(machine, ReferenceNetwork(machine)) as containerd:
        one = containerd.run_pod(containerd.pod_config("one", host_ports={18080: 80}))
        two = containerd.run_pod(containerd.pod_config("two"))
        one_server, two_server = containerd.serve_http(one), containerd.serve_http(two)

        assert containerd.fetch(one_server, url(two.v4)) == "two"
        assert containerd.fetch(two_server, url(one.v6)) == "one"
        assert machine.fetch(url(NODE_V4, 18080), netns=OUTSIDE) == "one"
        assert machine.fetch(url(NODE_V6, 18080), netns=OUTSIDE) == "one"

        containerd.remove_all_pods()
        assert containerd.network.reservations() == {}
        assert machine.links("veth") == set()


def test_containers_of_podman_reach_each_other_through_the_reference_plugins(
    machine: Machine,
) -> None:
    podman = podman_on(machine, ReferenceNetwork(machine))
    podman.run("three", "--publish", "18081:80")
    podman.run("four")

    assert podman.fetch("three", url(podman.address("four"))) == "four"
    assert machine.fetch(url(NODE_V4, 18081), netns=OUTSIDE) == "three"

    podman.remove("three")
    podman.remove("four")
    assert podman.network.reservations() == {}
