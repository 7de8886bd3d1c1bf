"""What the tunnel should be is a function of what is known, and each round reaches it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cluster_values import network
from tests.unit.datapath.overlay.overlay_values import (
    OURS,
    OWN,
    PEER,
    UID,
    a_grant,
    a_presence,
    entry,
    grants,
    node,
    segments,
    snapshot,
    uid,
)

from limpet.base.addresses import Endpoint, Prefix
from limpet.base.settings import KEEPALIVE_S, NAT_TIMEOUT_S
from limpet.cluster.nodes import NodeEntry, Snapshot
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.transports import TUNNEL, TUNNEL_OVERHEAD_BYTES
from limpet.cluster.topology.tunnel_end import TunnelEnd, endpoint_problem, tunnel_mtu_bytes
from limpet.cluster.topology.view import view_of
from limpet.datapath.overlay.plan import plan_overlay, plan_peer
from limpet.datapath.tunnel.diff import (
    DropEndpoint,
    DropTunnel,
    DropTunnelPeer,
    PutTunnel,
    PutTunnelPeer,
    TunnelChange,
    adopted_endpoints,
    diff_tunnel,
)
from limpet.datapath.tunnel.key import tunnel_public_key
from limpet.datapath.tunnel.plan import (
    TunnelView,
    plan_tunnel,
    plan_tunnel_peer,
    replan_tunnel,
)
from limpet.datapath.tunnel.state import (
    TunnelDevice,
    TunnelKey,
    TunnelPeer,
    TunnelState,
)

KEY = TunnelKey(b"p" * 32, tunnel_public_key(a_grant(OURS).public_key), 51820)
ENDPOINT: Endpoint = (ip_address("198.51.100.2"), 7000)


def tunnel_key(number: int) -> bytes:
    return tunnel_public_key(a_grant(number).public_key)


def peer(number: int, **changes: object) -> NodeEntry:
    return entry(a_grant(number), a_presence(number, **{"tunnel_port": 7000, **changes}))


def view(
    cluster: Snapshot,
    ends: dict[str, TunnelEnd],
    *,
    own: OwnSide = OWN,
    paths: dict[str, PeerPath] | None = None,
) -> TunnelView:
    seen = view_of(cluster, UID, paths or {}, own)
    return TunnelView(seen, plan_overlay(seen).parts, ends, KEY)


def planned(
    number: int, found: NodeEntry, end: TunnelEnd | None, **own: object
) -> TunnelPeer | None:
    ends = {} if end is None else {uid(number): end}
    side = replace(OWN, **own)  # type: ignore[arg-type]
    return plan_tunnel_peer(view(snapshot(node(OURS), found), ends, own=side), uid(number))


def test_a_peer_gets_its_segments_its_endpoint_and_no_keepalive() -> None:
    made = planned(2, peer(2), TunnelEnd(ENDPOINT))

    assert made == TunnelPeer(tunnel_key(2), frozenset(segments(2)), ENDPOINT, 0)


def test_a_nat_in_the_way_asks_for_keepalives() -> None:
    made = planned(2, peer(2), TunnelEnd(ENDPOINT, behind_nat=True))

    assert made is not None
    assert made.keepalive_s == KEEPALIVE_S


@pytest.mark.parametrize("timeout_s", [4, 7, 29, NAT_TIMEOUT_S])
def test_a_hasty_nat_is_reminded_sooner_than_it_forgets(timeout_s: int) -> None:
    made = planned(2, peer(2), TunnelEnd(ENDPOINT, behind_nat=True), nat_timeout_s=timeout_s)

    assert made is not None
    assert timeout_s / 2 <= made.keepalive_s < timeout_s


def test_a_peer_without_a_known_endpoint_may_speak_first() -> None:
    assert planned(2, peer(2), None) == TunnelPeer(tunnel_key(2), frozenset(segments(2)))


@pytest.mark.parametrize(
    "endpoint",
    [
        ("10.244.7.9", 7000),
        ("fd00::9", 7000),
        ("224.0.0.1", 7000),
        ("0.0.0.0", 7000),
        ("fe80::1", 7000),
        ("198.51.100.2", 0),
        ("198.51.100.2", 65536),
    ],
)
def test_an_endpoint_that_is_none_or_leads_into_the_tunnel_is_not_taken(
    endpoint: tuple[str, int],
) -> None:
    where = ip_address(endpoint[0]), endpoint[1]

    made = planned(2, peer(2), TunnelEnd(where))

    assert made is not None
    assert made.endpoint is None
    assert endpoint[0] in endpoint_problem(where, network().pod_cidrs)


def test_an_endpoint_in_a_prefix_behind_its_own_peer_is_taken_and_all_is_routed() -> None:
    """Packets of the tunnel are marked: no route of ours leads them."""
    behind = ip_network("198.51.100.0/24")
    found = replace(peer(2), grant=a_grant(2, prefixes_behind=(behind,)))

    made = planned(2, found, TunnelEnd(ENDPOINT))
    part = plan_peer(
        view_of(
            snapshot(node(OURS), found),
            UID,
            {uid(2): PeerPath(TUNNEL, endpoint=ENDPOINT)},
            replace(OWN, tunnel="limwg0"),
        ),
        uid(2),
    )

    assert made is not None
    assert made.endpoint == ENDPOINT
    assert {route.prefix for route in part.routes} == {*segments(2), behind}
    assert (part.without, part.refused) == ((), "")


def test_an_endpoint_in_a_segment_of_its_peer_is_not_taken() -> None:
    found = replace(peer(2), grant=a_grant(2, segments=(ip_network("198.51.100.0/24"),)))
    made = planned(2, found, TunnelEnd(ENDPOINT))

    assert made is not None
    assert made.endpoint is None
    problem = endpoint_problem(ENDPOINT, made.allowed)
    assert "198.51.100.0/24, which goes through the tunnel" in problem


@pytest.mark.parametrize(
    "found",
    [
        peer(2, tunnel_port=0),
        entry(a_grant(2)),
        replace(peer(2), grant=a_grant(2, public_key=a_grant(OURS).public_key)),
        replace(peer(2), grant=a_grant(2, public_key=b"\1" + bytes(31))),
        replace(peer(2), grant=a_grant(2, tombstone=True)),
        replace(peer(2), grant=a_grant(2, communities=("a",))),
        replace(peer(2), grant=a_grant(2, segments=())),
    ],
    ids=["port", "presence", "own-key", "no-key", "removed", "apart", "no-segment"],
)
def test_who_may_not_talk_or_tells_no_tunnel_has_no_tunnel(found: NodeEntry) -> None:
    assert planned(2, found, TunnelEnd(ENDPOINT)) is None


def test_of_two_that_were_granted_one_key_the_later_has_it_and_of_one_time_neither() -> None:
    # As no controller does: a uid is made of the key.
    for revision, holder in ((0, 2), (1, None), (2, 3)):
        same = a_grant(3, public_key=a_grant(2).public_key, revision=revision)
        cluster = snapshot(node(OURS), peer(2), replace(peer(3), grant=same))

        plan = plan_tunnel(view(cluster, {}))

        assert tunnel_key(2) in plan.contested
        assert plan.holders.get(tunnel_key(2)) == (uid(holder) if holder else None)
        held = [peer.allowed for peer in plan.state.peers.values()]
        assert held == ([frozenset(segments(holder))] if holder else [])


def test_a_node_without_a_grant_has_no_tunnel() -> None:
    plan = plan_tunnel(view(snapshot(peer(2)), {}))

    assert plan.state == TunnelState()


@given(st.integers(1280, 9000), st.sampled_from([4, 6]), st.integers(1280, 9000))
def test_the_largest_inner_packet_goes_through_in_one_piece(
    underlay_mtu_bytes: int, version: int, link_mtu_bytes: int
) -> None:
    device_mtu_bytes = link_mtu_bytes - 60
    mtu_bytes = tunnel_mtu_bytes(
        underlay_mtu_bytes, TUNNEL_OVERHEAD_BYTES[version], device_mtu_bytes=device_mtu_bytes
    )

    overhead = {4: 60, 6: 80}[version]
    # Source: calculate_skb_padding in drivers/net/wireguard/send.c.
    padded = min(-(-mtu_bytes // 16) * 16, device_mtu_bytes)
    assert mtu_bytes <= device_mtu_bytes
    assert padded + overhead <= underlay_mtu_bytes
    assert mtu_bytes > min(underlay_mtu_bytes - overhead, device_mtu_bytes) - 16


# Properties. Few values, so that peers get into each other's way.

_keys = st.sampled_from(
    [a_grant(number).public_key for number in range(1, 4)] + [b"\1" + bytes(31)]
)
_endpoints = st.sampled_from(
    [ENDPOINT, (ip_address("2001:db8::2"), 7), (ip_address("10.244.2.9"), 7)]
)
_ends = st.builds(TunnelEnd, st.none() | _endpoints, st.booleans())


def _own_key(number: int) -> bytes:
    return a_grant(number).public_key


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Snapshot, dict[str, TunnelEnd]]:
    ours = draw(st.just(node(OURS)) | grants(OURS).map(entry))
    ports = st.sampled_from([7000, 7000, 0])
    others = {
        number: entry(
            replace(draw(grants(number)), public_key=draw(_keys | st.just(_own_key(number)))),
            draw(st.none() | st.builds(a_presence, st.just(number), tunnel_port=ports)),
        )
        for number in draw(st.sets(st.integers(2, 5)))
    }
    ends = {uid(number): draw(_ends) for number in others if draw(st.booleans())}
    return snapshot(ours, *others.values()), ends


@given(st.lists(clusters(), min_size=2, max_size=5))
def test_planning_what_changed_gives_what_planning_everything_gives(
    steps: list[tuple[Snapshot, dict[str, TunnelEnd]]],
) -> None:
    before = view(*steps[0])
    plan = plan_tunnel(before)
    for step in steps[1:]:
        after = view(*step)
        old = plan.state
        plan, touched = replan_tunnel(plan, before, after)

        assert plan == plan_tunnel(after)
        if touched is not None:
            same_peers = {
                key: plan.state.peers.get(key) == old.peers.get(key)
                for key in {**plan.state.peers, **old.peers}
            }
            assert {key for key, same in same_peers.items() if not same} <= touched
            assert plan.state.device == old.device
        before = after


def test_one_changed_peer_touches_its_key_only() -> None:
    before = view(snapshot(node(OURS), peer(2), peer(3)), {})
    after = view(snapshot(node(OURS), peer(2), peer(3)), {PEER: TunnelEnd(ENDPOINT)})

    plan, touched = replan_tunnel(plan_tunnel(before), before, after)

    assert touched == frozenset({tunnel_key(2)})
    assert plan == plan_tunnel(after)


@given(clusters())
def test_no_prefix_and_no_key_has_two_peers_and_all_is_let_in_by_the_overlays_answer(
    cluster: tuple[Snapshot, dict[str, TunnelEnd]],
) -> None:
    seen = view(*cluster)
    plan = plan_tunnel(seen)

    allowed = [prefix for each in plan.state.peers.values() for prefix in each.allowed]
    assert len(allowed) == len(set(allowed))
    for each in plan.state.peers.values():
        assert each.allowed <= set(seen.admitted[plan.holders[each.public_key]].sources)


# Diff: over a device that does what WireGuard does.


def play(changes: Iterable[TunnelChange], have: TunnelState) -> TunnelState:
    """The state after the changes. An added prefix leaves the peer that had it."""
    changes = list(changes)
    device, peers = have.device, dict(have.peers)
    moved = {prefix for each in changes if isinstance(each, PutTunnelPeer) for prefix in each.add}
    for change in changes:
        match change:
            case PutTunnel(device):
                peers = peers if have.device is not None else {}
            case DropTunnel():
                device, peers = None, {}
            case DropTunnelPeer(key):
                del peers[key]
            case PutTunnelPeer():
                _play_put(change, peers, moved)
    return TunnelState(device, peers)


def _play_put(change: PutTunnelPeer, peers: dict[bytes, TunnelPeer], moved: set[Prefix]) -> None:
    for key, each in peers.items():
        lost = set(change.add) | (set(change.take) - moved)
        peers[key] = replace(each, allowed=each.allowed - lost)
    had = peers.get(change.public_key, TunnelPeer(change.public_key))
    keepalive_s = had.keepalive_s if change.keepalive_s is None else change.keepalive_s
    allowed = had.allowed | set(change.add)
    endpoint = change.endpoint or had.endpoint
    peers[change.public_key] = TunnelPeer(change.public_key, allowed, endpoint, keepalive_s)


_prefixes = st.sampled_from([ip_network(f"10.244.{number}.0/24") for number in range(6)])


@st.composite
def states(draw: st.DrawFn) -> TunnelState:
    device = TunnelDevice("limwg0", draw(st.sampled_from([1440, 1380])), b"p" * 32, 51820)
    free = set(draw(st.sets(_prefixes)))
    peers = {}
    for key in sorted(draw(st.sets(st.sampled_from([tunnel_key(n) for n in range(1, 5)])))):
        allowed = frozenset(draw(st.sets(st.sampled_from(sorted(free, key=str))))) if free else ()
        free -= set(allowed)
        endpoint = draw(st.none() | st.tuples(st.just(ENDPOINT[0]), st.integers(1, 3)))
        peers[key] = TunnelPeer(key, frozenset(allowed), endpoint, draw(st.sampled_from([0, 25])))
    return draw(
        st.sampled_from([TunnelState(device, peers), TunnelState(device, peers), TunnelState()])
    )


def without_endpoints(state: TunnelState) -> TunnelState:
    peers = {key: replace(each, endpoint=None) for key, each in state.peers.items()}
    return TunnelState(state.device, peers)


@given(states(), states())
def test_applying_the_diff_reaches_the_wanted_state(want: TunnelState, have: TunnelState) -> None:
    after = play(diff_tunnel(want, have, {}), have)

    assert without_endpoints(after) == without_endpoints(want)
    for key, each in want.peers.items():
        if each.endpoint is not None:
            assert after.peers[key].endpoint == each.endpoint


@given(states(), states())
def test_what_is_as_planned_is_left_as_it_is(want: TunnelState, roamed: TunnelState) -> None:
    given_ = {k: each.endpoint for k, each in want.peers.items() if each.endpoint is not None}
    peers = {
        key: replace(each, endpoint=roamed.peers[key].endpoint) if key in roamed.peers else each
        for key, each in want.peers.items()
    }

    assert diff_tunnel(want, TunnelState(want.device, peers), given_) == []


@given(states(), states())
def test_a_round_over_the_touched_keys_equals_one_over_all(
    want: TunnelState, have: TunnelState
) -> None:
    every = want.peers.keys() | have.peers.keys()

    assert diff_tunnel(want, have, {}, every) == diff_tunnel(want, have, {})
    same = {key for key in every if want.peers.get(key) == have.peers.get(key)}
    given_ = {k: each.endpoint for k, each in want.peers.items() if each.endpoint is not None}
    assert diff_tunnel(want, have, given_, every - same) == diff_tunnel(want, have, given_)


def test_a_moved_peer_is_brought_elsewhere_by_a_new_plan_only() -> None:
    moved, newer = (ENDPOINT[0], 1), (ENDPOINT[0], 2)
    key = tunnel_key(2)
    device = TunnelDevice("limwg0", 1440, b"p" * 32, 51820)
    have = TunnelState(device, {key: TunnelPeer(key, endpoint=moved)})
    old_plan = TunnelState(device, {key: TunnelPeer(key, endpoint=ENDPOINT)})
    new_plan = TunnelState(device, {key: TunnelPeer(key, endpoint=newer)})

    assert diff_tunnel(old_plan, have, {key: ENDPOINT}) == []
    assert diff_tunnel(old_plan, have, adopted_endpoints(old_plan, have)) == []
    assert diff_tunnel(new_plan, have, {key: ENDPOINT}) == [PutTunnelPeer(key, endpoint=newer)]
    # A peer that has never been heard of has nothing better.
    silent = TunnelState(device, {key: TunnelPeer(key)})
    given_ = adopted_endpoints(old_plan, silent)
    assert diff_tunnel(old_plan, silent, given_) == [PutTunnelPeer(key, endpoint=ENDPOINT)]


def test_an_endpoint_that_is_planned_again_counts_as_new() -> None:
    key = tunnel_key(2)
    device = TunnelDevice("limwg0", 1440, b"p" * 32, 51820)
    have = TunnelState(device, {key: TunnelPeer(key, endpoint=(ENDPOINT[0], 1))})
    planned = TunnelState(device, {key: TunnelPeer(key, endpoint=ENDPOINT)})
    unplanned = TunnelState(device, {key: TunnelPeer(key)})

    assert diff_tunnel(unplanned, have, {key: ENDPOINT}) == [DropEndpoint(key)]
    assert diff_tunnel(unplanned, have, {}) == []
    assert diff_tunnel(planned, have, {}) == [PutTunnelPeer(key, endpoint=ENDPOINT)]


def test_nothing_is_done_to_a_device_that_is_not_ours() -> None:
    ours = TunnelDevice("limwg0", 1440, b"p" * 32, 51820)
    foreign = TunnelState(replace(ours, ours=False), {tunnel_key(9): TunnelPeer(tunnel_key(9))})
    want = TunnelState(ours, {tunnel_key(2): TunnelPeer(tunnel_key(2))})

    assert diff_tunnel(want, foreign, {}) == [PutTunnel(ours)]
    assert diff_tunnel(TunnelState(), foreign, {}) == []
