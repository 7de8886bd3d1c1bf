"""The way between two addresses, explained from what a node has planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given

from limpet.agent.answers.own_pods import KnownPod, OwnNodeWords
from limpet.agent.answers.path import pairs_of, path_status
from limpet.agent.status.paths import PathStatus
from limpet.cluster.nodes import Snapshot
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.view import View, view_of
from limpet.datapath.overlay.plan import plan_overlay
from tests.unit.datapath.overlay.overlay_values import (
    OWN,
    PEER,
    UID,
    clusters,
    node,
    plain,
    seen,
    snapshot,
    uid,
    view,
    vxlan,
)

WEB = KnownPod("default", "web-0", ip_address("10.244.1.2"), attached=True)
WEB6 = KnownPod("default", "web-0", ip_address("fd00:0:0:1::2"), attached=True)
GONE = KnownPod("default", "db-0", ip_address("10.244.1.9"), attached=False)
OTHER_WEB = KnownPod("shop", "web-0", ip_address("10.244.1.3"), attached=True)
WORDS = OwnNodeWords((WEB, WEB6, GONE), "limpet0", 1450)
THERE = "10.244.2.7"


def path(
    origin: str, target: str, seen_from: View, ways: Mapping[str, PeerPath | None] | None = None
) -> PathStatus:
    plan = plan_overlay(seen_from)
    ends = ip_address(origin), ip_address(target)
    return path_status(seen_from, plan, *ends, WORDS, ways or {})


def test_the_way_back_is_what_the_peer_has_told() -> None:
    here = seen((PEER, plain(2)))

    found = path("10.244.1.2", THERE, here, {PEER: vxlan(1)})

    assert found.back.known
    assert (found.back.rung, found.back.device) == ("vxlan", "limvx4")
    assert (found.back.mtu_bytes or 0) + 50 == found.there.mtu_bytes
    assert found.reachable is True


def test_that_a_peer_had_no_way_back_is_no_proof_that_it_has_none_now() -> None:
    found = path("10.244.1.2", THERE, seen((PEER, plain(2))), {PEER: None})

    assert found.there.known
    assert found.there.rung == "route"
    assert not found.back.known
    assert found.reachable is None
    assert "when node-2 was last heard: it has told that it had no way" in found.back.reason


def test_that_a_way_which_a_peer_told_does_not_carry_the_packets_is_not_sure_either() -> None:
    six = "fd00:0:0:1::2", "fd00:0:0:2::7"

    found = path(*six, seen((PEER, plain(2))), {PEER: vxlan(1, mtu_bytes=1320)})

    assert found.reachable is None
    assert "IPv6 needs an MTU of 1280, the path has 1270" in found.back.reason


@pytest.mark.parametrize("told", [None, plain(1)])
def test_what_is_known_here_comes_before_what_a_peer_told(told: PeerPath | None) -> None:
    found = path("10.244.1.2", THERE, seen(), {PEER: told})

    assert found.reachable is False
    assert "no path to it is proven" in found.there.reason


@pytest.mark.parametrize("told", [None, plain(1)])
def test_whether_a_peer_that_is_silent_is_reached_is_not_known_whatever_it_told(
    told: PeerPath | None,
) -> None:
    here = seen((PEER, plain(2)))
    ends = ip_address("10.244.1.2"), ip_address(THERE)

    found = path_status(here, plan_overlay(here), *ends, WORDS, {PEER: told}, silent={PEER})

    assert (found.reachable, found.there.rung) == (None, "route")
    assert found.notes == ["node-2 is silent: its agent answers by no way"]


class Strict(dict[str, PeerPath]):
    """Paths of peers of which only one may be looked at."""

    def get(self, uid: str, default: object = None) -> PeerPath | None:  # type: ignore[override]
        assert uid == PEER, f"the path to {uid} was looked at"
        return super().get(uid)


def test_no_other_peer_is_planned_for_than_the_one_that_is_explained() -> None:
    here = seen((PEER, plain(2)), (uid(3), plain(3)))
    plan = plan_overlay(here)
    strict = replace(here, paths=Strict(here.paths))

    found = path_status(
        strict, plan, ip_address("10.244.1.2"), ip_address(THERE), WORDS, {PEER: plain(1)}
    )

    assert (found.reachable, found.there.rung) == (True, "route")
    assert found.back.rung == "route"


def test_what_a_peer_told_of_its_way_to_us_says_nothing_of_its_way_to_others() -> None:
    found = path(THERE, "10.244.3.7", seen((PEER, plain(2))), {PEER: plain(1), uid(3): plain(1)})

    assert found.reachable is None


def test_both_ip_versions_are_explained_where_both_ends_have_them() -> None:
    here = seen()
    both = [WEB.address, WEB6.address]
    far = [ip_address("fd00:0:0:2::7"), ip_address(THERE)]

    assert pairs_of(both, far, here) == [(WEB.address, far[1]), (WEB6.address, far[0])]
    assert pairs_of(both, far[:1], here) == [(WEB6.address, far[0])]
    assert pairs_of([WEB.address], far[:1], here) == [(WEB.address, far[0])]


def test_of_a_pods_addresses_one_of_the_cluster_counts() -> None:
    lan = ip_address("192.0.2.200")

    assert pairs_of([lan, WEB.address], [ip_address(THERE)], seen()) == [
        (WEB.address, ip_address(THERE))
    ]


def test_the_way_to_a_peer_is_known_and_of_its_way_back_what_is_let_in() -> None:
    found = path("10.244.1.2", THERE, seen((PEER, vxlan(2))))

    there, back = found.there, found.back
    assert found.reachable is True
    assert (there.origin_pod, there.target_node) == ("default/web-0", "node-2")
    assert (there.rung, there.device, there.underlay) == ("vxlan", "limvx4", "192.0.2.2")
    assert there.mtu_bytes == 1450
    assert not back.known
    assert back.let_in is not None
    assert "10.244.2.0/24" in back.let_in.sources
    assert back.let_in.outer == ["192.0.2.2"]
    assert found.peer_uid == PEER


def test_asked_from_the_other_end_the_same_is_said_the_other_way_round() -> None:
    here = seen((PEER, plain(2)))

    one, other = path("10.244.1.2", THERE, here), path(THERE, "10.244.1.2", here)

    assert (one.there, one.back) == (other.back, other.there)
    assert other.peer_uid == PEER
    assert other.reachable is True


def test_without_a_proven_path_it_is_not_reachable_and_the_reason_is_said() -> None:
    found = path("10.244.1.2", THERE, seen())

    assert found.reachable is False
    assert "no path to it is proven" in found.there.reason


def test_packets_of_a_peer_that_shares_no_community_are_dropped_here_for_sure() -> None:
    found = path("10.244.1.2", THERE, seen((PEER, plain(2)), community="a"))

    assert found.reachable is False
    assert found.back.known
    assert "shares no community" in found.back.reason


def test_two_pods_of_this_node_meet_on_its_bridge() -> None:
    found = path("10.244.1.2", "10.244.1.9", seen())

    assert (found.there.rung, found.there.device) == ("local", "limpet0")
    assert found.reachable is True
    assert found.peer_uid == ""
    assert found.notes == ["10.244.1.9 is kept for pod default/db-0, which is not attached now"]


def test_an_address_of_ours_that_no_pod_has_is_noted_but_not_the_gateways() -> None:
    assert path("10.244.1.77", THERE, seen()).notes == [
        "10.244.1.77 belongs to no pod of this node now"
    ]
    assert path("10.244.1.1", THERE, seen()).notes == []


@pytest.mark.parametrize("target", ["10.244.3.7", "10.244.2.8"])
def test_what_goes_on_between_other_nodes_is_not_guessed(target: str) -> None:
    found = path(THERE, target, seen((PEER, plain(2)), (uid(3), plain(3))))

    assert found.reachable is None
    assert not found.there.known
    assert "node-2 does is known there" in found.there.reason
    assert found.peer_uid == ""


def test_an_address_outside_of_the_cluster_is_noted_as_such() -> None:
    found = path("10.244.1.2", "198.51.100.1", seen())

    assert found.reachable is False
    assert found.notes == [
        "198.51.100.1 is no address of the cluster: the node's own routes lead there"
    ]


def test_an_address_behind_a_peer_is_noted_with_that_peer() -> None:
    behind = node(2, prefixes_behind=(ip_network("192.168.50.0/24"),))
    here = view(behind, paths={PEER: plain(2)})

    found = path("10.244.1.2", "192.168.50.7", here)

    assert found.reachable is True
    assert found.notes == ["192.168.50.7 is of another network, behind node-2"]


def test_what_becomes_of_packets_to_what_is_behind_this_node_is_not_known() -> None:
    own = node(1, prefixes_behind=(ip_network("192.168.50.0/24"),))
    here = view_of(snapshot(own), UID, {}, OWN)

    found = path("10.244.1.2", "192.168.50.7", here)

    assert found.reachable is None
    assert (found.there.rung, found.there.device, found.there.mtu_bytes) == ("local", "", None)
    assert found.there.reason == (
        "192.168.50.7 is behind this node: its own routes lead there (ping it)"
    )
    assert found.notes == ["192.168.50.7 is of another network, behind this node"]


def test_addresses_of_different_ip_versions_have_no_way() -> None:
    found = path("10.244.1.2", "fd00:0:0:2::7", seen((PEER, plain(2))))

    assert found.reachable is False
    assert "not of the same IP version" in found.there.reason


@given(clusters())
def test_what_is_called_reachable_has_a_route_here_whatever_the_cluster_is_like(
    cluster: tuple[Snapshot, dict[str, PeerPath]],
) -> None:
    here = view_of(cluster[0], UID, cluster[1], OWN)
    plan = plan_overlay(here)

    found = path_status(here, plan, ip_address("10.244.1.2"), ip_address(THERE), WORDS, {})

    for leg in (found.there, found.back):
        if leg.rung in ("route", "vxlan"):
            target = ip_address(leg.target)
            assert any(target in route.prefix for route in plan.parts[found.peer_uid].routes)
    if found.reachable and found.peer_uid:
        assert any(leg.rung for leg in (found.there, found.back))
