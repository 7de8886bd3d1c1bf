"""Policies in the kernel, seen by packets: they do what the specification's text says."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from limpet.datapath.node.forward import HandleNftables, ensure_forward_accept
from limpet.datapath.policy.ruleset import NOTHING, plan_tables
from limpet.linux.netlink.table_codec import OWNED, PERSISTENT
from limpet.policies.compiler import compile_sides
from limpet.policies.policy import PolicyWorld
from tests.beds.namespaces import NetnsFactory, talk
from tests.beds.policies.policy_bed import PolicyBed
from tests.beds.policies.ports_bed import packet_socket
from tests.beds.traffic.pod_frames import BROADCAST, arp, ethernet, udp
from tests.policy_cases import addresses_of, app, cases, flows, world_of
from tests.policy_oracle import is_allowed
from tests.waiting import PATIENCE_S, wait_until

PODS = 4
BOTH = OWNED | PERSISTENT


@pytest.fixture(
    scope="module",
    params=[("0", BOTH), ("1", BOTH), ("0", OWNED)],
    ids=["", "br_netfilter", "twins"],
)
def bed(request: pytest.FixtureRequest) -> Iterator[PolicyBed]:
    """Also where bridged packets go through iptables' hooks, as kube-proxy asks for; and where the
    kernel keeps a table from others no longer than its socket is open, as before Linux 6.9."""
    bridged, flags = request.param
    make = NetnsFactory()
    try:
        made = PolicyBed(make, PODS, flags=flags)
        for name in ("iptables", "ip6tables", "arptables"):
            made.node.sysctl(f"net/bridge/bridge-nf-call-{name}", bridged)
        yield made
        made.close()
    finally:
        make.close()


@settings(
    max_examples=30,
    deadline=None,
    # A failure is told as it is: to make it smaller takes long with real packets.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_random_packets_pass_if_the_specification_allows_them(
    bed: PolicyBed, data: st.DataObject
) -> None:
    case = data.draw(cases(PODS))
    bed.enforce(case.world())
    assert bed.read() == bed.tables, "the kernel lists what was planned"
    assert not bed.kernel.put_whole, "nft takes the difference to what there was"
    for source, target, flow in data.draw(st.lists(flows(case), min_size=4, max_size=8)):
        if source == target:
            continue
        version = 6 if ":" in flow.target.address else 4
        seen = bed.passes(source, target, version, flow.protocol, flow.port)  # type: ignore[arg-type]
        assert seen == is_allowed(case.policies, case.namespaces, flow), (flow, bed.tables)


CLOSED = {"podSelector": app(0), "policyTypes": ["Ingress", "Egress"]}
FROM_P1 = {
    "podSelector": app(0),
    "ingress": [{"from": [{"podSelector": app(1)}], "ports": [{"port": 80}]}],
}


@pytest.mark.parametrize("version", [4, 6])
def test_the_node_reaches_its_own_pod_and_is_reached_whatever_the_policies(
    bed: PolicyBed, version: int
) -> None:
    bed.enforce(world_of(PODS, CLOSED))
    pod = addresses_of(0)[version]
    with bed.netns[0].listening(pod, 80) as server:
        talk(bed.node, pod, 80, server)
    gateway = {4: "10.244.7.1", 6: "fd00:7::1"}[version]
    with bed.node.listening(gateway, 81) as server:
        talk(bed.netns[0], gateway, 81, server)


@pytest.mark.parametrize("version", [4, 6])
def test_a_connection_that_stands_goes_on_when_a_policy_closes_its_pod_for_new_ones(
    bed: PolicyBed, version: int
) -> None:
    bed.enforce(world_of(PODS, FROM_P1))
    pod = addresses_of(0)[version]
    with bed.netns[0].listening(pod, 80) as server, bed.netns[1].connected(pod, 80) as here:
        there, _ = server.accept()
        with there:
            bed.enforce(world_of(PODS, CLOSED))
            here.sendall(b"still there")
            assert there.recv(64) == b"still there"
            there.sendall(b"yes")
            assert here.recv(64) == b"yes"
        assert not bed.passes(1, 0, version, "TCP", 80)


@pytest.mark.parametrize("version", [4, 6])
def test_whole_conversations_between_two_pods_of_the_node(bed: PolicyBed, version: int) -> None:
    bed.enforce(world_of(PODS, FROM_P1))
    pod = addresses_of(0)[version]
    with bed.netns[0].listening(pod, 80) as server:
        assert talk(bed.netns[1], pod, 80, server) == addresses_of(1)[version]
    for source in (2, -1):
        assert not bed.passes(source, 0, version, "TCP", 80)
    # Who is isolated for what it gets sends as it likes, and its answers come.
    with bed.netns[2].listening(addresses_of(2)[version], 81) as server:
        talk(bed.netns[0], addresses_of(2)[version], 81, server)


def test_a_pod_is_not_reached_by_its_link_local_address(bed: PolicyBed) -> None:
    shown = bed.netns[0].run("ip", "-6", "-o", "addr", "show", "scope", "link")
    where = shown.split("inet6 ")[1].split("/")[0]
    with bed.netns[1].entered():
        scope = socket.if_nametoindex("eth0")

    def connect(patience_s: float) -> None:
        with bed.netns[1].open_socket(6, socket.SOCK_STREAM) as client:
            client.settimeout(patience_s)
            client.connect((where, 82, 0, scope))

    with bed.netns[0].listening("::", 82):
        bed.enforce(NOTHING_SAID)
        connect(PATIENCE_S)
        bed.enforce(world_of(PODS, CLOSED))
        with pytest.raises(TimeoutError):
            connect(0.3)


NOTHING_SAID = PolicyWorld()


def test_a_bridge_that_has_another_mac_floods_nothing_of_a_closed_pod(bed: PolicyBed) -> None:
    """As one that somebody else made gets with each port, until the agent has heard of it."""
    bed.enforce(world_of(PODS, CLOSED))
    me, other = (bed.bed.pods[f"p{n}"].attachment.link.mac for n in (0, 1))
    mine, theirs = (addresses_of(n)[4] for n in (0, 1))
    was = bed.bed.kernel.bridges(["limpet0"])["limpet0"][1]
    bed.node.ip("link set limpet0 address 02:00:00:00:00:08")
    heard: list[bytes] = []
    try:
        with (
            packet_socket(bed.netns[0], "eth0") as sender,
            packet_socket(bed.netns[1], "eth0") as receiver,
        ):
            sender.send(ethernet(me, other, "ip", udp(mine, theirs, b"closed")))
            sender.send(ethernet(me, BROADCAST, "arp", arp(1, me, mine, theirs, b"behind it")))

            def has_come_all() -> bool:
                with suppress(BlockingIOError):
                    heard.append(receiver.recv(2048))
                return b"behind it" in b"".join(heard)

            wait_until(has_come_all)
    finally:
        bed.node.ip(f"link set limpet0 address {was}")
    assert b"closed" not in b"".join(heard)


def test_neighbour_discovery_is_no_way_out_of_a_closed_pod_and_none_into_it(bed: PolicyBed) -> None:
    """It passes between neighbours whatever the policies, and is never routed (RFC 4861)."""
    ways = [(0, -1), (-1, 0)]
    bed.enforce(NOTHING_SAID)
    assert [bed.passes(*way, 6, "ND", 0) for way in ways] == [True, True]
    bed.enforce(world_of(PODS, CLOSED))
    assert [bed.passes(*way, 6, "ND", 0) for way in ways] == [False, False]
    assert bed.passes(0, 1, 6, "ND", 0)


def test_who_holds_others_chains_open_for_the_bridge_opens_none_of_policies(bed: PolicyBed) -> None:
    bed.enforce(world_of(PODS, CLOSED))
    with bed.node.entered(), closing(HandleNftables()) as nft:
        assert not ensure_forward_accept(nft, ["limpet0"])
    assert not bed.passes(1, 0, 4, "UDP", 53)


def test_a_limited_pod_cannot_send_as_another_one(bed: PolicyBed) -> None:
    to_p2 = {"policyTypes": ["Egress"], "egress": [{"to": [{"podSelector": app(2)}]}]}
    for_p1 = {"podSelector": app(3), "ingress": [{"from": [{"podSelector": app(1)}]}]}
    bed.enforce(world_of(PODS, {"podSelector": app(0), **to_p2}, for_p1))
    bed.netns[0].ip("address add 10.244.7.3/32 dev lo")  # p1's
    try:
        with bed.netns[0].open_socket(4, socket.SOCK_STREAM) as client:
            client.bind((addresses_of(1)[4], 0))
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.connect((addresses_of(3)[4], 80))
    finally:
        bed.netns[0].ip("address delete 10.244.7.3/32 dev lo")
    assert not bed.passes(0, 3, 4, "TCP", 80)
    assert bed.passes(1, 3, 4, "TCP", 80)


def test_a_limited_pod_reaches_nobody_from_a_link_local_address_of_its_own_making(
    bed: PolicyBed,
) -> None:
    """Linux routes that, too, back to the link it came by."""
    router = bed.bed.kernel.bridges(["limpet0"])["limpet0"][1]
    me, other = (bed.bed.pods[f"p{n}"].attachment.link.mac for n in (0, 2))
    theirs = addresses_of(1)[6]
    heard: list[bytes] = []
    with (
        packet_socket(bed.netns[0], "eth0") as sender,
        packet_socket(bed.netns[2], "eth0") as marker,
        packet_socket(bed.netns[1], "eth0") as receiver,
    ):

        def comes(said: bytes) -> bool:
            """In any case what was sent behind it does."""
            heard.clear()
            sender.send(ethernet(me, router, "ip6", udp("fe80::bad", theirs, said)))
            behind = ethernet(other, router, "ip6", udp(addresses_of(2)[6], theirs, b"behind it"))
            marker.send(behind)

            def has_come_all() -> bool:
                with suppress(BlockingIOError):
                    heard.append(receiver.recv(2048))
                return b"behind it" in b"".join(heard)

            wait_until(has_come_all)
            return said in b"".join(heard)

        bed.enforce(NOTHING_SAID)
        assert comes(b"while it may")
        bed.enforce(world_of(PODS, {"podSelector": app(0), "policyTypes": ["Egress"]}))
        assert not comes(b"now that it may not")


@pytest.mark.parametrize("version", [4, 6])
def test_an_address_that_pods_may_have_beside_their_own_is_judged_as_theirs(
    bed: PolicyBed, version: int
) -> None:
    virtual = {4: "10.244.7.200", 6: "fd00:7::200"}[version]
    length = {4: 24, 6: 64}[version]
    from_p2 = {"ingress": [{"from": [{"podSelector": app(2)}]}]}
    labels = [app(number)["matchLabels"]["app"] for number in (0, 1)]
    either = {"matchExpressions": [{"key": "app", "operator": "In", "values": labels}]}
    bed.netns[0].ip(f"address add {virtual}/{length} dev eth0 nodad")
    try:
        with bed.netns[0].listening(virtual, 80) as server:
            for selected, holders, may_p2 in (
                (app(0), (0,), True),
                (app(0), (0, 1), False),  # who of the two has it now, nobody knows
                (either, (0, 1), True),
            ):
                world = world_of(PODS, {"podSelector": selected, **from_p2})
                bed.enforce(world, {number: [virtual] for number in holders})
                if may_p2:
                    talk(bed.netns[2], virtual, 80, server)
                for client in (bed.netns[3], bed.outside, *([] if may_p2 else [bed.netns[2]])):
                    with (
                        pytest.raises(TimeoutError),
                        client.connected(virtual, 80, patience_s=0.3),
                    ):
                        pass
    finally:
        bed.netns[0].ip(f"address delete {virtual}/{length} dev eth0")


def test_pods_of_another_plugins_bridge_are_held_where_the_node_sees_their_packets(
    bed: PolicyBed,
) -> None:
    """Between two of them it does with br_netfilter alone: docs/policies.md says so."""
    is_seen = bed.node.sysctl("net/bridge/bridge-nf-call-iptables") == "1"
    world = world_of(PODS, CLOSED)
    pods = [*world.pods.values()]
    ports = [replace(each, ifname="", mac="", bridge_mac="") for each in bed.ports(pods)]
    before, after = bed.tables, plan_tables(compile_sides(world, pods), ports)
    with bed.node.entered():
        bed.kernel.change(before, after)
    bed.tables = after

    assert not bed.passes(-1, 0, 4, "TCP", 80)
    assert not bed.passes(0, -1, 4, "TCP", 80)
    assert bed.passes(1, 0, 4, "TCP", 80) is not is_seen


def test_the_last_policy_takes_the_tables_with_it(bed: PolicyBed) -> None:
    bed.enforce(world_of(PODS, CLOSED))
    assert not bed.passes(1, 0, 4, "UDP", 53)
    assert bed.enforce(NOTHING_SAID) == NOTHING
    assert "limpet_policy" not in bed.node.run("nft", "list", "tables")
