"""What is said of the way between two addresses."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given

from limpet.base.addresses import Address
from limpet.cluster.nodes import Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.view import view_of
from limpet.datapath.overlay.plan import plan_overlay
from limpet.datapath.overlay.state import PeerRoute
from limpet.paths.explain import Ends, Leg, NodeSide, PathAnswer, Way, explain_path, told_side
from tests.unit.datapath.overlay.overlay_values import (
    OWN,
    PEER,
    UID,
    a_grant,
    a_presence,
    clusters,
    entry,
    mac,
    node,
    plain,
    snapshot,
    vxlan,
)

ONE, TWO = ip_address("10.244.1.2"), ip_address("10.244.2.2")
OTHER = replace(OWN, vtep_macs={4: mac(2, 4)})


def explain(
    *paths: tuple[str, PeerPath],
    known: Snapshot | None = None,
    origin: Address = ONE,
    target: Address = TWO,
) -> PathAnswer:
    cluster = snapshot(node(1), node(2)) if known is None else known
    here = side(cluster, dict(paths))
    return explain_path(here.view, {UID: here}, origin, target)


def side(cluster: Snapshot, paths: dict[str, PeerPath], own: OwnSide = OWN) -> NodeSide:
    view = view_of(cluster, UID, paths, own)
    return NodeSide(view, plan_overlay(view))


def test_a_way_over_vxlan_is_said_with_all_that_it_takes() -> None:
    assert explain((PEER, vxlan(2))).there == Leg(
        Ends(ONE, TWO, "node-1", "node-2"),
        Way(
            transports.VXLAN,
            "limvx4",
            ip_address("10.244.2.0"),
            1450,
            underlay=ip_address("192.0.2.2"),
        ),
    )


@pytest.mark.parametrize("rung", [transports.TUNNEL, transports.RELAY, transports.RELAY_TLS])
def test_a_way_through_the_tunnel_is_said_with_where_it_leads_and_by_which_relay(
    rung: transports.Transport,
) -> None:
    end = (ip_address("203.0.113.7"), 51820)
    relay = "" if rung is transports.TUNNEL else node(3).grant.uid
    path = PeerPath(rung, 1420, endpoint=end, relay=relay)
    peer = entry(a_grant(2), a_presence(2, tunnel_port=51820))
    here = side(snapshot(node(1), peer, node(3)), {PEER: path}, replace(OWN, tunnel="limwg0"))
    leg = explain_path(here.view, {UID: here}, ONE, TWO).there.way
    assert leg is not None
    assert (leg.rung, leg.device, leg.endpoint) == (rung, "limwg0", end)
    assert leg.relay == ("" if rung is transports.TUNNEL else "node-3")
    assert leg.mtu_bytes <= 1420 - 60


def test_each_direction_is_what_its_own_node_does() -> None:
    here = side(snapshot(node(1), node(2)), {PEER: plain(2)})
    sides = {UID: here, PEER: told_side(here.view, PEER, OTHER, vxlan(1))}

    answer = explain_path(here.view, sides, ONE, TWO)

    there, back = answer.there.way, answer.back.way
    assert there == Way(transports.ROUTE, "eth0", ip_address("192.0.2.2"), 1500)
    assert back is not None
    assert (back.rung, back.device, back.mtu_bytes) == (transports.VXLAN, "limvx4", 1450)


def test_of_a_node_that_was_not_asked_the_way_back_is_not_guessed() -> None:
    assert explain((PEER, plain(2))).back.reason == "what node-2 does is known there: ask it"


def test_pods_of_one_node_need_no_path() -> None:
    answer = explain(target=ip_address("10.244.1.3"))

    assert (answer.there.reason, answer.there.way) == ("", None)
    assert answer.there.ends.target_node == "node-1"


def test_why_there_is_no_way_is_said() -> None:
    apart = snapshot(node(1), node(2, communities=("a",)))
    nowhere, six = ip_address("10.9.9.9"), ip_address("fd00:0:0:2::2")

    assert explain().there.reason == "node-2: no path to it is proven"
    assert explain((PEER, vxlan(2)), known=apart).there.reason == (
        "node-2: it shares no community with this node"
    )
    assert explain(target=nowhere).there.reason == (
        "10.9.9.9 is in no segment of a node that is known here"
    )
    assert explain(target=six).there.reason == (f"{ONE} and {six} are not of the same IP version")
    small = explain(
        (PEER, vxlan(2, mtu_bytes=1320)), origin=ip_address("fd00:0:0:1::2"), target=six
    )
    assert small.there.reason == "node-2: IPv6 needs an MTU of 1280, the path has 1270"


def test_of_a_node_with_anothers_mac_it_is_said_whose_it_is() -> None:
    macs = {4: mac(2, 4)}
    owner = entry(a_grant(2, vtep_macs=macs), a_presence(2))
    twin = entry(a_grant(3), a_presence(3, vtep_macs=macs))
    known = snapshot(node(1), owner, twin)
    paths = ((PEER, vxlan(2)), (twin.grant.uid, vxlan(3)))

    reasons = [
        explain(*paths, known=known, target=ip_address(text)).there.reason
        for text in ("10.244.2.2", "10.244.3.2")
    ]

    assert reasons == [
        "",
        f"node-3: it announces {mac(2, 4)} as its VXLAN device's MAC, which is that of "
        f"node-2 ({PEER})",
    ]


def test_an_address_behind_a_node_is_reached_through_it() -> None:
    known = snapshot(node(1), node(2, prefixes_behind=(ip_network("10.20.0.0/16"),)))

    leg = explain((PEER, vxlan(2)), known=known, target=ip_address("10.20.3.4")).there

    assert leg.way is not None
    assert (leg.ends.target_node, leg.way.device, leg.reason) == ("node-2", "limvx4", "")


@given(clusters())
def test_a_way_is_said_just_where_the_plan_has_a_route(
    cluster: tuple[Snapshot, dict[str, PeerPath]],
) -> None:
    known, paths = cluster
    here = side(known, paths)
    routes = [each for each in here.plan.state.entries.values() if isinstance(each, PeerRoute)]
    for target in (ip_address("10.244.2.2"), ip_address("10.244.3.2"), ip_address("10.20.0.1")):
        leg = explain_path(here.view, {UID: here}, ONE, target).there
        if leg.way is not None:
            assert any(
                target in route.prefix
                and (route.device, route.next_hop, route.mtu_bytes)
                == (leg.way.device, leg.way.next_hop, leg.way.mtu_bytes)
                for route in routes
            )
        elif leg.ends.origin_node == "node-1" and "clone" not in leg.reason:
            held = [route for route in routes if target in route.prefix]
            assert all("more specific" in leg.reason for _ in held)
