"""What a node says of itself where it has more than it may say."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.beds.member import member_without_disk
from tests.unit.cluster_values import node_key, seal_presence

from limpet.base.addresses import UnderlayLink
from limpet.base.bounds.members import (
    PRESENCE_ADDRESSES,
    PRESENCE_BODY,
    PRESENCE_ENDPOINTS,
    SEQUENCE,
)
from limpet.base.errors import KernelError
from limpet.base.settings import PeerSettings
from limpet.cluster.kinds import KINDS
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.seal import read_sealed
from limpet.datapath.own_node import OwnNode, best_addresses, best_endpoints
from limpet.linux.netlink.socket import RouteSocket
from limpet.paths.ladder.candidates import CandidateFacts

MOST = PRESENCE_ADDRESSES.most


def link(number: int, *addresses: str) -> UnderlayLink:
    held = tuple(map(ip_interface, addresses))
    return UnderlayLink(f"eth{number}", number, "02:00:00:00:00:01", 1500, held)


def test_a_link_with_hundreds_of_addresses_leaves_room_for_one_of_each_other() -> None:
    crowded = link(1, *(f"192.0.{n >> 8}.{n & 255}/16" for n in range(400)))
    others = [link(n, f"10.0.{n}.1/24", f"2001:db8:{n:x}::1/64") for n in range(2, 10)]
    found = best_addresses([crowded, *others])
    assert len(found) == MOST
    for other in others:
        assert {address.ip for address in other.addresses} <= set(found)
    assert found[0] == ip_address("192.0.0.0")


def test_peers_look_at_an_address_of_each_link_whatever_the_first_one_has() -> None:
    privacy = (f"2001:db8:1::{n:x}/64" for n in range(1, 12))
    uplink, lan = link(1, "203.0.113.7/24", *privacy), link(2, "192.168.7.7/24")

    facts = CandidateFacts(best_addresses([uplink, lan]))

    assert ip_address("192.168.7.7") in facts.named


@given(st.lists(st.lists(st.integers(1, 250), unique=True, max_size=6), max_size=6))
def test_what_fits_is_told_the_first_of_each_link_before_the_second_of_any(
    links: list[list[int]],
) -> None:
    made = [
        link(number, *(f"10.0.{number}.{n}/24" for n in held)) for number, held in enumerate(links)
    ]
    in_turn = [
        each.addresses[at].ip for at in range(6) for each in made if at < len(each.addresses)
    ]
    assert list(best_addresses(made)) == in_turn[:MOST]


def test_of_too_many_endpoints_those_that_are_reached_from_everywhere_are_told() -> None:
    written = [(ip_address("10.9.9.9"), 1)]
    private = [(ip_address(f"10.0.0.{n}"), 7472) for n in range(40)]
    public = [(ip_address(f"8.8.8.{n}"), 7472) for n in range(20)]
    found = best_endpoints(written, [*private, *public])
    assert len(found) == PRESENCE_ENDPOINTS.most
    assert {*written, *public} <= set(found)
    assert found[:1] == tuple(written)
    assert best_endpoints(written, private[:3]) == (*written, *private[:3])


def test_a_node_that_says_all_that_it_may_is_heard() -> None:
    """The longest addresses, ports and names that there are."""
    longest = (0xFDFF << 112) + (1 << 112) - 1
    presence = Presence(
        "a" * 24,
        SEQUENCE.most,
        "b" * 36,
        tuple(ip_address(longest - n) for n in range(MOST)),
        tuple((ip_address(longest - n), 65535) for n in range(PRESENCE_ENDPOINTS.most)),
        65535,
        {4: "ff:ff:ff:ff:ff:ff", 6: "ff:ff:ff:ff:ff:ff"},
        65535,
        65535,
        65535,
    )
    sealed = seal_presence(presence, node_key(1))
    assert len(sealed.body) <= PRESENCE_BODY.most
    assert read_sealed(sealed, KINDS).value == presence


def test_links_that_could_not_be_read_are_read_the_next_time() -> None:
    events: list[object] = []
    route = RouteSocket()
    route.close()
    own = OwnNode(member_without_disk(), PeerSettings(), route, events.append)
    for _ in range(2):
        with pytest.raises((KernelError, OSError)):
            own.read_links()
    assert own.is_stale
    assert events == []
