"""MACs, underlay addresses, sources and sizes: whose pods' packets go where, and which come in."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from limpet.base.ownership import NFT_OVERLAY_TABLE, TUNNEL_PORTS
from limpet.datapath.overlay.filter.ruleset import plan_filter
from limpet.datapath.overlay.plan import plan_overlay
from limpet.linux.nftables import Nftables
from tests.beds.overlay_bed import Node, is_lost, ping, vtep_mac
from tests.claims.claims_bed import ClaimsBed, counting
from tests.datapath.overlay.test_overlay_filter import SOON_S, forge, reaches_port
from tests.paths.probing_bed import PORT
from tests.waiting import PATIENCE_S

VXLAN = "udp dport 8472"


@pytest.fixture(scope="module")
def bed() -> Iterator[ClaimsBed]:
    with contextlib.closing(ClaimsBed()) as made:
        yield made


def test_a_node_that_announces_anothers_mac_gets_none_of_its_packets(bed: ClaimsBed) -> None:
    with (
        bed.claiming(vtep_macs=bed.victim.presence.vtep_macs),
        counting(bed.claimant.netns, VXLAN) as drawn,
    ):
        for version in (4, 6):
            ping(bed.watcher.pod, bed.victim.address(version))
        assert is_lost(bed.watcher.pod, bed.claimant.address(4))
        assert drawn() == 0
    ping(bed.watcher.pod, bed.claimant.address(4))


@pytest.mark.parametrize("recorded", [True, False], ids=["in-the-grant", "in-no-record"])
def test_a_mac_from_flannel_is_the_nodes_in_whose_grant_it_is_and_else_nobodys(
    bed: ClaimsBed, recorded: bool
) -> None:
    macs = {version: vtep_mac(bed.victim.number, version) for version in (4, 6)}
    granted, own = bed.victim.grant, bed.victim.own
    try:
        bed.victim.own = replace(own, vtep_macs=macs)
        bed.victim.grant = replace(granted, vtep_macs=macs if recorded else {})
        with (
            bed.claiming(bed.victim, vtep_macs=macs),
            bed.claiming(vtep_macs=macs),
            counting(bed.claimant.netns, VXLAN) as drawn,
        ):
            if recorded:
                ping(bed.watcher.pod, bed.victim.address(4))
            else:
                assert is_lost(bed.watcher.pod, bed.victim.address(4))
            assert is_lost(bed.watcher.pod, bed.claimant.address(4))
            assert drawn() == 0
    finally:
        bed.victim.grant, bed.victim.own = granted, own
        bed.settle()
    ping(bed.watcher.pod, bed.victim.address(4))


def test_a_node_that_announces_our_own_mac_is_the_only_one_that_is_not_reached(
    bed: ClaimsBed,
) -> None:
    with bed.claiming(vtep_macs=bed.watcher.presence.vtep_macs):
        ping(bed.watcher.pod, bed.victim.address(4))
        ping(bed.victim.pod, bed.watcher.address(4))
        assert is_lost(bed.watcher.pod, bed.claimant.address(4))


def test_a_node_that_tells_a_link_of_no_size_is_the_only_one_that_is_not_reached(
    bed: ClaimsBed,
) -> None:
    with bed.claiming(link_mtu_bytes=0):
        ping(bed.watcher.pod, bed.victim.address(6))
        assert is_lost(bed.watcher.pod, bed.claimant.address(6))


def test_a_node_that_names_anothers_underlay_address_sends_nothing_as_that_one(
    bed: ClaimsBed,
) -> None:
    victims = tuple(ip_address(bed.underlay(bed.victim, version)) for version in (4, 6))
    own = tuple(ip_address(bed.underlay(bed.claimant, version)) for version in (4, 6))
    with bed.claiming(addresses=(*victims, *own)), bed.watcher.netns.entered():
        nft = Nftables(NFT_OVERLAY_TABLE)
        with contextlib.closing(nft):
            view = bed.watcher.view(bed.entries())
            nft.put_table(plan_filter(view, plan_overlay(view), bridges=["limpet0"]))
            assert _arrives(bed, bed.claimant, bed.claimant.address(4), PATIENCE_S)
            assert not _arrives(bed, bed.claimant, bed.victim.address(4))
            assert not _arrives(bed, bed.claimant, "10.244.77.5")  # of nobody's segment
            ping(bed.watcher.pod, bed.victim.address(4))  # what the victim sends comes in as ever
            nft.run(f"delete table inet {NFT_OVERLAY_TABLE}", what="the filter")


def test_a_name_servers_port_that_a_node_claims_for_its_tunnel_stays_open_to_pods(
    bed: ClaimsBed,
) -> None:
    """The victim's node has the name server. A port of tunnels' is closed to pods, wherever a node
    says to be: whoever speaks there speaks for a node."""
    server = bed.underlay(bed.victim, 4)
    masquerade = (
        "table ip natted { chain c { type nat hook postrouting priority srcnat; "
        "oifname eth0 masquerade; }; }"
    )
    with contextlib.ExitStack() as undo:
        bed.watcher.netns.run("nft", masquerade)
        undo.callback(bed.watcher.netns.run, "nft", "delete table ip natted")
        undo.enter_context(bed.watcher.netns.entered())
        nft = Nftables(NFT_OVERLAY_TABLE)
        undo.callback(nft.close)
        gone = f"add table inet {NFT_OVERLAY_TABLE}\ndelete table inet {NFT_OVERLAY_TABLE}"
        undo.callback(nft.run, gone, what="the filter")
        for port, is_open in ((53, True), (TUNNEL_PORTS[0], False)):
            claims: dict[str, Any] = {"port": port, "tunnel_port": port, "relay_tls_port": port}
            with bed.claiming(addresses=(ip_address(server),), **claims):
                view = bed.watcher.view(bed.entries())
                plan = plan_overlay(view)
                nft.put_table(plan_filter(view, plan, bridges=["limpet0"], peer_port=PORT))
                patience_s = PATIENCE_S if is_open else SOON_S
                ends = (bed.watcher, bed.victim.netns, server, port)
                assert reaches_port(bed, *ends, patience_s=patience_s) is is_open


def _arrives(bed: ClaimsBed, sender: Node, source: str, patience_s: float = SOON_S) -> bool:
    """Whether a packet from that inner source gets to the watcher's pod."""
    target = bed.watcher.address(4)
    packet = forge(source, target, mac=bed.watcher.presence.vtep_macs[4])
    with (
        bed.watcher.pod.open_socket(4, socket.SOCK_DGRAM) as server,
        sender.netns.open_socket(4, socket.SOCK_DGRAM) as client,
    ):
        server.bind((target, 5000))
        server.settimeout(patience_s)
        client.sendto(packet, (bed.underlay(bed.watcher, 4), 8472))
        try:
            return server.recv(16) == b"evil"
        except TimeoutError:
            return False
