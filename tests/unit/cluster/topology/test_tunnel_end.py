"""Paths through the tunnel become routes, ends, and the need of a device."""

from __future__ import annotations

import itertools
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import Endpoint
from limpet.cluster.kinds.network import Encryption
from limpet.cluster.nodes import NodeEntry, Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.tunnel_end import TunnelEnd, tunnel_end_of
from limpet.cluster.topology.view import View, view_of
from limpet.datapath.overlay.filter.ruleset import plan_filter
from limpet.datapath.overlay.plan import plan_overlay, plan_peer, replan_overlay
from limpet.datapath.overlay.state import ROUTE, PeerPart
from limpet.datapath.tunnel.plan import tunnel_ends, tunnel_is_needed
from tests.unit.datapath.overlay.overlay_values import (
    OURS,
    OWN,
    PEER,
    UID,
    a_grant,
    a_presence,
    entry,
    node,
    plain,
    segments,
    snapshot,
    uid,
    vxlan,
)

ENDPOINT: Endpoint = (ip_address("198.51.100.2"), 7000)
SIDE = replace(OWN, tunnel="limwg0", link_prefixes=(ip_network("203.0.113.0/24"),))
PUBLIC = (ENDPOINT[0],)


def peer(number: int = 2, **said: object) -> NodeEntry:
    present = a_presence(number, **{"tunnel_port": 7000, "addresses": PUBLIC, **said})
    return entry(a_grant(number), present)


def by(
    rung: transports.Transport = transports.TUNNEL,
    endpoint: Endpoint | None = ENDPOINT,
    **said: object,
) -> PeerPath:
    return PeerPath(rung, endpoint=endpoint, **said)  # type: ignore[arg-type]


def seen(
    *entries: NodeEntry, paths: dict[str, PeerPath], own: OwnSide = SIDE, **net: object
) -> View:
    return view_of(snapshot(node(OURS), *entries, **net), UID, paths, own)


def part(path: PeerPath, found: NodeEntry | None = None, own: OwnSide = SIDE) -> PeerPart:
    return plan_peer(seen(found or peer(), paths={PEER: path}, own=own), PEER)


@pytest.mark.parametrize("rung", [row for row in transports.TRANSPORTS.values() if row.encrypted])
def test_a_peer_on_a_tunnelled_rung_has_routes_through_the_device(
    rung: transports.Transport,
) -> None:
    made = part(by(rung))

    assert {(route.prefix, route.device) for route in made.routes} == {
        (prefix, "limwg0") for prefix in segments(2)
    }
    assert {route.next_hop for route in made.routes} == {s.network_address for s in segments(2)}
    assert {route.mtu_bytes for route in made.routes} == {1440}
    assert (made.neighbours, made.fdb, made.refused) == ((), (), "")


@pytest.mark.parametrize(
    ("path", "own_mtu", "peers_mtu", "mtu_bytes"),
    [
        (by(mtu_bytes=1492), 1500, 1500, 1424),
        (by(), 1500, 1400, 1328),
        (by(endpoint=(ip_address("2001:db8::2"), 7)), 1500, 1500, 1408),
        (by(endpoint=(ip_address("2001:db8::2"), 7)), 9000, 1500, 1408),
        (by(transports.RELAY, mtu_bytes=1400), 1500, 1500, 1328),
    ],
)
def test_the_mtu_is_what_goes_through_the_smallest_part_of_the_way_in_one_piece(
    path: PeerPath, own_mtu: int, peers_mtu: int, mtu_bytes: int
) -> None:
    made = part(path, peer(link_mtu_bytes=peers_mtu), replace(SIDE, link_mtu_bytes=own_mtu))

    assert {route.mtu_bytes for route in made.routes} == {mtu_bytes}


def test_what_is_behind_a_peer_goes_through_the_tunnel_as_well() -> None:
    behind = ip_network("10.20.0.0/16")
    found = replace(peer(), grant=a_grant(2, prefixes_behind=(behind,)))

    made = part(by(), found)

    assert {route.device for route in made.routes if route.prefix == behind} == {"limwg0"}


@pytest.mark.parametrize(
    ("path", "found", "own", "reason"),
    [
        (by(), None, replace(SIDE, tunnel=""), "this node has no encrypted tunnel"),
        (by(), peer(tunnel_port=0), SIDE, "it has told no encrypted tunnel"),
        (by(), entry(a_grant(2)), SIDE, "it has told no encrypted tunnel"),
        (by(endpoint=None), None, SIDE, "no endpoint of it is known"),
        (by(endpoint=(ip_address("10.244.9.9"), 7)), None, SIDE, "goes through the tunnel"),
        (by(mtu_bytes=100), None, SIDE, "the path has"),
    ],
)
def test_a_path_that_cannot_be_taken_says_why_and_lets_the_peer_in_all_the_same(
    path: PeerPath, found: NodeEntry | None, own: OwnSide, reason: str
) -> None:
    made = part(path, found, own)

    assert made.routes == ()
    assert reason in made.refused
    assert made.sources == segments(2)


@pytest.mark.parametrize("path", [plain(2), vxlan(2)])
def test_where_everything_is_encrypted_nothing_goes_or_is_let_in_in_clear(path: PeerPath) -> None:
    found = peer(addresses=(ip_address("192.0.2.2"),))
    view = seen(found, paths={PEER: path}, encryption=Encryption.ALL)
    plan = plan_overlay(view)

    assert "encrypts everything" in plan.parts[PEER].refused
    assert plan.state.entries == {}
    assert "10.244.2.0" not in plan_filter(view, plan)
    assert "0xaf402" not in plan_filter(view, plan)

    tunnelled = seen(found, paths={PEER: by()}, encryption=Encryption.ALL)
    assert plan_peer(tunnelled, PEER).refused == ""


def test_going_over_to_the_tunnel_replaces_routes_in_place() -> None:
    before = seen(peer(), peer(3), paths={PEER: vxlan(2), uid(3): vxlan(3)})
    after = seen(peer(), peer(3), paths={PEER: by(), uid(3): vxlan(3)})

    plan, touched = replan_overlay(plan_overlay(before), before, after)

    assert plan == plan_overlay(after)
    assert touched is not None
    assert sum(key[0] == ROUTE for key in touched) == 2
    assert {key for key in plan.state.entries if key[0] == ROUTE} == {
        key for key in plan_overlay(before).state.entries if key[0] == ROUTE
    }


# Ends


@pytest.mark.parametrize(
    ("path", "addresses", "links", "behind_nat"),
    [
        (by(), PUBLIC, "203.0.113.0/24", False),
        (by(), PUBLIC, "192.168.1.0/24", True),
        (by(), (ip_address("192.168.1.2"),), "203.0.113.0/24", True),
        (by(endpoint=(ip_address("10.1.1.1"), 7)), (ip_address("10.1.1.1"),), "10.2.0.0/16", False),
        (by(transports.RELAY, relay="of-another"), PUBLIC, "192.168.1.0/24", False),
    ],
)
def test_keepalives_are_for_direct_ways_through_a_nat(
    path: PeerPath, addresses: tuple[object, ...], links: str, behind_nat: bool
) -> None:
    own = replace(SIDE, link_prefixes=(ip_network(links),))

    end = tunnel_end_of(path, peer(addresses=addresses), own)

    assert end == TunnelEnd(path.endpoint, behind_nat=behind_nat)


def test_a_path_in_clear_says_nothing_of_the_tunnels_end() -> None:
    assert tunnel_end_of(vxlan(2), peer(), SIDE) == TunnelEnd()


_paths = st.sampled_from([None, by(), by(transports.RELAY), by(mtu_bytes=1400), vxlan(2)])
_peers = st.sampled_from([None, peer(), peer(addresses=()), entry(a_grant(2))])


def _views() -> st.SearchStrategy[View]:
    def made(found: NodeEntry | None, path: PeerPath | None, own: OwnSide) -> View:
        entries = () if found is None else (found,)
        paths = {} if path is None else {PEER: path}
        return view_of(Snapshot(None, snapshot(*entries).nodes), UID, paths, own)

    return st.builds(made, _peers, _paths, st.sampled_from([SIDE, OWN]))


@given(st.lists(_views(), min_size=2, max_size=5))
def test_ends_of_what_changed_are_those_of_everything(views: list[View]) -> None:
    ends = tunnel_ends(views[0])
    for before, after in itertools.pairwise(views):
        ends = tunnel_ends(after, (before, ends))

        assert dict(ends) == dict(tunnel_ends(after))


# The need of a device


def needs(found: NodeEntry, *paths: PeerPath, own: OwnSide = SIDE, **net: object) -> bool:
    view = seen(found, paths=dict.fromkeys([PEER], paths[0]) if paths else {}, own=own, **net)
    return tunnel_is_needed(view, plan_overlay(view).parts)


def _seen_views() -> st.SearchStrategy[View]:
    def made(found: NodeEntry | None, path: PeerPath | None, own: OwnSide) -> View:
        entries = () if found is None else (found,)
        return seen(*entries, paths={} if path is None else {PEER: path}, own=own)

    paths = st.sampled_from([None, by(), plain(2), vxlan(2)])
    return st.builds(made, _peers, paths, st.sampled_from([SIDE, OWN]))


@given(st.lists(_seen_views(), min_size=2, max_size=5))
def test_whether_a_device_is_needed_is_told_by_what_changed_since_it_was_not(
    views: list[View],
) -> None:
    needless = None
    for view in views:
        parts = plan_overlay(view).parts
        needed = tunnel_is_needed(view, parts)

        assert tunnel_is_needed(view, parts, needless=needless) == needed
        needless = None if needed else (view, parts)


def test_a_device_is_needed_by_peers_that_may_come_by_it() -> None:
    near = replace(SIDE, link_prefixes=(ip_network("198.51.100.0/24"),))

    assert needs(peer(), by())
    assert needs(peer()), "not reached yet, and of another site"
    assert not needs(peer(), vxlan(2))
    assert not needs(peer(), plain(2))
    assert not needs(peer(tunnel_port=0))
    assert not needs(peer(), own=near), "it will be reached on the link"
    assert needs(peer(), own=near, encryption=Encryption.ALL), "nobody is reached in clear"
    assert needs(peer(), by(), own=near)
    assert not needs(replace(peer(), grant=a_grant(2, communities=("a",))))
