"""A way in clear counts where it was proven, and nowhere else until it is proven there."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_interface

import pytest

from limpet.base.addresses import UnderlayLink
from limpet.cluster.topology.paths import PeerPath
from limpet.paths.ladder.ladder import Ladder
from tests.unit.paths.ladder.test_ladder import (
    ETH0,
    FACTS,
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
