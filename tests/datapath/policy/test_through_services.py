"""Policies where a Service's address is turned into a pod's: judged is who sends, and which pod it
gets to at which of its ports, whatever address was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any

import pytest

from limpet.datapath.policy.apply import PolicyKernel
from limpet.datapath.policy.ruleset import NOTHING, LocalPort, plan_tables
from limpet.policies.compiler import compile_sides
from limpet.policies.parse import parse_policy
from limpet.policies.policy import Key, PolicyPod, PolicyWorld
from tests.beds.namespaces import Netns, NetnsFactory, is_silent, talk
from tests.beds.node_bed import NODE, OUTSIDE
from tests.beds.services.service_bed import (
    ADDRESSES,
    EXTERNAL,
    WEB,
    ServiceBed,
    endpoints_of,
    slices,
)
from tests.datapath.policy.conformance.words import at, block, egress, ingress, of, pod, rule

Enforce = Callable[..., None]


@pytest.fixture(scope="module", params=[False, True], ids=["", "br_netfilter"])
def bed(request: pytest.FixtureRequest) -> Iterator[ServiceBed]:
    """Pod `two` is the Service's only endpoint, at port 8080 for the Service's 80."""
    make = NetnsFactory()
    try:
        made = ServiceBed(make, bridge_filtered=request.param)
        made.put(WEB, *slices(*endpoints_of(*made.pods[1].addresses)))
        yield made
        made.close()
    finally:
        make.close()


@pytest.fixture
def enforce(bed: ServiceBed) -> Iterator[Enforce]:
    with bed.node.entered():
        kernel = PolicyKernel()
    mac = bed.bed.kernel.bridges(["limpet0"])["limpet0"][1]
    pods = {}
    ports = []
    for name, each in zip(("one", "two"), bed.pods, strict=True):
        found = PolicyPod(Key("x", name), tuple(map(ip_address, each.addresses)), {"pod": name})
        pods[found.key] = found
        link = each.attachment.link
        ports.append(LocalPort(found.key, link.host_ifname, link.mac, mac, found.addresses))
    tables = [NOTHING]

    def put(*policies: Any) -> None:
        world = PolicyWorld({each.key: each for each in map(parse_policy, policies)}, {}, pods)
        after = plan_tables(compile_sides(world, pods.values()), ports)
        with bed.node.entered():
            kernel.change(tables[0], after)
        tables[0] = after

    yield put
    put()
    kernel.close()


def reaches(bed: ServiceBed, client: Netns, number: int, address: str, port: int) -> str:
    """The client's address as pod `two` sees it, by IP version `number`. Raises: OSError."""
    with bed.pods[1].netns.listening(("0.0.0.0", "::")[number], 8080) as server:
        return talk(client, address, port, server)


VERSIONS = pytest.mark.parametrize("number", [0, 1], ids=["IPv4", "IPv6"])


@VERSIONS
def test_ingress_is_judged_by_who_asks_and_by_the_pods_own_port(
    bed: ServiceBed, enforce: Enforce, number: int
) -> None:
    one, two = bed.pods
    enforce(ingress(pod("two"), rule(of(pod("one")), ports=(at(8080),))))
    assert reaches(bed, one.netns, number, ADDRESSES[number], 80)
    assert reaches(bed, two.netns, number, ADDRESSES[number], 80), "a pod reaches itself"
    assert reaches(bed, bed.node, number, ADDRESSES[number], 80), "its node reaches it"
    for address, port in ((EXTERNAL[number], 80), (NODE[number], 30080), (ADDRESSES[number], 80)):
        assert is_silent(bed.outside, address, port)
    enforce(ingress(pod("two"), rule(of(pod("one")), ports=(at(80),))))
    assert is_silent(one.netns, ADDRESSES[number], 80), "80 is the Service's port"


@VERSIONS
def test_who_comes_from_outside_is_known_by_the_address_it_has_there(
    bed: ServiceBed, enforce: Enforce, number: int
) -> None:
    length = (32, 128)[number]
    enforce(ingress(pod("two"), rule(block(f"{OUTSIDE[number]}/{length}"))))
    for address, port in ((EXTERNAL[number], 80), (NODE[number], 30080)):
        assert reaches(bed, bed.outside, number, address, port)
    assert is_silent(bed.pods[0].netns, ADDRESSES[number], 80)


@VERSIONS
def test_egress_is_judged_by_the_pod_that_it_gets_to(
    bed: ServiceBed, enforce: Enforce, number: int
) -> None:
    one, _ = bed.pods
    enforce(egress(pod("one"), rule(of(pod("two")), ports=(at(8080),))))
    assert reaches(bed, one.netns, number, ADDRESSES[number], 80)
    assert reaches(bed, one.netns, number, NODE[number], 30080)
    length = (32, 128)[number]
    enforce(egress(pod("one"), rule(block(f"{ADDRESSES[number]}/{length}"))))
    assert is_silent(one.netns, ADDRESSES[number], 80), "no pod has this address"
    enforce(egress(pod("one"), rule(of(pod("two")), ports=(at(80),))))
    assert is_silent(one.netns, ADDRESSES[number], 80)
