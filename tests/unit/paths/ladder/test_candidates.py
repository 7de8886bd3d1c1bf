"""What may be asked of a peer."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Address, Endpoint, UnderlayLink
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath, RelayEnd
from limpet.cluster.topology.transports import ProbeKind
from limpet.paths.ladder.candidates import (
    CandidateFacts,
    candidates_for,
    nearness,
    tunnel_endpoints,
)
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.probe.messages import Candidate

PORT = 51820
LAN, FAR, V6, MAPPED, PUBLIC = (
    ip_address(text)
    for text in ("10.1.0.9", "10.9.0.9", "2001:db8::9", "203.0.113.9", "198.51.100.9")
)
ETH0 = UnderlayLink(
    "eth0",
    2,
    "02:00:00:00:00:01",
    1500,
    (ip_interface("10.1.0.2/24"), ip_interface("2001:db8:1::2/64")),
)
PRESENCE = Presence(
    "uid", 1, "boot", addresses=(V6, FAR, LAN), endpoints=((MAPPED, 4000),), tunnel_port=PORT
)

BROADCAST = ip_address("255.255.255.255")


def asks(facts: CandidateFacts, path: PeerPath | None = None) -> set[tuple[ProbeKind, str]]:
    return {
        (candidate.kind, str(candidate.address))
        for candidate in candidates_for(facts, (ETH0,), path)
    }


def test_the_nearest_endpoint_comes_first_and_mapped_ones_last() -> None:
    heard = (PUBLIC, 5000)
    assert tunnel_endpoints(PRESENCE, (heard,), (ETH0,)) == (
        (LAN, PORT),
        (FAR, PORT),
        (V6, PORT),
        heard,
        (MAPPED, 4000),
    )


def test_a_peer_without_a_tunnel_has_no_endpoints() -> None:
    assert tunnel_endpoints(replace(PRESENCE, tunnel_port=0), ((MAPPED, 1),), (ETH0,)) == ()


def test_no_endpoint_lies_in_what_goes_through_the_tunnel() -> None:
    pods = (ip_network("10.9.0.0/16"),)
    found = tunnel_endpoints(PRESENCE, (), (ETH0,), overlay=pods)
    assert FAR not in {address for address, _port in found}


@given(
    st.lists(st.ip_addresses(), max_size=40),
    st.lists(st.tuples(st.ip_addresses() | st.just(BROADCAST), st.integers(0, 65535)), max_size=40),
    st.lists(st.tuples(st.just(MAPPED), st.integers(1, 65535)), max_size=3, unique=True),
    st.booleans(),
)
def test_whatever_a_peer_names_a_few_are_asked_and_where_it_was_heard_is_among_them(
    addresses: list[Address], endpoints: list[Endpoint], heard: list[Endpoint], ipv6_last: bool
) -> None:
    presence = replace(PRESENCE, addresses=tuple(addresses), endpoints=tuple(endpoints))
    found = tunnel_endpoints(presence, heard, (ETH0,), ipv6_last=ipv6_last)
    assert len(found) <= 12
    assert set(heard) <= set(found)
    ranks = [nearness(address, (ETH0,), ipv6_last=ipv6_last) for address, _port in found]
    assert ranks == sorted(ranks)
    versions = [address.version for address, _port in found]
    assert not ipv6_last or versions == sorted(versions)
    assert all(port and not address.is_loopback for address, port in found)
    assert BROADCAST not in {address for address, _port in found}


def test_only_private_addresses_and_those_on_a_link_are_asked_for_unencrypted_ways() -> None:
    on_link = ip_address("2001:db8:1::9")
    found = asks(CandidateFacts((LAN, FAR, V6, MAPPED, on_link), 7471))
    assert {address for ask, address in found if ask is ProbeKind.SITE} == {
        str(LAN),
        str(FAR),
        str(on_link),
    }


def test_a_private_address_proves_nothing_for_a_node_that_has_none_itself() -> None:
    public = replace(ETH0, addresses=(ip_interface("198.51.100.2/24"),))
    assert candidates_for(CandidateFacts((FAR,), 7471), (public,), None) == ()


def test_where_everything_is_encrypted_only_tunnelled_ways_are_asked() -> None:
    facts = CandidateFacts(
        (LAN,), 7471, overlay=(4,), clear=False, tunnel=True, endpoints=((LAN, PORT),)
    )
    assert asks(facts) == {(ProbeKind.TUNNEL, str(LAN))}


def test_a_path_that_would_go_unencrypted_is_given_up_where_everything_is_encrypted() -> None:
    ladder = Ladder(PeerPath(transports.VXLAN, 1500, underlay=LAN))
    ladder.settle(CandidateFacts((LAN,), 7471), (ETH0,), at_s=0, urgent=True)
    assert ladder.path is not None
    ladder.settle(CandidateFacts((LAN,), 7471, clear=False), (ETH0,), at_s=1, urgent=True)
    assert ladder.path is None


def test_relays_and_the_endpoint_of_the_path_are_asked_too() -> None:
    end = RelayEnd("relay", (PUBLIC, 21000))
    facts = CandidateFacts(tunnel=True, relay_ends=(end,))
    path = PeerPath(transports.TUNNEL, 1420, endpoint=(MAPPED, 4000))
    assert set(candidates_for(facts, (ETH0,), path)) == {
        Candidate(ProbeKind.TUNNEL, PUBLIC, 21000, relay="relay"),
        Candidate(ProbeKind.TUNNEL, MAPPED, 4000),
    }


def test_a_connection_of_a_former_agent_is_not_asked() -> None:
    path = PeerPath(
        transports.RELAY_TLS, 1420, endpoint=(ip_address("127.0.0.1"), 4000), relay="relay"
    )
    assert candidates_for(CandidateFacts(tunnel=True), (ETH0,), path) == ()
