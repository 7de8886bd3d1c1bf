"""Containers of podman, which calls VERSION at almost every command and never retries a DEL."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.clients.containerd import url
from tests.clients.machine import NODE_V4, NODE_V6, OUTSIDE, Machine
from tests.clients.networks import Network, make_conflist, network_under_test
from tests.clients.podman import Podman, podman_on
from tests.docs.pages import blocks
from tests.docs.worlds import Player
from tests.waiting import wait_until

SECOND = "second"
"""Another network of the node, with a bridge and ranges of its own."""


@pytest.fixture(scope="module")
def node(machine: Machine) -> Podman:
    return podman_on(machine, network_under_test(machine))


@pytest.fixture
def podman(node: Podman) -> Iterator[Podman]:
    """podman without containers, before and after."""
    yield node
    node("rm", "--all", "--force", "--time", "0")


@pytest.fixture
def network(podman: Podman) -> Network:
    return podman.network


def test_containers_fetch_http_from_each_other_over_both_families(podman: Podman) -> None:
    podman.run("one")
    podman.run("two")

    assert podman.fetch("one", url(podman.address("two"))) == "two"
    assert podman.fetch("one", url(podman.address_v6("two"))) == "two"
    assert podman.fetch("two", url(podman.address("one"))) == "one"
    assert podman.fetch("two", url(podman.address_v6("one"))) == "one"


def test_its_page_is_typed_as_it_stands(podman: Podman) -> None:
    if podman.network.name != "limpet":
        pytest.skip("the page is about Limpet")
    found = [each for each in blocks("docs/how-to/podman.md") if "podman" in each.marker]
    assert found

    Player(podman.typed, {}).play_all(found)


def test_a_published_port_is_reached_from_outside_and_from_the_node(
    machine: Machine, podman: Podman
) -> None:
    podman.run("one", "--publish", "18080:80")

    for node in (NODE_V4, NODE_V6):
        assert machine.fetch(url(node, 18080), netns=OUTSIDE) == "one"
        assert machine.fetch(url(node, 18080)) == "one"
    assert machine.fetch(url("127.0.0.1", 18080)) == "one"


def test_a_published_port_of_one_address_is_not_open_on_the_others(
    machine: Machine, podman: Podman
) -> None:
    podman.run("one", "--publish", f"{NODE_V4}:18080:80")

    assert machine.fetch(url(NODE_V4, 18080), netns=OUTSIDE) == "one"
    with pytest.raises(AssertionError, match="busybox"):
        machine.fetch(url(NODE_V6, 18080), netns=OUTSIDE)


def test_a_container_has_the_address_and_the_mac_that_were_asked_for(podman: Podman) -> None:
    podman.run("client")
    podman.run("wanted", "--ip", "10.244.7.77", "--mac-address", "02:00:00:00:00:77")

    assert podman.address("wanted") == "10.244.7.77"
    assert podman.endpoint("wanted")["MacAddress"] == "02:00:00:00:00:77"
    assert "02:00:00:00:00:77" in podman("exec", "wanted", "ip", "link", "show", "eth0")
    assert podman.fetch("client", url("10.244.7.77")) == "wanted"


def test_reloading_the_network_keeps_addresses_and_ports(machine: Machine, podman: Podman) -> None:
    podman.run("one", "--publish", "18080:80")
    podman.run("two")
    had = podman.address("one"), podman.address_v6("one")

    podman("network", "reload", "one")

    assert (podman.address("one"), podman.address_v6("one")) == had
    assert podman.fetch("two", url(had[0])) == "one"
    assert podman.fetch("two", url(had[1])) == "one"
    assert machine.fetch(url(NODE_V4, 18080), netns=OUTSIDE) == "one"


def test_stop_and_rm_leave_no_address_and_no_interface(
    machine: Machine, podman: Podman, network: Network
) -> None:
    podman.run("one")
    podman.run("two")
    two = {podman.address("two"), podman.address_v6("two")}

    podman("stop", "--time", "0", "one")
    assert set(network.reservations()) == two
    podman("start", "one")
    assert podman.fetch("two", url(podman.address("one"))) == "one"
    podman.remove("one")
    assert set(network.reservations()) == two
    podman.remove("two")

    assert network.reservations() == {}
    wait_until(lambda: not machine.links("veth"), "no interface of a container is left")


def test_a_container_made_anew_under_its_name_has_its_addresses(podman: Podman) -> None:
    podman.run("web-0")
    had = podman.address("web-0"), podman.address_v6("web-0")
    podman.remove("web-0")
    podman.run("web-1")

    podman.run("web-0")

    assert (podman.address("web-0"), podman.address_v6("web-0")) == had
    assert podman.address("web-1") != had[0]


def test_a_container_on_two_networks_has_an_interface_on_each(
    machine: Machine, podman: Podman, network: Network
) -> None:
    plugin = network.main() | {"bridge": "second0", "isDefaultGateway": False, "isGateway": True}
    plugin["ipam"] = network.ipam() | {"ranges": [[{"subnet": "10.99.0.0/24"}]]}
    written = network.write_conflist(make_conflist(SECOND, [plugin]))
    podman.run("both", network=f"{network.name},{SECOND}")
    podman.run("here")
    podman.run("there", network=SECOND)

    shown = [podman("exec", "both", "ip", "address", "show", "dev", f"eth{n}") for n in (0, 1)]
    here, there = podman.address("both"), podman.address("both", SECOND)
    # Which of the two is eth0, podman 4.3 leaves to chance.
    assert sorted([f"inet {here}/24 " in one, f"inet {there}/24 " in one] for one in shown) == [
        [False, True],
        [True, False],
    ]
    assert podman.fetch("here", url(here)) == "both"
    assert podman.fetch("there", url(there)) == "both"
    assert podman.fetch("both", url(podman.address("there", SECOND))) == "there"

    for name in ("both", "there"):
        podman.remove(name)
    assert network.reservations(SECOND) == {}
    written.unlink()


def test_podman_lists_and_shows_the_network(podman: Podman, network: Network) -> None:
    assert network.name in podman("network", "ls", "--format", "{{.Name}}").splitlines()
    (shown,) = json.loads(podman("network", "inspect", network.name))
    assert shown["name"] == network.name
    assert shown["driver"] == network.main()["type"]
