"""Of a standing flow nothing is looked at: those of pods to a peer end when it becomes one."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from ipaddress import ip_address

import pytest

from limpet.base.ownership import NFT_OVERLAY_TABLE
from limpet.cluster.topology import transports
from limpet.cluster.topology.view import View
from limpet.datapath.overlay.filter.apply import PeerFilter, PutFilter
from limpet.datapath.overlay.plan import plan_overlay
from limpet.datapath.overlay.state import OverlayPlan
from limpet.linux.nftables import Nftables
from tests.beds.overlay_bed import OverlayBed, vtep_mac
from tests.datapath.overlay.test_overlay_filter import FAMILIES, SOON_S, forge
from tests.waiting import PATIENCE_S, until

VXLAN, EXCHANGE, TUNNEL = PORTS = (8472, 7471, 23456)


@dataclass
class Standing:
    """The third node comes to know the first, to which it and its pod have sent already."""

    bed: OverlayBed
    version: int
    filter: PeerFilter
    before: tuple[View, OverlayPlan]
    after: tuple[View, OverlayPlan]
    vxlan: socket.socket
    """Of the pod, to the port of VXLAN."""

    def put(self, view: View, before: OverlayPlan, after: OverlayPlan) -> None:
        with self.bed.nodes[2].netns.entered():
            change = self.filter.diff(view, before, after)
            assert change is not None
            self.filter.put(change)
            asyncio.run(forget_flows(self.filter))

    def flows(self, port: int) -> list[str]:
        """Who has begun those to the first node, addresses."""
        target = self.bed.underlay(self.bed.nodes[0], self.version)
        told = self.bed.nodes[2].netns.run(
            "conntrack", "-L", "-p", "udp", "-f", f"ipv{self.version}"
        )
        return sorted(re.findall(rf"src=(\S+) dst={target} sport=\d+ dport={port} ", told))

    def is_injected(self, patience_s: float = SOON_S) -> bool:
        """Into another's pod, in the name of the third node's."""
        one = self.bed.nodes[0]
        packet = forge("10.244.3.99", one.address(4), mac=vtep_mac(1, self.version))
        with one.pod.open_socket(4, socket.SOCK_DGRAM) as server:
            server.bind((one.address(4), 5000))
            server.settimeout(patience_s)
            self.vxlan.send(packet)
            try:
                return bool(server.recv(16))
            except TimeoutError:
                return False


async def forget_flows(of: PeerFilter) -> None:
    of.forget_flows()
    await until(lambda: of.early_flows.is_done)


@pytest.fixture(params=FAMILIES, ids=["underlay4", "underlay6"])
def standing(request: pytest.FixtureRequest) -> Iterator[Standing]:
    version = request.param
    bed = OverlayBed(3)
    with ExitStack() as stack:
        stack.callback(bed.close)
        bed.join(transports.VXLAN, version)
        for node in bed.nodes:
            at = (ip_address(bed.underlay(node, version)),)
            node.presence = replace(node.presence, addresses=at, tunnel_port=TUNNEL)
        bed.settle()
        one, _, sender = bed.nodes
        sender.netns.run(
            "nft",
            f"table {'ip' if version == 4 else 'ip6'} natted {{ chain c {{ type nat hook "
            "postrouting priority srcnat; oifname eth0 masquerade; }; }",
        )
        with sender.netns.entered():
            whole = PeerFilter(lambda: ["limpet0"], EXCHANGE)
        stack.callback(whole.close)
        plans = []
        for known in ((), (one.uid,)):
            view = sender.view(
                {
                    uid: each
                    for uid, each in bed.entries().items()
                    if uid in (*known, sender.uid, bed.nodes[1].uid)
                }
            )
            plans.append((view, plan_overlay(view)))
        flows = []
        for netns in (sender.pod, sender.netns):
            for port in PORTS:
                flow = stack.enter_context(netns.open_socket(version, socket.SOCK_DGRAM))
                flow.connect((bed.underlay(one, version), port))
                flow.send(b"early")
                flows.append(flow)
        before, after = plans
        yield Standing(bed, version, whole, before, after, flows[0])


def test_flows_of_pods_to_whoever_becomes_a_peer_end_and_those_of_the_node_stay(
    standing: Standing,
) -> None:
    (view, without), (later, with_it) = standing.before, standing.after
    standing.put(view, OverlayPlan(), without)
    assert standing.is_injected(PATIENCE_S), "an attempt that comes to nothing anyway"
    assert all(len(standing.flows(port)) == 2 for port in PORTS)

    standing.put(later, without, with_it)

    own = standing.bed.underlay(standing.bed.nodes[2], standing.version)
    assert [standing.flows(port) for port in PORTS] == [[own]] * 3
    assert not standing.is_injected()
    assert standing.filter.forged_packets() == 1
    with standing.bed.nodes[2].netns.entered():
        assert standing.filter.diff(later, with_it, with_it) is None


def test_so_do_those_that_an_agent_had_left_which_ended_between_filter_and_flows(
    standing: Standing,
) -> None:
    later, with_it = standing.after
    sender = standing.bed.nodes[2].netns
    with sender.entered():
        standing.filter.put(PutFilter(later, with_it))
    assert standing.is_injected(PATIENCE_S)

    with sender.entered():
        of_next_agent = PeerFilter(lambda: ["limpet0"], EXCHANGE)
        try:
            if change := of_next_agent.diff(later, OverlayPlan(), with_it):
                of_next_agent.put(change)
            asyncio.run(forget_flows(of_next_agent))
        finally:
            of_next_agent.close()

    assert len(standing.flows(VXLAN)) == 1
    assert not standing.is_injected()


def test_so_do_those_begun_while_another_program_had_deleted_the_filter(
    standing: Standing,
) -> None:
    later, with_it = standing.after
    sender = standing.bed.nodes[2].netns
    standing.put(later, OverlayPlan(), with_it)
    assert not standing.is_injected()
    sender.run("nft", "delete", "table", "inet", NFT_OVERLAY_TABLE)
    assert standing.is_injected(PATIENCE_S)

    standing.filter.in_place = False
    standing.put(later, with_it, with_it)

    assert not standing.is_injected()


def test_flows_to_many_new_peers_are_read_at_once(standing: Standing) -> None:
    (view, without), (later, with_it) = standing.before, standing.after
    standing.put(view, OverlayPlan(), without)
    one = standing.bed.nodes[0]
    range_of = {4: "198.51.100.", 6: "2001:db8::"}[standing.version]
    more = tuple(ip_address(f"{range_of}{number}") for number in range(1, 21))
    part = with_it.parts[one.uid]
    wide = replace(
        with_it, parts={**with_it.parts, one.uid: part._replace(addresses=part.addresses + more)}
    )

    standing.put(later, without, wide)

    assert all(len(standing.flows(port)) == 1 for port in PORTS)


TRACKING = "table ip other { chain c { type filter hook output priority 0; ct state new; }; }"


def test_no_connection_is_tracked_for_the_filter_alone(standing: Standing) -> None:
    """Which takes a tenth of what passes between nodes."""
    later, with_it = standing.after
    node = standing.bed.nodes[0].netns
    with ExitStack() as stack:
        stack.enter_context(node.entered())
        stack.callback((nft := Nftables(NFT_OVERLAY_TABLE)).close)
        stack.callback((whole := PeerFilter(lambda: ["limpet0"], EXCHANGE)).close)
        for is_tracked in (False, True):
            whole.in_place = False
            if change := whole.diff(later, OverlayPlan(), with_it):
                whole.put(change)
            assert ("ct status dnat" in (nft.list_table() or "")) == is_tracked
            assert (node.sysctl("net/netfilter/nf_conntrack_count") != "0") == is_tracked
            node.run("nft", TRACKING)
            with node.open_socket(4, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"", ("127.0.0.1", 9))
