"""Isolated pods of a node that have one MAC or one address, which nothing keeps them from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pytest

from limpet.base.errors import KernelError
from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.ruleset import LocalPort, PolicyTables, plan_tables
from limpet.linux.netlink.table_codec import OWNED, PERSISTENT
from limpet.policies.compiler import compile_sides
from limpet.policies.policy import PolicyWorld
from tests.beds.namespaces import NetnsFactory, talk
from tests.beds.policies.policy_bed import PolicyBed
from tests.policy_cases import addresses_of, app, world_of

PODS = 4
VERSIONS = (4, 6)


@pytest.fixture(params=[OWNED | PERSISTENT, OWNED, 0], ids=["", "twins", "nobody's"])
def flags(request: pytest.FixtureRequest) -> int:
    """As from Linux 6.9 on, from 5.12 to 6.8, and before."""
    found: int = request.param
    return found


@pytest.fixture
def bed(flags: int) -> Iterator[PolicyBed]:
    make = NetnsFactory()
    try:
        with closing(PolicyBed(make, PODS, flags=flags)) as made:
            yield made
    finally:
        make.close()


def from_pod(number: int, *to: int) -> dict[str, object]:
    names = [app(each)["matchLabels"]["app"] for each in to]
    return {
        "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": names}]},
        "ingress": [{"from": [{"podSelector": app(number)}]}],
    }


def closed(*numbers: int) -> dict[str, object]:
    return {**from_pod(0, *numbers), "ingress": []}


Ports = Callable[[Sequence[LocalPort]], list[LocalPort]]


def one_mac(ports: Sequence[LocalPort]) -> list[LocalPort]:
    """As two pods that ask for it get it."""
    return [*ports[:2], replace(ports[2], mac=ports[1].mac), *ports[3:]]


def one_mac_on_two_bridges(ports: Sequence[LocalPort]) -> list[LocalPort]:
    shared = one_mac(ports)
    return [*shared[:2], replace(shared[2], bridge_mac="02:00:00:00:00:09"), *shared[3:]]


def one_address(ports: Sequence[LocalPort]) -> list[LocalPort]:
    """As the first pods of two networks with the same ranges have it, and a MAC made of it."""
    addresses = ports[1].addresses
    return [*ports[:2], replace(one_mac_on_two_bridges(ports)[2], addresses=addresses), *ports[3:]]


def hold(bed: PolicyBed, ports: Ports, *specs: dict[str, object]) -> None:
    """The policies are in force, by difference, and the kernel lists what was planned."""
    world = world_of(PODS, *specs)
    found = ports(bed.ports([*world.pods.values()]))
    pods = {
        key: replace(pod, addresses=port.addresses)
        for (key, pod), port in zip(world.pods.items(), found, strict=True)
    }
    sides = compile_sides(PolicyWorld(world.policies, {}, pods), pods.values())
    put(bed, plan_tables(sides, found))
    assert bed.read() == bed.tables
    assert not bed.kernel.put_whole


def put(bed: PolicyBed, after: PolicyTables) -> None:
    with bed.node.entered():
        bed.kernel.change(bed.tables, after)
    bed.tables = after


@pytest.mark.parametrize("ports", [one_mac, one_mac_on_two_bridges, one_address])
def test_policies_of_other_pods_go_on_to_change(bed: PolicyBed, ports: Ports) -> None:
    hold(bed, ports, from_pod(3, 0))
    assert bed.passes(3, 0, 4, "TCP", 80)
    hold(bed, ports, from_pod(3, 0), from_pod(3, 1), closed(2))
    hold(bed, ports, from_pod(-2, 0), from_pod(3, 1), closed(2))
    for version in VERSIONS:
        assert not bed.passes(3, 0, version, "TCP", 80)
        assert not bed.passes(-1, 0, version, "TCP", 80)
        assert not bed.passes(-1, 1, version, "TCP", 80)
        if ports is one_mac:  # what they have alike is a link-local address
            assert bed.passes(3, 1, version, "TCP", 80)
    hold(bed, list, from_pod(3, 0), from_pod(3, 1))
    for version in VERSIONS:
        assert bed.passes(3, 0, version, "TCP", 80)
        assert bed.passes(3, 1, version, "TCP", 80)


def test_of_one_mac_on_two_bridges_nothing_of_their_neighbours_comes(bed: PolicyBed) -> None:
    """Nobody knows which of the two is to route it. What the node has routed comes."""
    address = addresses_of(1)[4]
    with bed.netns[1].listening(address, 80) as server:
        hold(bed, one_mac, from_pod(3, 1, 2))
        talk(bed.netns[3], address, 80, server)
        hold(bed, one_mac_on_two_bridges, from_pod(3, 1, 2))
        with pytest.raises(TimeoutError), bed.netns[3].connected(address, 80, patience_s=0.3):
            pass
        talk(bed.node, address, 80, server)


@pytest.mark.parametrize("version", VERSIONS)
def test_of_one_address_what_both_pods_let_in_alike_passes_and_else_nothing(
    bed: PolicyBed, version: int
) -> None:
    address = addresses_of(1)[version]
    with bed.netns[1].listening(address, 80) as server:
        for specs, may in (
            ([closed(1), closed(2)], False),
            ([from_pod(3, 1), closed(2)], False),
            ([from_pod(3, 2), closed(1)], False),
            ([from_pod(3, 1, 2)], True),
            ([from_pod(3, 1)], True),  # the other one is held by no policy
            ([from_pod(3, 1), from_pod(0, 2)], False),
        ):
            hold(bed, same_bridge, *specs)
            assert bed.passes(3, 1, version, "TCP", 80) is may, specs
            assert not bed.passes(-1, 1, version, "TCP", 80)
            if may:
                talk(bed.netns[3], address, 80, server)


def same_bridge(ports: Sequence[LocalPort]) -> list[LocalPort]:
    return [
        replace(each, bridge_mac=ports[0].bridge_mac, mac=own.mac)
        for each, own in zip(one_address(ports), ports, strict=True)
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_of_one_address_what_both_pods_may_send_alike_passes_and_else_nothing(
    bed: PolicyBed, version: int
) -> None:
    def to_pod(number: int, of: int) -> dict[str, object]:
        return {
            "podSelector": app(of),
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"podSelector": app(number)}]}],
        }

    hold(bed, same_bridge, to_pod(3, 1), to_pod(0, 2))
    assert not bed.passes(1, 3, version, "TCP", 80)
    assert not bed.passes(1, 0, version, "TCP", 80)
    hold(bed, same_bridge, to_pod(3, 1))
    assert bed.passes(1, 3, version, "TCP", 80)
    assert not bed.passes(1, 0, version, "TCP", 80)


@pytest.mark.parametrize("begins_again", [False, True])
def test_what_the_kernel_does_not_take_leaves_what_there_is(
    bed: PolicyBed, flags: int, begins_again: bool
) -> None:
    """Whatever it was, pods are held as they were, also when the agent ends."""
    hold(bed, list, from_pod(3, 0))
    inet = bed.tables.inet
    ingress = inet.sets["ingress4"]
    twice = frozenset({f"{addresses_of(0)[4]} : accept", f"{addresses_of(1)[4]} : accept"})
    other = replace(ingress, elements=ingress.elements | twice)
    bad = replace(bed.tables, inet=replace(inet, sets={**inet.sets, "ingress4": other}))
    for _ in range(2):
        with bed.node.entered():
            if begins_again:
                bed.kernel.close()
                bed.kernel = PolicyKernel(flags=flags)
            with pytest.raises(KernelError):
                bed.kernel.change(bed.kernel.read(), bad)
    with bed.node.entered():
        bed.kernel.close()
        bed.kernel = PolicyKernel(flags=0)
    for version in VERSIONS:
        assert bed.passes(3, 0, version, "TCP", 80)
        assert not bed.passes(-1, 0, version, "TCP", 80)
        assert not bed.passes(1, 0, version, "TCP", 80)
