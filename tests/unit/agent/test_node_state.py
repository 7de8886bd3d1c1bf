"""What the reconciler of pods is told of the node's place in its cluster."""

from __future__ import annotations

from limpet.agent.node_state import overlay_links, own_ports
from limpet.base.ownership import IPSEC_IFNAME
from limpet.base.settings import PeerSettings, RelaySettings, TunnelSettings


def test_all_devices_that_packets_of_peers_may_come_by_count_as_the_overlays() -> None:
    found = overlay_links(TunnelSettings(ifname="mine0"))

    assert found == {"limvx4", "limvx6", "mine0", IPSEC_IFNAME}


def test_a_node_that_is_a_relay_has_the_ports_of_its_clients_too() -> None:
    relay = RelaySettings(ports=(21000, 22999), tls_listen=(("::", 443), ("192.0.2.1", 8443)))
    everybodys = {("UDP", 7471, 7471), ("UDP", 8472, 8472), ("UDP", 23456, 23456)}

    assert own_ports(PeerSettings(), None, (8472, 23456, 0)) == everybodys
    assert own_ports(PeerSettings(), relay, (8472, 23456)) == {
        *everybodys,
        ("UDP", 21000, 22999),
        ("TCP", 443, 443),
        ("TCP", 8443, 8443),
    }
