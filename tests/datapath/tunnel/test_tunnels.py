"""What every backend of the encrypted tunnels has to do: the same tests for all."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from limpet.cluster.topology.tunnel_end import TunnelEnd
from tests.beds.overlay_bed import ping
from tests.beds.traffic.tunnel_traffic import (
    Flow,
    counters,
    fragments,
    is_silent,
    keys_of,
    link_notifications,
    move,
    send_bulk,
)
from tests.beds.tunnel_bed import (
    KernelWireguardTunnel,
    Tunnel,
    TunnelBed,
    WireguardTunnel,
    skip_without_kernel_wireguard,
)
from tests.datapath.tunnel.ipsec.ipsec_bed import IpsecTunnel, KernelEspTunnel, skip_without_esp
from tests.waiting import wait_until

KINDS = {
    "wireguard-kernel": KernelWireguardTunnel,
    "wireguard-go": WireguardTunnel,
    "ipsec": IpsecTunnel,
    "ipsec-kernel": KernelEspTunnel,
}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> type[Tunnel]:
    if request.param == "wireguard-kernel":
        skip_without_kernel_wireguard()
    if request.param == "ipsec-kernel":
        skip_without_esp()
    return KINDS[request.param]


@pytest.mark.parametrize("version", [4, 6])
def test_pods_of_two_sites_reach_each_other_over_either_underlay(
    tmp_path: Path, version: int, kind: type[Tunnel]
) -> None:
    bed = TunnelBed(2, tmp_path, version=version, kind=kind)
    with bed.undo:
        for one, other in bed.pairs():
            for inner in (4, 6):
                ping(one.node.pod, other.node.address(inner))
                ping(one.node.pod, other.node.overlay(inner))
                ping(one.node.netns, other.node.address(inner), "-I", one.node.overlay(inner))
                send_bulk(one.node.pod, other.node.pod, other.node.address(inner))
        assert [fragments(tunnel.node.netns) for tunnel in bed.tunnels] == [0, 0]
        for one, other in bed.pairs():
            for inner in (4, 6):
                # Larger than the path; the first tells the sender how large that is.
                three = ("-c", "3", "-i", "0.1", "-s", "4000")
                ping(one.node.pod, other.node.address(inner), *three)


def test_three_sites_reach_each_other_through_one_device_each(
    tmp_path: Path, kind: type[Tunnel]
) -> None:
    bed = TunnelBed(3, tmp_path, kind=kind)
    with bed.undo:
        for one, other in bed.pairs():
            ping(one.node.pod, other.node.address(4))
            ping(one.node.pod, other.node.address(6))


@pytest.mark.parametrize("version", [4, 6])
def test_full_packets_fit_a_path_that_is_narrower_than_the_links(
    tmp_path: Path, version: int, kind: type[Tunnel]
) -> None:
    bed = TunnelBed(2, tmp_path, version=version, kind=kind)
    with bed.undo:
        one, other = bed.tunnels
        bed.middle.ip(*(f"link set port{number} mtu 1492" for number in (1, 2)))
        for tunnel in bed.tunnels:
            tunnel.path_mtu_bytes = 1492
        bed.settle_tunnels()

        for inner in (4, 6):
            send_bulk(one.node.pod, other.node.pod, other.node.address(inner))

        places = (one.node.netns, other.node.netns, bed.middle)
        assert [fragments(netns) for netns in places] == [0, 0, 0]


def test_a_sender_outside_the_peers_prefixes_is_not_let_in(
    tmp_path: Path, kind: type[Tunnel]
) -> None:
    bed = TunnelBed(2, tmp_path, kind=kind)
    with bed.undo:
        one, other = bed.tunnels
        one.node.pod.ip("addr add 10.244.9.9/32 dev eth0")
        one.node.netns.ip("route add 10.244.9.9/32 dev limpet0")
        ping(one.node.pod, other.node.address(4))
        before = counters(other.node.pod, "Icmp")["InEchos"]

        assert is_silent(one.node.pod, other.node.address(4), "-I", "10.244.9.9")

        ping(one.node.pod, other.node.address(4))
        assert counters(other.node.pod, "Icmp")["InEchos"] == before + 1


def test_a_change_of_one_peer_touches_no_other_and_no_flow_loses_a_packet(
    tmp_path: Path, kind: type[Tunnel]
) -> None:
    bed = TunnelBed(3, tmp_path, kind=kind)
    with bed.undo:
        one, other, third = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        before = one.session(other)
        nodes = bed.entries()
        for tunnel, number in ((third, 77), (other, 78)):  # the gateways of their new segments
            tunnel.node.netns.ip(f"addr add 10.244.{number}.1/32 dev limpet0")
        changed = {**nodes}
        more = (*third.node.grant.segments, ip_network("10.244.77.0/24"))
        changed[third.node.uid] = replace(
            nodes[third.node.uid], grant=replace(third.node.grant, segments=more)
        )
        without = {uid: entry for uid, entry in nodes.items() if uid != third.node.uid}
        # Of the peer that the flow goes to: it gets a prefix, and loses it.
        grown = {**nodes}
        more = (*other.node.grant.segments, ip_network("10.244.78.0/24"))
        grown[other.node.uid] = replace(
            nodes[other.node.uid], grant=replace(other.node.grant, segments=more)
        )

        flow = Flow(one.node.pod, other.node.pod, other.node.address(4))
        with flow.running():
            for _ in range(3):
                for snapshot in (changed, nodes, without, nodes):
                    changes = one.settle(snapshot)
                    assert keys_of(changes) == {third.key.public_key}
                    flow.goes_on()
                for snapshot in (grown, nodes):
                    changes = one.settle(snapshot)
                    assert keys_of(changes) == {other.key.public_key}
                    flow.goes_on()

        assert flow.lost == 0
        assert one.session(other) == before
        one.connect((other, third))
        ping(one.node.pod, third.node.address(6))


def test_a_prefix_moves_between_peers_in_one_round(tmp_path: Path, kind: type[Tunnel]) -> None:
    bed = TunnelBed(3, tmp_path, kind=kind)
    with bed.undo:
        one, other, third = bed.tunnels
        nodes = bed.entries()
        moving = ip_network("10.244.77.0/24")
        for holder in (other, third, other):
            entry = nodes[holder.node.uid]
            more = (*holder.node.grant.segments, moving)
            grant = replace(holder.node.grant, segments=more)
            one.settle({**nodes, holder.node.uid: replace(entry, grant=grant)})
            assert moving in one.kernel.have.peers[holder.key.public_key].allowed
        one.settle(nodes)
        assert all(moving not in peer.allowed for peer in one.kernel.have.peers.values())


def test_a_tunnels_own_packets_never_go_into_another_tunnel(
    tmp_path: Path, kind: type[Tunnel]
) -> None:
    bed = TunnelBed(3, tmp_path, kind=kind)
    with bed.undo:
        one, other, third = bed.tunnels
        # What is behind one peer has its own address in it, and that of another's site.
        parts = (ip_network("172.20.2.0/24"), ip_network("172.20.3.0/24"))
        other.node.grant = replace(other.node.grant, prefixes_behind=parts)
        one.settle(bed.entries())
        for peer in (other, third):
            led = one.node.netns.run("ip", "route", "get", bed.underlay(peer.node, 4))
            assert one.ifname in led

        for peer in (other, third):
            for inner in (4, 6):
                ping(one.node.pod, peer.node.address(inner))

            assert one.reading(peer).peer.endpoint == bed.endpoint(peer)


def test_a_peer_that_moves_is_followed_and_an_older_plan_does_not_bring_it_back(
    tmp_path: Path, kind: type[Tunnel]
) -> None:
    bed = TunnelBed(2, tmp_path, kind=kind)
    with bed.undo:
        one, other = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        moved = (ip_address(move(bed, other)), other.key.port)

        wait_until(lambda: not is_silent(other.node.pod, one.node.address(4)))

        wait_until(lambda: one.reading(other).peer.endpoint == moved)
        assert one.settle(bed.entries()) == []
        one.restart()
        assert one.settle(bed.entries()) == []
        ping(one.node.pod, other.node.address(6))
        assert one.reading(other).peer.endpoint == moved


def test_a_peer_that_knows_no_endpoint_is_reached_and_answers(
    tmp_path: Path, kind: type[Tunnel]
) -> None:
    bed = TunnelBed(2, tmp_path, kind=kind)
    with bed.undo:
        one, other = bed.tunnels
        entries = bed.entries()
        only_one = {one.node.uid: entries[one.node.uid]}
        other.settle({other.node.uid: entries[other.node.uid]})
        one.settle(only_one)
        other.ends = {}
        other.settle(entries)
        one.ends = {other.node.uid: TunnelEnd(bed.endpoint(other), behind_nat=True)}

        one.settle(entries)

        wait_until(lambda: other.reading(one).peer.endpoint is not None)
        other.connect([one])
        one.connect([other])  # one end has its SA a moment before the other
        ping(other.node.pod, one.node.address(4))


def test_the_agents_restart_finds_everything_as_it_was(tmp_path: Path, kind: type[Tunnel]) -> None:
    bed = TunnelBed(2, tmp_path, kind=kind)
    with bed.undo:
        one, other = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        pid, session = one.pid, one.session(other)

        one.restart()
        changes = one.settle(bed.entries())

        assert (changes, one.pid, one.session(other)) == ([], pid, session)
        ping(one.node.pod, other.node.address(6))


def test_a_tunnel_that_is_ended_from_outside_is_made_anew_with_the_same_key_and_port(
    tmp_path: Path, kind: type[Tunnel]
) -> None:
    bed = TunnelBed(2, tmp_path, kind=kind)
    with bed.undo:
        one, other = bed.tunnels
        ping(one.node.pod, other.node.address(4))
        pid = one.pid
        with link_notifications(one) as told:
            one.end()
            while one.node.route.link(one.ifname) is not None:
                assert told(), "the kernel did not tell that the device is gone"

        one.settle(bed.entries())

        assert pid is None or one.pid != pid
        device = one.kernel.have.device
        assert device is not None
        assert device == one.wanted(one.plan.state).device
        one.connect([other])
        # A handshake that is refused, as one of just now was, is tried again after 5 s.
        ping(one.node.pod, other.node.address(4), "-W", "15")
        ping(other.node.pod, one.node.address(6), "-W", "15")
