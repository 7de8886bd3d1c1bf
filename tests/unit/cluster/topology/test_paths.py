"""Where the packets of a proven path go."""

from __future__ import annotations

from ipaddress import ip_address

from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath

V4, V6 = ip_address("203.0.113.5"), ip_address("2001:db8::5")


def test_a_path_ends_at_each_address_of_the_underlay_that_it_goes_by() -> None:
    route = PeerPath(transports.ROUTE, device="eth0", next_hops=(V4, V6), underlay=V4)
    assert set(route.ends) == {(V4, 0), (V6, 0)}
    assert PeerPath(transports.TUNNEL, endpoint=(V4, 51820)).ends == ((V4, 51820),)
    assert PeerPath(transports.RELAY, endpoint=(V6, 21000), relay="r").ends == ((V6, 21000),)


def test_what_the_agent_passes_into_tls_ends_nowhere_on_the_underlay() -> None:
    at = (ip_address("127.0.0.1"), 40000)
    assert PeerPath(transports.RELAY_TLS, endpoint=at, relay="r").ends == ()
