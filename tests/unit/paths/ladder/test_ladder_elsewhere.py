"""A way in clear counts where it was proven, and nowhere else until it is proven there."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_interface

import pytest

from limpet.base.addresses import UnderlayLink
from limpet.cluster.topology.paths import PeerPath
from limpet.paths.ladder.ladder import Ladder
from tests.unit.paths.ladder.test_ladder import (
    A6,
    ETH0,
    FACTS,
    LAN,
    LAN6,
    WWAN0,
    A,
    B,
    World,
    both,
    only,
    site,
    vxlan,
)

ELSEWHERE = UnderlayLink("eth0", 7, "02:00:00:00:00:01", 1500, (ip_interface("198.51.100.7/24"),))
RENEWED = replace(
    ETH0, addresses=(ip_interface("192.0.2.55/24"), *ETH0.addresses[1:], ELSEWHERE.addresses[0])
)
"""Another address of the same subnet, and one more."""
CLEAR = [both(), vxlan(A), vxlan(B)]
FOUR = replace(ETH0, addresses=tuple(own for own in ETH0.addresses if own.version == 4))
SIX = replace(ETH0, addresses=tuple(own for own in ETH0.addresses if own.version == 6))
VIP = replace(ETH0, addresses=(*ETH0.addresses, ip_interface("10.1.0.200/32")))
"""With an address that goes from node to node."""
WLAN0 = replace(ETH0, ifname="wlan0", ifindex=9, mac="02:00:00:00:00:09")
BY_FOUR = replace(both(), next_hops=(A,), prefixes=(LAN,))
BY_SIX = replace(both(), next_hops=(A6,), underlay=A6, prefixes=(LAN6,))


@pytest.mark.parametrize("links", [(ELSEWHERE,), (WWAN0,), (ELSEWHERE, WWAN0)])
@pytest.mark.parametrize("kept", CLEAR)
def test_a_path_in_clear_that_was_proven_on_another_lan_is_none(
    kept: PeerPath, links: tuple[UnderlayLink, ...]
) -> None:
    assert World(Ladder(kept), answers=only(), links=links).run(3600).path is None


@pytest.mark.parametrize("kept", CLEAR)
def test_a_node_that_comes_to_another_lan_has_no_path_in_clear_from_then_on(
    kept: PeerPath,
) -> None:
    world = World(Ladder(kept)).run(20)
    world.answers = only()
    for links in ((), (ELSEWHERE,)):
        world.links = links
        world.settle()
    assert world.path is None
    assert world.run(3600).path is None


def test_what_answered_on_another_lan_proves_nothing_here() -> None:
    ten = replace(ELSEWHERE, addresses=(ip_interface("10.77.0.1/24"),))
    world = World(facts=replace(FACTS, addresses=(B,)), answers=only(site(B))).run(20)
    assert world.path == vxlan(B)
    world.answers, world.links = only(), (ten,)
    world.settle()
    assert world.run(3600).path is None
    world.answers = only(site(B))
    world.settle()
    found = world.run(5).path
    assert found == replace(vxlan(B), prefixes=(ten.addresses[0].network,))


@pytest.mark.parametrize(
    "kept", [*CLEAR, replace(both(), prefixes=()), replace(vxlan(B), prefixes=())]
)
@pytest.mark.parametrize("links", [(ETH0,), (RENEWED,), (WWAN0, RENEWED)])
def test_a_node_that_starts_where_it_was_goes_on_at_once(
    kept: PeerPath, links: tuple[UnderlayLink, ...]
) -> None:
    world = World(Ladder(kept), answers=only(), links=())
    assert world.path is not None  # no lease yet
    world = World(Ladder(kept), answers=only(), links=links)
    for path in (world.path, world.run(3600).path):
        assert path is not None
        assert replace(path, prefixes=kept.prefixes) == kept
        assert path.prefixes[: len(kept.prefixes)] == kept.prefixes


def test_a_lease_that_is_renewed_in_its_subnet_changes_nothing() -> None:
    world = World().run(20)
    world.changes.clear()
    for links in ((RENEWED,), (ETH0,)):
        world.links = links
        world.settle()
        assert world.run(60).path == both()
    assert world.changes == []


def test_a_path_that_was_kept_without_its_subnets_has_them_when_it_is_proven_anew() -> None:
    world = World(Ladder(replace(both(), prefixes=())))
    assert world.run(60).path == both()


@pytest.mark.parametrize(
    ("links", "at_start", "underway"),
    [
        ((FOUR,), BY_FOUR, BY_FOUR),
        # That IPv4 gets to the next hop of IPv6 was never proven while there was one of its own.
        ((SIX,), BY_SIX, vxlan(A6)),
        ((replace(SIX, addresses=SIX.addresses + ELSEWHERE.addresses),), BY_SIX, vxlan(A6)),
        ((WLAN0,), vxlan(A), vxlan(A)),
        ((ELSEWHERE, WLAN0), vxlan(A), vxlan(A)),
        ((ELSEWHERE, replace(FOUR, ifname="wlan0")), vxlan(A), vxlan(A)),
        ((ELSEWHERE, replace(SIX, ifname="wlan0")), None, None),
    ],
)
def test_of_a_silent_peers_path_stays_what_goes_by_a_subnet_that_is_there(
    links: tuple[UnderlayLink, ...], at_start: PeerPath | None, underway: PeerPath | None
) -> None:
    assert World(Ladder(both()), answers=only(), links=links).run(3600).path == at_start
    world = World().run(20)
    world.answers, world.links = only(), links
    world.settle()
    assert world.run(3600).path == underway


def test_a_link_that_has_one_ip_version_later_than_the_other_keeps_a_path_all_the_time() -> None:
    for without in (FOUR, SIX):
        world = World().run(20)
        world.changes.clear()
        for links in ((without,), (ETH0,)):
            world.links = links
            world.settle()
            world.run(60)
        assert None not in [path for _, path in world.changes]
        assert world.path == both()


def test_an_address_that_comes_and_goes_takes_no_path_along() -> None:
    for facts, kept in ((replace(FACTS, addresses=(B,)), vxlan(B)), (FACTS, both())):
        world = World(facts=facts).run(20)
        world.changes.clear()
        for links in ((VIP,), (ETH0,)):
            world.links = links
            world.settle()
            assert world.run(60).path == kept
        assert world.changes == []


def test_a_peer_behind_a_router_is_where_it_was_while_our_address_towards_it_has_its_subnet() -> (
    None
):
    later = replace(ETH0, addresses=ETH0.addresses[::-1])
    for links, stays in (((ETH0,), True), ((later,), False)):
        world = World(facts=replace(FACTS, addresses=(B,)), answers=only(site(B)), links=links)
        assert world.run(20).path is not None
        world.answers, world.links = only(), (replace(ETH0, addresses=ETH0.addresses[:2]),)
        world.settle()
        assert (world.run(3600).path is not None) is stays


def test_a_cable_that_is_pulled_beside_wlan_on_the_same_lan_leaves_vxlan_at_once() -> None:
    world = World(links=(ETH0, WLAN0)).run(20)
    assert world.path == both()
    world.changes.clear()
    world.links = (WLAN0,)
    world.settle()
    assert [path for _, path in world.changes] == [vxlan(A)]
