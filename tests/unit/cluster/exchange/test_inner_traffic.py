"""What agents say to each other through tunnels is told to who looks at the tunnels' traffic."""

from __future__ import annotations

from ipaddress import ip_address

from limpet.cluster.datagrams.peer_datagram import OVERHEAD_BYTES
from limpet.cluster.exchange.inner_traffic import InnerPackets, InnerTraffic


def test_packets_are_told_once_by_peer_with_their_headers() -> None:
    inner = InnerTraffic()
    inner.sent("a", ip_address("10.0.0.1"), b"x" * 100)
    inner.received("a", ip_address("fd00::1"), b"x" * 10)
    inner.sent("b", ip_address("10.0.1.1"), b"")

    assert inner.take() == {
        "a": InnerPackets([OVERHEAD_BYTES + 58], [OVERHEAD_BYTES + 128]),
        "b": InnerPackets([], [OVERHEAD_BYTES + 28]),
    }
    assert inner.take() == {}
