"""What comes out of a tunnel is for the cluster: pods, and what is known to be behind a node."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from limpet.cluster.topology import transports
from limpet.cluster.topology.transports import Transport
from limpet.datapath.tunnel.diff import PutTunnelPeer
from tests.beds.namespaces import connect_namespaces
from tests.beds.overlay_bed import is_lost
from tests.datapath.tunnel.site_tunnel_bed import SiteTunnelBed
from tests.waiting import wait_until

PRINTER = "192.168.55.7"


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[SiteTunnelBed]:
    made = SiteTunnelBed(tmp_path)
    yield made
    made.close()


class Intruder:
    """A member whose node sends to another's LAN, of which that node is the gateway: answers would
    find back."""

    def __init__(self, bed: SiteTunnelBed, rung: Transport) -> None:
        self.thief, self.victim = bed.agents
        self._by_tunnel = rung is transports.TUNNEL
        printer = bed.namespace("printer")
        connect_namespaces(self.victim.node.netns, "lan0", printer, "eth0")
        self.victim.node.netns.ip("addr add 192.168.55.1/24 dev lan0")
        printer.ip(f"addr add {PRINTER}/24 dev eth0", "route add default via 192.168.55.1")
        bed.join_all(rung)
        wait_until(self.reaches_pod, "pods reach each other")
        assert not is_lost(self.victim.node.pod, PRINTER)
        self.break_in()

    def break_in(self) -> None:
        thief, netns = self.thief, self.thief.node.netns
        if self._by_tunnel:
            key = self.victim.peer_parts.tunnels.wireguard.key.public_key
            more = PutTunnelPeer(key, add=(ip_network("192.168.55.0/24"),))
            assert thief.do(lambda: thief.peer_parts.tunnels.wireguard.kernel.apply([more])) == []
            netns.ip(f"route replace {PRINTER}/32 dev {thief.ifname}")
        else:
            shown = netns.run("ip", "neigh", "show", "dev", "limvx4").split()
            netns.ip(f"route replace {PRINTER}/32 via {shown[0]} dev limvx4 onlink")

    def reaches_pod(self) -> bool:
        return not is_lost(self.thief.node.pod, self.victim.node.address(4))

    def reaches_printer(self) -> bool:
        return not is_lost(self.thief.node.pod, PRINTER)


@pytest.mark.parametrize("rung", [transports.TUNNEL, transports.VXLAN], ids=["tunnel", "vxlan"])
def test_a_member_does_not_get_into_the_lan_of_another_site(
    bed: SiteTunnelBed, rung: Transport
) -> None:
    intruder = Intruder(bed, rung)

    assert not intruder.reaches_printer()
    assert intruder.reaches_pod()


def test_nor_does_it_when_the_tunnel_was_lost_and_is_made_anew(bed: SiteTunnelBed) -> None:
    intruder = Intruder(bed, transports.TUNNEL)

    intruder.victim.lose_tunnel()
    wait_until(intruder.reaches_pod, "the new tunnel carries")
    intruder.break_in()

    assert not intruder.reaches_printer()
    assert intruder.reaches_pod()


def test_nor_when_somebody_has_deleted_the_device(bed: SiteTunnelBed) -> None:
    intruder = Intruder(bed, transports.VXLAN)

    intruder.victim.node.netns.ip("link delete limvx4")
    wait_until(intruder.reaches_pod, "the new device carries")

    assert not intruder.reaches_printer()
    assert intruder.reaches_pod()
