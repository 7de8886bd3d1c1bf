"""Limpet as the IPAM plugin of the reference bridge, macvlan and ptp plugins."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.clients.cni import Attachment, Chain, CniFailure
from tests.clients.machine import Machine
from tests.clients.networks import (
    SEGMENT_V4,
    SEGMENT_V6,
    Network,
    make_conflist,
    network_under_test,
)

MAIN_PLUGINS: dict[str, dict[str, Any]] = {
    "bridge": {"bridge": "lctbr0", "isDefaultGateway": True, "ipMasq": True},
    "macvlan": {"master": "uplink"},
    "ptp": {"ipMasq": True},
}


@pytest.fixture(scope="module")
def network(machine: Machine) -> Network:
    network = network_under_test(machine)
    network.install()
    network.start()
    return network


@pytest.fixture(params=MAIN_PLUGINS)
def chain(network: Network, request: pytest.FixtureRequest) -> Chain:
    main: str = request.param
    plugin = {"type": main, "ipam": network.ipam(), **MAIN_PLUGINS[main]}
    return Chain(network.machine, make_conflist(f"under-{main}", [plugin]), network.environment)


@contextmanager
def attached(chain: Chain, pod: str) -> Iterator[Attachment]:
    """A pod in a namespace of its own; detached and gone at the end."""
    with chain.machine.namespace(f"lct-{pod}") as netns:
        # Else macvlan and ptp wait a second or two in each ADD, for duplicate address detection.
        setting = "net.ipv6.conf.default.accept_dad=0"
        chain.machine.run("sysctl", "-q", "-w", setting, netns=f"lct-{pod}")
        attachment = Attachment(netns, pod)
        chain.add(attachment)
        try:
            yield attachment
        finally:
            chain.delete(attachment)


def test_pods_get_an_address_of_each_segment_and_reach_each_other(
    machine: Machine, chain: Chain
) -> None:
    with attached(chain, "one") as one, attached(chain, "two") as two:
        given = [ipaddress.ip_interface(text) for pod in (one, two) for text in pod.addresses()]

        assert [address.version for address in given] == [4, 6, 4, 6]
        assert len(set(given)) == 4
        for address in given:
            segment = SEGMENT_V4 if address.version == 4 else SEGMENT_V6
            assert address in segment
            assert address.network.prefixlen == segment.prefixlen
        for pod in (one, two):
            assert interface_addresses(machine, pod) == set(pod.addresses())
        machine.ping_all([str(address.ip) for address in given[2:]], netns="lct-one")
        if "macvlan" not in chain.conflist["name"]:  # its pods and their node can't talk by design
            machine.ping_all([str(address.ip) for address in given])


def test_check_accepts_what_add_gave_and_refuses_what_it_did_not(chain: Chain) -> None:
    with attached(chain, "one") as one:
        chain.check(one)

        with pytest.raises(CniFailure):
            chain.check(Attachment(one.netns, "one", result=one.result))  # another container


def test_a_pod_that_comes_back_gets_the_addresses_that_it_had(chain: Chain) -> None:
    with attached(chain, "web-0") as first:
        had = first.addresses()
    with attached(chain, "web-1") as other:
        taken = other.addresses()
        with attached(chain, "web-0") as again:
            assert again.addresses() == had
    assert not set(had) & set(taken)


def test_del_releases_the_addresses_and_can_be_repeated_without_a_namespace(
    network: Network, chain: Chain
) -> None:
    name = chain.conflist["name"]
    with attached(chain, "one") as one:
        held = network.reservations(name)
        assert held == {text.split("/")[0]: one.container_id for text in one.addresses()}

    assert network.reservations(name) == {}
    chain.delete(one, forgotten=True)


def interface_addresses(machine: Machine, attachment: Attachment) -> set[str]:
    """Addresses with their lengths that the pod's interface has, link-local ones left out."""
    netns = attachment.netns.rsplit("/", 1)[1]
    shown = json.loads(
        machine.run("ip", "-json", "address", "show", "dev", attachment.ifname, netns=netns)
    )
    return {
        f"{entry['local']}/{entry['prefixlen']}"
        for entry in shown[0]["addr_info"]
        if entry["scope"] != "link"
    }
