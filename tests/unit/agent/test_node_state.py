"""What the reconciler of pods is told of the node's place in its cluster."""

from __future__ import annotations

from limpet.agent.node_state import overlay_links
from limpet.base.ownership import IPSEC_IFNAME
from limpet.base.settings import TunnelSettings


def test_all_devices_that_packets_of_peers_may_come_by_count_as_the_overlays() -> None:
    found = overlay_links(TunnelSettings(ifname="mine0"))

    assert found == {"limvx4", "limvx6", "mine0", IPSEC_IFNAME}
