"""Planning the network between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.cluster_values import network
from tests.unit.datapath.overlay import overlay_values
from tests.unit.datapath.overlay.overlay_values import (
    OURS,
    OWN,
    PEER,
    UID,
    a_grant,
    a_presence,
    clusters,
    entries,
    entry,
    grants,
    mac,
    node,
    part,
    plain,
    segments,
    snapshot,
    uid,
    view,
    vxlan,
)

from limpet.base.layered_map import alter
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.network import DefaultCommunity
from limpet.cluster.nodes import Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.reach import may_talk
from limpet.cluster.topology.view import VxlanDevice, view_of
from limpet.cluster.topology.vtep_mac import derived_vtep_mac
from limpet.datapath.change import Drop, LinkAddress, Put
from limpet.datapath.overlay.diff import OverlayChange, PutDevice, diff_overlay
from limpet.datapath.overlay.plan import plan_overlay, plan_peer, replan_overlay
from limpet.datapath.overlay.state import FdbEntry, Neighbour, OverlayState, PeerRoute

Kind = TypeVar("Kind", PeerRoute, Neighbour, FdbEntry)

# Who may talk.


@given(
    st.integers(1, 3).flatmap(grants),
    st.integers(1, 3).flatmap(grants),
    st.sampled_from(DefaultCommunity),
)
def test_who_may_talk_to_whom_is_the_same_from_both_ends(one, other, default) -> None:  # type: ignore[no-untyped-def]
    cluster = network(default_community=default)

    assert may_talk(cluster, one, other) == may_talk(cluster, other, one)


CLOUD = {"roles": frozenset({Role.CLOUD})}
FLANNEL = {"roles": frozenset({Role.FLANNEL})}


@pytest.mark.parametrize(
    ("one", "other", "default", "expected"),
    [
        ({}, {}, DefaultCommunity.ALL, True),
        ({}, {}, DefaultCommunity.NONE, False),
        ({"communities": ("a",)}, {"communities": ("b", "a")}, DefaultCommunity.NONE, True),
        ({"communities": ("a",)}, {"communities": ("b",)}, DefaultCommunity.ALL, False),
        ({"communities": ("a",)}, {}, DefaultCommunity.ALL, False),
        ({"communities": ("a",)}, CLOUD, DefaultCommunity.NONE, True),
        (CLOUD, CLOUD, DefaultCommunity.NONE, True),
        (CLOUD, {"tombstone": True}, DefaultCommunity.ALL, False),
        ({"communities": ("a",)}, FLANNEL, DefaultCommunity.NONE, True),
    ],
)
def test_the_cloud_talks_to_all_and_the_edge_inside_a_community(
    one: dict[str, object], other: dict[str, object], default: DefaultCommunity, expected: bool
) -> None:
    cluster = network(default_community=default)

    assert may_talk(cluster, a_grant(1, **one), a_grant(2, **other)) is expected


# One peer.


def test_a_peer_over_vxlan_has_a_route_a_neighbour_and_an_entry() -> None:
    planned = part(path=vxlan(2))

    four, six = segments(2)
    assert planned.routes == (
        PeerRoute(four, "limvx4", ip_address("10.244.2.0"), ip_address("10.244.1.1"), 200, 1450),
        PeerRoute(
            six, "limvx4", ip_address("fd00:0:0:2::"), ip_address("fd00:0:0:1::1"), 200, 1450
        ),
    )
    assert planned.neighbours == (
        Neighbour("limvx4", ip_address("10.244.2.0"), mac(2, 4)),
        Neighbour("limvx4", ip_address("fd00:0:0:2::"), mac(2, 4)),
    )
    assert planned.fdb == (FdbEntry("limvx4", mac(2, 4), ip_address("192.0.2.2")),)
    assert (planned.refused, planned.without) == ("", ())


def test_an_ipv6_underlay_has_its_own_device_mac_and_mtu() -> None:
    planned = part(path=vxlan(2, 6))

    assert {(route.device, route.mtu_bytes) for route in planned.routes} == {("limvx6", 1430)}
    assert planned.fdb == (FdbEntry("limvx6", mac(2, 6), ip_address("2001:db8::2")),)


def test_a_peer_on_the_link_has_routes_only_each_by_its_own_version() -> None:
    planned = part(path=plain(2))

    assert [(route.device, str(route.next_hop)) for route in planned.routes] == [
        ("eth0", "192.0.2.2"),
        ("eth0", "2001:db8::2"),
    ]
    assert {route.mtu_bytes for route in planned.routes} == {1500}
    assert (planned.neighbours, planned.fdb) == ((), ())


def test_on_a_link_with_ipv4_only_the_ipv6_segments_go_over_vxlan() -> None:
    planned = part(path=plain(2, next_hops=(ip_address("192.0.2.2"),)))

    assert [(route.device, route.mtu_bytes) for route in planned.routes] == [
        ("eth0", 1500),
        ("limvx4", 1450),
    ]
    assert planned.neighbours == (Neighbour("limvx4", ip_address("fd00:0:0:2::"), mac(2, 4)),)
    assert len(planned.fdb) == 1


def test_a_peer_on_a_link_that_has_gone_is_reached_over_vxlan() -> None:
    """What was proven may come from the disk, where links were found by other names."""
    planned = part(path=plain(2, device="eth9"))

    assert {route.device for route in planned.routes} == {"limvx4"}


def test_ipv4_segments_go_by_an_ipv6_next_hop() -> None:
    planned = part(path=plain(2, next_hops=(ip_address("fe80::2"),), underlay=None))

    assert [str(route.next_hop) for route in planned.routes] == ["fe80::2", "fe80::2"]


def test_all_segments_of_a_peer_share_the_first_ones_address() -> None:
    more = (*segments(2), *segments(3))
    planned = part(node(2, segments=more), vxlan(2))

    assert len(planned.routes) == 4
    assert {str(route.next_hop) for route in planned.routes} == {"10.244.2.0", "fd00:0:0:2::"}
    assert len(planned.neighbours) == 2


def test_the_smallest_of_path_and_both_links_gives_the_mtu() -> None:
    small = entry(a_grant(2), a_presence(2, link_mtu_bytes=1400))

    assert part(path=vxlan(2, mtu_bytes=1450)).routes[0].mtu_bytes == 1400
    assert part(small, vxlan(2)).routes[0].mtu_bytes == 1350
    assert part(small, plain(2)).routes[0].mtu_bytes == 1400
    assert part(path=vxlan(2, mtu_bytes=9000)).routes[0].mtu_bytes == 1450


def test_a_path_too_small_for_ipv6_carries_ipv4_and_says_why() -> None:
    planned = part(path=vxlan(2, mtu_bytes=1320))

    assert [route.prefix.version for route in planned.routes] == [4]
    assert planned.without == ((segments(2)[1], "IPv6 needs an MTU of 1280, the path has 1270"),)


CLONE = entry(a_grant(2), a_presence(2, vtep_macs={4: mac(1, 4)}))


@pytest.mark.parametrize(
    ("peer", "path", "reason"),
    [
        (node(2, tombstone=True), vxlan(2), "it was removed from the cluster"),
        (node(2, communities=("a",)), vxlan(2), "it shares no community with this node"),
        (node(2, segments=()), vxlan(2), "it has no segment"),
        (
            node(2, segments=segments(1), revision=9),
            vxlan(2),
            "it has no segment that is its own: "
            "10.244.1.0/24 overlaps a segment of this node, 10.244.1.0/24",
        ),
        (node(2), None, "no path to it is proven"),
        (entry(a_grant(2)), vxlan(2), "it has not been heard of, so its MAC is not known"),
        (
            entry(a_grant(2), a_presence(2, vtep_macs={})),
            vxlan(2),
            "it has announced no VXLAN device over IPv4",
        ),
        (
            entry(a_grant(2), a_presence(2, vtep_macs={4: "01:00:5e:00:00:01"})),
            vxlan(2),
            "it has announced '01:00:5e:00:00:01' as MAC, which is none of one device",
        ),
        (
            entry(a_grant(2), a_presence(2, vtep_macs={4: "00:00:00:00:00:00"})),
            vxlan(2),
            "it has announced '00:00:00:00:00:00' as MAC, which is none of one device",
        ),
        (
            CLONE,
            vxlan(2),
            f"it announces {mac(1, 4)} as its VXLAN device's MAC, which is that of this node's own "
            "device",
        ),
        (
            node(2),
            plain(2, next_hops=(), underlay=None),
            "it has no next hop for IPv4 on eth0, and no address for VXLAN is known",
        ),
        (
            node(2, segments=segments(2)[:1], prefixes_behind=(ip_network("2001:db8:9::/64"),)),
            replace(vxlan(2), underlay=None),
            "no address for VXLAN is known",
        ),
    ],
)
def test_a_peer_that_cannot_be_reached_adds_nothing_and_says_why(
    peer: object, path: PeerPath | None, reason: str
) -> None:
    planned = part(peer, path)

    assert (planned.routes, planned.neighbours, planned.fdb) == ((), (), ())
    assert planned.refused == reason


def test_a_node_without_a_vxlan_device_reaches_peers_on_its_link_only() -> None:
    own = replace(OWN, vtep_macs={6: mac(1, 6)})

    assert part(path=vxlan(2), own=own).refused == "this node has no VXLAN device over IPv4"
    assert len(part(path=plain(2), own=own).routes) == 2


def test_segments_in_a_wider_subnet_of_the_nodes_link_are_reached() -> None:
    wide = replace(OWN, link_prefixes=tuple(map(ip_network, ("10.0.0.0/8", "fd00::/32"))))
    assert [route.prefix for route in part(path=vxlan(2), own=wide).routes] == [*segments(2)]

    same = replace(OWN, link_prefixes=segments(2))
    assert part(path=vxlan(2), own=same).routes == ()


def test_a_peer_is_let_in_before_a_path_to_it_is_proven() -> None:
    planned = part()

    assert planned.sources == segments(2)
    assert planned.outer == (ip_address("192.0.2.2"),)
    assert part(node(2, communities=("a",))).sources == ()


@pytest.mark.parametrize(
    ("named", "subnets", "let_in"),
    [
        ("192.168.7.9", ["192.168.1.0/24"], True),
        ("fd00:7::9", ["fd00:1::/64"], True),
        ("198.51.100.9", ["198.51.100.0/24"], True),
        ("198.51.100.9", ["192.168.1.0/24"], False),
        ("192.168.7.9", ["203.0.113.0/24"], False),
        ("192.168.7.9", ["fd00:1::/64"], False),
    ],
)
def test_in_clear_a_peer_is_let_in_from_its_site_only(
    named: str, subnets: list[str], let_in: bool
) -> None:
    peer = entry(a_grant(2), a_presence(2, addresses=(ip_address(named),)))
    own = replace(OWN, link_prefixes=tuple(map(ip_network, subnets)))
    found = plan_peer(view(peer, paths={}, own=own), PEER).outer
    assert found == ((ip_address(named),) if let_in else ())


def test_a_peer_that_sends_through_tunnels_only_is_let_in_in_clear_where_we_send_so() -> None:
    peer = entry(a_grant(2), a_presence(2, addresses=(ip_address("192.0.2.2"),)))
    known = snapshot(node(OURS), peer)
    tunnel = PeerPath(transports.TUNNEL, endpoint=(ip_address("203.0.113.9"), 51820))
    own = replace(TUNNELLING, link_prefixes=(ip_network("192.0.2.0/24"),))
    for path, let_in in ((tunnel, False), (vxlan(2), True), (None, True)):
        paths = {} if path is None else {PEER: path}
        part = plan_peer(view_of(known, UID, paths, own, tunnel_only=frozenset({PEER})), PEER)
        assert (part.in_clear, bool(part.outer)) == (let_in, let_in)
        assert part.sources  # through its tunnel it is let in at any time


# The node.


def test_a_device_for_each_version_of_the_underlay_is_there_before_any_peer() -> None:
    planned = plan_overlay(view(paths={}))

    held = frozenset({ip_interface("10.244.1.0/32"), ip_interface("fd00:0:0:1::/128")})
    assert planned.state.devices == {
        "limvx4": VxlanDevice("limvx4", 4, 1, 8472, mac(1, 4), 1450, held),
        "limvx6": VxlanDevice("limvx6", 6, 1, 8472, mac(1, 6), 1430, held),
    }
    assert planned.state.loose_links == {"eth0", "limvx4", "limvx6"}


def test_a_node_without_a_grant_a_network_or_a_segment_has_no_network_between_nodes() -> None:
    for known in (
        snapshot(node(2)),
        Snapshot(None, {UID: node(1)}),
        snapshot(node(1, tombstone=True), node(2)),
        snapshot(node(1, segments=()), node(2)),
    ):
        assert plan_overlay(view_of(known, UID, {PEER: vxlan(2)}, OWN)).state == OverlayState()


def test_a_device_over_a_small_link_has_no_ipv6_address() -> None:
    planned = plan_overlay(view(paths={}, own=replace(OWN, link_mtu_bytes=1320)))

    assert planned.state.devices["limvx4"].addresses == {ip_interface("10.244.1.0/32")}


@pytest.mark.parametrize("right", ["uid", "grant", "flannel", "none", "both"])
@pytest.mark.parametrize("number", [2, 3])
def test_a_mac_that_two_announce_is_whose_it_is_by_more_than_a_word(
    right: str, number: int
) -> None:
    owner, other = uid(number), uid(5 - number)
    announced = derived_vtep_mac(owner, 4) if right in ("uid", "both") else mac(number, 4)
    recorded = {4: announced}
    granted: dict[int, dict[str, object]] = {}
    match right:
        case "grant":
            granted[number] = {"vtep_macs": recorded}
        case "both":
            granted[5 - number] = {"vtep_macs": recorded}
        case "flannel":
            granted[number] = {"roles": frozenset({Role.FLANNEL})}
    twins = [
        entry(a_grant(each, **granted.get(each, {})), a_presence(each, vtep_macs=recorded))
        for each in (2, 3)
    ]
    paths = {uid(2): vxlan(2), uid(3): vxlan(3)}

    planned = plan_overlay(view(*twins, paths=paths))

    reached = {each for each, part in planned.parts.items() if part.routes}
    claimants = set(planned.claims)
    if right in ("none", "both"):
        assert (reached, claimants) == (set[str](), {owner, other})
        assert of_kind(planned.state, FdbEntry) == []
        return
    assert (reached, claimants) == ({owner}, {other})
    assert of_kind(planned.state, FdbEntry) == list(planned.parts[owner].fdb)
    assert f"which is that of node-{number} ({owner})" in planned.parts[other].refused


def test_who_lost_a_mac_is_reached_again_when_the_other_leaves_it() -> None:
    twin = entry(a_grant(3), a_presence(3, vtep_macs={4: mac(2, 4)}))
    both = view(node(2), twin, paths={PEER: vxlan(2), twin.grant.uid: vxlan(3)})
    planned = plan_overlay(both)
    assert of_kind(planned.state, FdbEntry) == []

    for paths in ({PEER: vxlan(2)}, {twin.grant.uid: vxlan(3)}):
        after = view(node(2), twin, paths=paths)
        alone, touched = replan_overlay(planned, both, after)
        assert alone == plan_overlay(after)
        assert (alone.contested, alone.claims) == (frozenset(), {})
        assert touched is not None
        assert touched >= alone.state.entries.keys() - planned.state.entries.keys()


TUNNELLING = replace(OWN, tunnel="limwg0")


def of_kind(state: OverlayState, kind: type[Kind]) -> list[Kind]:
    return [entry for entry in state.entries.values() if isinstance(entry, kind)]


@given(clusters())
def test_every_route_over_vxlan_leads_to_a_neighbour_and_that_to_an_entry(
    cluster: tuple[Snapshot, dict[str, PeerPath]],
) -> None:
    known, paths = cluster
    state = plan_overlay(view_of(known, UID, paths, TUNNELLING)).state

    entries = {(each.device, each.mac) for each in of_kind(state, FdbEntry)}
    neighbours = {(each.device, each.address): each for each in of_kind(state, Neighbour)}
    for route in of_kind(state, PeerRoute):
        if route.device in state.devices:
            assert route.next_hop is not None
            assert (route.device, neighbours[route.device, route.next_hop].mac) in entries
            assert route.mtu_bytes <= state.devices[route.device].mtu_bytes


@given(clusters())
def test_no_route_takes_over_an_address_of_ours(
    cluster: tuple[Snapshot, dict[str, PeerPath]],
) -> None:
    known, paths = cluster
    ours = known.nodes[UID].grant.prefixes
    state = plan_overlay(view_of(known, UID, paths, TUNNELLING)).state

    for route in of_kind(state, PeerRoute):
        assert not any(
            route.prefix.version == each.version and route.prefix.overlaps(each) for each in ours
        )


@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_are_known_changes_nothing(cluster, shuffling) -> None:  # type: ignore[no-untyped-def]
    known, paths = cluster
    nodes = list(known.nodes.items())
    shuffling.shuffle(nodes)
    shuffled = Snapshot(known.network, dict(nodes))

    assert plan_overlay(view_of(known, UID, paths, TUNNELLING)) == plan_overlay(
        view_of(shuffled, UID, paths, TUNNELLING)
    )


@given(st.lists(clusters(), min_size=2, max_size=4))
def test_planning_what_changed_gives_what_planning_everything_gives(
    clusters: list[tuple[Snapshot, dict[str, PeerPath]]],
) -> None:
    before = view_of(*_for_view(clusters[0]))
    planned = plan_overlay(before)
    for cluster in clusters[1:]:
        after = view_of(*_for_view(cluster), before=before)
        assert after == view_of(*_for_view(cluster))
        old = planned.state
        planned, touched = replan_overlay(planned, before, after)
        assert planned == plan_overlay(after)
        assert diff_overlay(planned.state, old, touched) == diff_overlay(planned.state, old)
        before = after


BYSTANDERS = range(10, 46)
"""So many that a mapping with few changes is not copied."""


@given(st.data())
@settings(max_examples=examples(50), deadline=None)
def test_planning_one_changed_peer_of_many_gives_what_planning_everything_gives(
    data: st.DataObject,
) -> None:
    known = snapshot(node(OURS), *map(node, BYSTANDERS))
    paths: Mapping[str, PeerPath] = {uid(number): vxlan(number) for number in BYSTANDERS}
    before = view_of(known, UID, paths, TUNNELLING)
    planned = plan_overlay(before)
    for _ in range(data.draw(st.integers(1, 6))):
        number = data.draw(st.sampled_from([OURS, 2, 3, 10]))
        made = data.draw(st.none() | entries(number))
        known = replace(known, nodes=alter(known.nodes, {uid(number): made}))
        paths = alter(paths, {uid(number): data.draw(st.none() | overlay_values.paths(number))})
        only = frozenset(map(uid, data.draw(st.sets(st.sampled_from([2, 3, 10])))))
        after = view_of(known, UID, paths, TUNNELLING, before=before, tunnel_only=only)
        copy = replace(known, nodes=dict(known.nodes))
        anew = view_of(copy, UID, dict(paths), TUNNELLING, tunnel_only=only)
        assert after == anew
        old = planned
        planned, touched = replan_overlay(old, before, after)
        assert planned == plan_overlay(anew)
        changes = diff_overlay(planned.state, old.state)
        assert diff_overlay(planned.state, old.state, touched) == changes
        before = after


def _for_view(cluster: tuple[Snapshot, dict[str, PeerPath]]):  # type: ignore[no-untyped-def]
    known, paths = cluster
    return known, UID, paths, TUNNELLING


# Differences.


@given(clusters(), clusters())
def test_the_changes_lead_from_any_state_to_the_plan(one, other) -> None:  # type: ignore[no-untyped-def]
    have = plan_overlay(view_of(*_for_view(one))).state
    want = plan_overlay(view_of(*_for_view(other))).state
    changes = diff_overlay(want, have)

    reached = _applied(have, changes)
    assert replace(reached, loose_links=want.loose_links) == want
    assert diff_overlay(want, want) == []
    drops = [isinstance(change, Drop) for change in changes]
    assert drops == sorted(drops)


def _applied(have: OverlayState, changes: list[OverlayChange]) -> OverlayState:
    """The state after the changes, as the kernel would have it; fails where it would refuse."""
    devices, entries = dict(have.devices), dict(have.entries)
    for change in changes:
        match change:
            case PutDevice(device):
                held = devices[device.ifname].addresses if device.ifname in devices else ()
                devices[device.ifname] = replace(device, addresses=frozenset(held))
            case Put(LinkAddress(ifname, address)):
                held = devices[ifname].addresses | {address}
                devices[ifname] = replace(devices[ifname], addresses=held)
            case Drop(LinkAddress(ifname, address)):
                held = devices[ifname].addresses - {address}
                devices[ifname] = replace(devices[ifname], addresses=held)
            case Drop(VxlanDevice(ifname)):
                del devices[ifname]
                entries = {key: each for key, each in entries.items() if each.device != ifname}
            case Put(FdbEntry() as each):
                assert each.device in devices
                entries[each.key] = each
            case Put(Neighbour() as each):
                assert FdbEntry(each.device, each.mac, each.address).key in entries
                entries[each.key] = each
            case Put(PeerRoute() as each):
                entries[each.key] = each
            case Drop(PeerRoute() | Neighbour() | FdbEntry() as each):
                del entries[each.key]
    return OverlayState(devices, entries, have.loose_links)


def kinds_of(changes: list[OverlayChange]) -> list[str]:
    """Of each change what it does to what kind of thing."""
    return [
        f"{type(each).__name__} {type(each.what).__name__}"
        if isinstance(each, Put | Drop)
        else type(each).__name__
        for each in changes
    ]


STATE = plan_overlay(view(node(2), node(3), paths={PEER: vxlan(2)})).state


def test_a_peers_changed_address_is_one_change_and_its_changed_mac_four() -> None:
    moved = plan_overlay(view(node(2), node(3), paths={PEER: vxlan(9)})).state
    renewed = entry(a_grant(2), a_presence(2, vtep_macs={4: mac(9, 4)}))
    other = plan_overlay(view(renewed, node(3), paths={PEER: vxlan(2)})).state

    assert diff_overlay(moved, STATE) == [
        Put(FdbEntry("limvx4", mac(2, 4), ip_address("192.0.2.9")))
    ]
    kinds = kinds_of(diff_overlay(other, STATE))
    assert kinds == ["Put FdbEntry", *["Put Neighbour"] * 2, "Drop FdbEntry"]


def test_a_peer_that_changes_its_rung_has_its_routes_replaced_in_place() -> None:
    near = plan_overlay(view(node(2), node(3), paths={PEER: plain(2)})).state

    kinds = kinds_of(diff_overlay(near, STATE))
    assert kinds == [*["Put PeerRoute"] * 2, *["Drop Neighbour"] * 2, "Drop FdbEntry"]
    kinds = kinds_of(diff_overlay(STATE, near))
    assert kinds == ["Put FdbEntry", *["Put Neighbour"] * 2, *["Put PeerRoute"] * 2]


@pytest.mark.parametrize(
    "changes", [{"vni": 2}, {"port": 4789}, {"plain": False}, {"underlay_version": 6}]
)
def test_a_device_that_cannot_be_mended_is_made_anew_with_all_that_it_led_to(
    changes: dict[str, object],
) -> None:
    other = replace(STATE.devices["limvx4"], **changes)  # type: ignore[arg-type]
    have = replace(STATE, devices={**STATE.devices, "limvx4": other})

    done = diff_overlay(STATE, have)

    assert done[0] == PutDevice(STATE.devices["limvx4"], replaces=True)
    assert kinds_of(done[1:]) == [
        "Put LinkAddress",
        "Put LinkAddress",
        "LoosenLink",
        "Put FdbEntry",
        *["Put Neighbour"] * 2,
        *["Put PeerRoute"] * 2,
    ]


@pytest.mark.parametrize("changes", [{"mtu_bytes": 1400}, {"up": False}])
def test_a_device_that_can_be_mended_keeps_what_is_on_it(changes: dict[str, object]) -> None:
    other = replace(STATE.devices["limvx4"], **changes)  # type: ignore[arg-type]
    have = replace(STATE, devices={**STATE.devices, "limvx4": other})

    assert diff_overlay(STATE, have) == [PutDevice(STATE.devices["limvx4"])]


def test_with_a_devices_mac_its_neighbours_are_put_again() -> None:
    other = replace(STATE.devices["limvx4"], mac="02:00:00:00:00:99")
    have = replace(STATE, devices={**STATE.devices, "limvx4": other})

    kinds = kinds_of(diff_overlay(STATE, have))
    assert kinds == ["PutDevice", *["Put Neighbour"] * 2]


def test_nothing_is_put_on_a_device_of_somebody_else() -> None:
    other = replace(STATE.devices["limvx4"], ours=False)
    have = OverlayState({**STATE.devices, "limvx4": other}, loose_links=STATE.loose_links)

    assert diff_overlay(STATE, have) == [PutDevice(STATE.devices["limvx4"])]


def test_routes_that_are_gone_with_a_peer_go_before_what_they_lead_to() -> None:
    empty = plan_overlay(view(node(3), paths={})).state

    kinds = kinds_of(diff_overlay(empty, STATE))
    assert kinds == [*["Drop PeerRoute"] * 2, *["Drop Neighbour"] * 2, "Drop FdbEntry"]


def test_a_route_is_told_by_prefix_and_metric() -> None:
    route = PeerRoute(ip_network("10.0.0.0/8"), "a", None, None, 200, 1450)

    other = PeerRoute(ip_network("10.0.0.0/8"), "b", None, None, 300, 1450)

    assert route.key == other._replace(metric=200).key != other.key
    assert transports.ROUTE.name == "route"


# A peer that flannel runs.


def test_a_peer_that_flannel_runs_gets_each_family_over_its_own_underlay() -> None:
    far = {"addresses": (ip_address("198.51.100.9"), ip_address("2001:db8:9::9"))}
    peer = entry(a_grant(2, roles=frozenset({Role.FLANNEL})), a_presence(2, port=0, **far))
    planned = part(peer, path=PeerPath(transports.VXLAN, underlay=far["addresses"][0]))

    assert [(route.device, route.mtu_bytes) for route in planned.routes] == [
        ("limvx4", 1450),
        ("limvx6", 1430),
    ]
    assert planned.neighbours == (
        Neighbour("limvx4", ip_address("10.244.2.0"), mac(2, 4)),
        Neighbour("limvx6", ip_address("fd00:0:0:2::"), mac(2, 6)),
    )
    assert planned.fdb == (
        FdbEntry("limvx4", mac(2, 4), far["addresses"][0]),
        FdbEntry("limvx6", mac(2, 6), far["addresses"][1]),
    )
    # The cluster says where it sends from, wherever that is.
    assert planned.outer == far["addresses"]


def test_a_peer_that_flannel_runs_without_ipv6_gets_none_and_says_why() -> None:
    four = (ip_address("192.0.2.2"),)
    peer = entry(
        a_grant(2, roles=frozenset({Role.FLANNEL})),
        a_presence(2, addresses=four, vtep_macs={4: mac(2, 4)}),
    )
    planned = part(peer, path=vxlan(2))

    assert [route.device for route in planned.routes] == ["limvx4"]
    assert [why for _, why in planned.without] == ["no address for VXLAN is known"]
