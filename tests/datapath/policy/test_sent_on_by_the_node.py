"""What the node's own stack sends for others, as IPVS does that has turned a Service's address into
a pod's: it is not forwarded, and judged all the same by who sends it and who gets it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.beds.namespaces import NetnsFactory, talk
from tests.beds.policies.policy_bed import PolicyBed
from tests.beds.policies.ports_bed import packet_socket
from tests.beds.traffic.pod_frames import udp
from tests.policy_cases import addresses_of, app, world_of
from tests.waiting import PATIENCE_S, wait_until

PODS = 3
OUTSIDE = {4: "192.0.2.2", 6: "2001:db8::2"}
GATEWAY = {4: "10.244.7.1", 6: "fd00:7::1"}
VERSIONS = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture(scope="module")
def bed() -> Iterator[PolicyBed]:
    make = NetnsFactory()
    try:
        made = PolicyBed(make, PODS)
        yield made
        made.close()
    finally:
        make.close()


def comes(bed: PolicyBed, source: str, target: int) -> bool:
    """Whether pod `target` gets what its node sends it by that source; it gets what the node sends
    by an address of its own behind that."""
    version = 6 if ":" in source else 4
    there = addresses_of(target)[version]
    with bed.node.entered():
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        sender = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
    heard: list[bytes] = []
    with sender, packet_socket(bed.netns[target], "eth0") as receiver:
        for address, said in ((source, b"sent on"), (GATEWAY[version], b"behind it")):
            with suppress(PermissionError):  # it is dropped
                sender.sendto(udp(address, there, said), (there, 0))

        def has_come_all() -> bool:
            with suppress(BlockingIOError):
                heard.append(receiver.recv(2048))
            return b"behind it" in b"".join(heard)

        wait_until(has_come_all)
    return b"sent on" in b"".join(heard)


@VERSIONS
def test_a_closed_pod_gets_nothing_that_somebody_else_began(bed: PolicyBed, version: int) -> None:
    mine, other = (addresses_of(number)[version] for number in (0, 1))
    bed.enforce(world_of(PODS))
    assert comes(bed, other, 0)
    bed.enforce(world_of(PODS, {"podSelector": app(0), "policyTypes": ["Ingress"]}))
    assert not comes(bed, other, 0)
    assert not comes(bed, OUTSIDE[version], 0)
    assert comes(bed, mine, 0), "a pod reaches itself"
    assert comes(bed, mine, 1), "nothing limits what it sends"


@VERSIONS
def test_who_may_is_known_by_its_own_address(bed: PolicyBed, version: int) -> None:
    from_p1 = {"ingress": [{"from": [{"podSelector": app(1)}]}]}
    bed.enforce(world_of(PODS, {"podSelector": app(0), **from_p1}))
    assert comes(bed, addresses_of(1)[version], 0)
    assert not comes(bed, addresses_of(2)[version], 0)


@VERSIONS
def test_nothing_of_a_limited_pod_gets_to_others(bed: PolicyBed, version: int) -> None:
    to_p2 = {"policyTypes": ["Egress"], "egress": [{"to": [{"podSelector": app(2)}]}]}
    bed.enforce(world_of(PODS, {"podSelector": app(0), **to_p2}))
    mine = addresses_of(0)[version]
    assert not comes(bed, mine, 1)
    assert comes(bed, mine, 2)


@VERSIONS
def test_a_closed_pod_is_told_by_the_node_that_somebody_else_refuses(
    bed: PolicyBed, version: int
) -> None:
    """As by kube-proxy of a Service without endpoints."""
    bed.enforce(world_of(PODS, {"podSelector": app(0), "policyTypes": ["Ingress"]}))
    hook = "{ type filter hook forward priority -5; }"
    refused = "tcp dport 83 reject with tcp reset"
    bed.node.run("nft", f"add table inet other; add chain inet other x {hook}")
    bed.node.run("nft", f"add rule inet other x {refused}")
    try:
        with bed.netns[0].open_socket(version, socket.SOCK_STREAM) as client:
            client.settimeout(PATIENCE_S)
            with pytest.raises(ConnectionRefusedError):
                client.connect((OUTSIDE[version], 83))
    finally:
        bed.node.run("nft", "delete table inet other")


@VERSIONS
def test_the_node_itself_reaches_a_closed_pod_by_each_of_its_addresses(
    bed: PolicyBed, version: int
) -> None:
    bed.enforce(world_of(PODS, {"podSelector": app(0), "policyTypes": ["Ingress", "Egress"]}))
    pod = addresses_of(0)[version]
    uplink = {4: "192.0.2.1", 6: "2001:db8::1"}[version]
    with bed.netns[0].listening(pod, 80) as server:
        assert talk(bed.node, pod, 80, server) == GATEWAY[version]
        with bed.node.open_socket(version, socket.SOCK_STREAM) as client:
            client.bind((uplink, 0))
            client.connect((pod, 80))


def test_the_node_reaches_a_closed_pod_by_their_link_local_addresses(bed: PolicyBed) -> None:
    bed.enforce(world_of(PODS, {"podSelector": app(0), "policyTypes": ["Ingress", "Egress"]}))
    shown = bed.netns[0].run("ip", "-6", "-o", "addr", "show", "scope", "link")
    where = shown.split("inet6 ")[1].split("/")[0]
    with bed.node.entered():
        scope = socket.if_nametoindex("limpet0")
    with (
        bed.netns[0].listening("::", 82),
        bed.node.open_socket(6, socket.SOCK_STREAM) as client,
    ):
        client.connect((where, 82, 0, scope))
