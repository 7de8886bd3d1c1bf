"""What a node says of the way to a pod, and of its peers."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

from hypothesis import given
from msgspec.structs import asdict

from limpet.agent.answers.cluster import session_status
from limpet.agent.answers.peers import (
    count_partly_reached,
    count_peers,
    count_silent,
    peer_kinds,
    peer_statuses,
    probe_statuses,
    shared_endpoints,
)
from limpet.agent.status.cluster import SharedEndpoint
from limpet.agent.status.paths import PeerStatus
from limpet.cloud.session import SessionState
from limpet.cluster.nodes import NodeEntry, Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind
from limpet.cluster.topology.view import View, view_of
from limpet.datapath.overlay.plan import plan_overlay
from limpet.paths.measuring import Measured
from limpet.paths.probe.messages import Candidate
from tests.unit.datapath.overlay.overlay_values import (
    OWN,
    PEER,
    UID,
    a_grant,
    clusters,
    node,
    plain,
    seen,
    snapshot,
    uid,
    view,
    vxlan,
)

# Probes

LINK = Candidate(ProbeKind.LINK, ip_address("192.0.2.2"), 7471, "eth0")
OVERLAY = Candidate(ProbeKind.OVERLAY, ip_address("192.0.2.2"), 7471, "eth0", 6)
RELAYED = Candidate(ProbeKind.TUNNEL, ip_address("2001:db8::9"), 21000, relay="uid of the relay")


def test_probes_of_one_kind_are_added_up_over_all_rounds() -> None:
    rounds = [
        [
            Measured(LINK, transports.ROUTE, 0.5, in_use=True),
            Measured(OVERLAY, transports.ROUTE, None, in_use=False),
        ],
        [
            Measured(LINK, transports.ROUTE, None, in_use=True),
            Measured(OVERLAY, transports.ROUTE, None, in_use=False),
        ],
        [
            Measured(LINK, transports.ROUTE, 0.1234, in_use=True),
            Measured(RELAYED, transports.RELAY, 9.0, in_use=False),
        ],
    ]

    assert [asdict(each) for each in probe_statuses(rounds, PEER, seen().snapshot)] == [
        {
            "node": "node-2",
            "uid": PEER,
            "asked": "link",
            "address": "192.0.2.2",
            "endpoint": "",
            "relay": "",
            "device": "eth0",
            "version": 4,
            "in_use": True,
            "sent": 3,
            "answered": 2,
            "rtts_ms": [0.5, 0.123],
        },
        {
            "node": "node-2",
            "uid": PEER,
            "asked": "overlay",
            "address": "192.0.2.2",
            "endpoint": "",
            "relay": "",
            "device": "eth0",
            "version": 6,
            "in_use": False,
            "sent": 2,
            "answered": 0,
            "rtts_ms": [],
        },
        {
            "node": "node-2",
            "uid": PEER,
            "asked": "tunnel",
            "address": "2001:db8::9",
            "endpoint": "[2001:db8::9]:21000",
            "relay": "uid of the relay",
            "device": "",
            "version": 6,
            "in_use": False,
            "sent": 1,
            "answered": 1,
            "rtts_ms": [9.0],
        },
    ]


# Peers


def peers(seen_from: View, *, every: bool = False) -> dict[str, PeerStatus]:
    found = peer_statuses(
        seen_from, plan_overlay(seen_from), heard_s={PEER: 1.26}, every=every, readings={}, now_ns=0
    )
    return {peer.name: peer for peer in found}


def test_each_peer_is_listed_with_its_way_or_with_why_there_is_none() -> None:
    found = peers(seen((PEER, vxlan(2))))

    assert list(found) == ["node-2", "node-3"]
    reached, other = found.values()
    assert (reached.state, reached.rung, reached.devices) == (
        "reached",
        "vxlan",
        ["limvx4"],
    )
    assert (reached.underlay, reached.mtu_bytes) == ("192.0.2.2", 1450)
    assert (other.state, other.why) == ("unreached", "no path to it is proven")


def test_when_a_peer_was_heard_from_is_said_as_far_as_it_is_remembered() -> None:
    assert [peer.heard_s for peer in peers(seen()).values()] == [1.3, None]


def test_a_peer_that_answers_by_no_way_is_silent_whatever_rung_it_has() -> None:
    here = seen((PEER, vxlan(2)))
    silent = {PEER, uid(3)}  # which has no rung
    listed = peer_statuses(
        here, plan_overlay(here), heard_s={}, every=False, silent=silent, readings={}, now_ns=0
    )

    assert [each.state for each in listed] == ["silent", "unreached"]
    assert (listed[0].rung, listed[0].why) == ("vxlan", "it answers by no way")
    assert count_silent(kinds(here), silent) == 1


def test_a_removed_node_is_listed_only_when_asked_for() -> None:
    here = view(node(2), node(3, tombstone=True), paths={})

    assert list(peers(here)) == ["node-2"]
    assert peers(here, every=True)["node-3"].state == "removed"


def test_what_of_a_peer_is_not_reached_is_said_beside_what_is() -> None:
    only_ipv4 = plain(2, next_hops=(ip_address("192.0.2.2"),), underlay=None)

    (found, _) = peers(seen((PEER, only_ipv4))).values()

    assert found.state == "reached"
    assert [each.split(": ")[0] for each in found.without] == ["fd00:0:0:2::/64"]


def test_what_is_reached_behind_a_peer_is_listed_and_what_is_left_alone_is_not() -> None:
    lan, own = ip_network("192.168.50.0/24"), ip_network("192.0.2.0/24")

    (found,) = peers(view(node(2, prefixes_behind=(lan, own)), paths={PEER: plain(2)})).values()

    assert found.behind == ("192.168.50.0/24",)
    assert [each.split(": ")[0] for each in found.without] == ["192.0.2.0/24"]


def partly(here: View, *, silent: frozenset[str] = frozenset()) -> int:
    return count_partly_reached(kinds(here), silent, here, plan_overlay(here))


def test_peers_of_which_one_ip_version_is_not_reached_are_counted() -> None:
    only_ipv4 = plain(2, next_hops=(ip_address("192.0.2.2"),), underlay=None)
    here = seen((PEER, only_ipv4), (uid(3), vxlan(3)))

    assert partly(here) == 1
    assert partly(here, silent=frozenset({PEER})) == 0  # it counts as one that is silent


def test_what_a_node_has_no_address_of_and_what_is_behind_a_peer_are_no_part_of_it() -> None:
    only_ipv4 = {PEER: plain(2, next_hops=(ip_address("192.0.2.2"),), underlay=None)}
    ours = node(1, segments=(ip_network("10.244.1.0/24"),))
    without_ipv6 = view_of(snapshot(ours, node(2)), UID, only_ipv4, OWN)
    behind = node(2, prefixes_behind=(ip_network("10.244.1.0/25"),))

    assert partly(without_ipv6) == 0
    assert partly(view(behind, paths={PEER: plain(2)})) == 0
    assert plan_overlay(view(behind, paths={PEER: plain(2)})).parts[PEER].without


def test_a_node_without_a_grant_lists_its_peers_as_unreached() -> None:
    here = view_of(snapshot(node(2)), UID, {}, OWN)

    assert peers(here)["node-2"].why == "this node has no grant"


def kinds(here: View) -> dict[str, str]:
    return peer_kinds(here, plan_overlay(here))


def counted(here: View) -> dict[str, int]:
    return {kind: count for kind, count in count_peers(kinds(here)).items() if count}


def test_peers_are_counted_by_the_rung_that_their_packets_take() -> None:
    assert counted(seen((PEER, plain(2)), (uid(3), vxlan(3)))) == {"route": 1, "vxlan": 1}
    assert counted(seen()) == {"unreached": 2}


def test_peers_that_are_not_to_be_reached_do_not_count_as_unreached() -> None:
    assert counted(seen((uid(3), vxlan(3)), community="a")) == {"vxlan": 1, "apart": 1}
    assert counted(view(node(2), node(3, tombstone=True), paths={})) == {"unreached": 1}


@given(clusters())
def test_every_peer_that_was_not_removed_is_counted_as_it_is_listed(
    cluster: tuple[Snapshot, dict[str, PeerPath]],
) -> None:
    here = view_of(cluster[0], UID, cluster[1], OWN)
    plan = plan_overlay(here)
    listed = peer_statuses(here, plan, heard_s={}, every=False, readings={}, now_ns=0)

    assert count_peers(kinds(here)) == {
        kind: sum(kind in (peer.rung, peer.state) for peer in listed)
        for kind in (*(row for row in transports.TRANSPORTS), "unreached", "apart")
    }
    for peer in listed:
        assert (peer.state == "reached") == bool(peer.rung)
        assert bool(peer.why) == (peer.state != "reached")


def test_how_long_a_session_lasts_is_told_in_seconds() -> None:
    state = SessionState(
        "c:7470",
        connected=True,
        since_s=100.0,
        error="",
        refused="documents come too often",
        segment_refused="quota of 8",
        over=False,
        told=("two pods have one address",),
    )

    assert asdict(session_status(state, now_s=161.24)) == {
        "address": "c:7470",
        "connected": True,
        "for_s": 61.2,
        "error": "",
        "refused": "documents come too often",
        "segment_refused": "quota of 8",
        "over": False,
        "told": ["two pods have one address"],
    }


def test_a_peers_segments_are_those_that_count_not_those_it_once_had() -> None:
    shared = (ip_network("10.244.2.0/24"),)
    newer = replace(node(3), grant=a_grant(3, segments=shared, revision=9))

    found = peers(view(node(2, segments=shared), newer, paths={}))

    assert found["node-2"].segments == []
    assert found["node-3"].segments == ["10.244.2.0/24"]


def test_endpoints_that_another_node_names_too_are_told_and_those_of_removed_nodes_are_not() -> (
    None
):
    def telling(number: int, *ports: int, **changes: object) -> NodeEntry:
        told = node(number, **changes)
        assert told.presence is not None
        endpoints = tuple((ip_address("203.0.113.7"), port) for port in ports)
        return replace(told, presence=replace(told.presence, endpoints=endpoints))

    known = snapshot(
        telling(1, 51820, 51821),
        telling(2, 51820),
        telling(3, 51820, 51822),
        telling(4, 51821, tombstone=True, segments=()),
    )

    assert shared_endpoints(known, UID) == [
        SharedEndpoint(endpoint="203.0.113.7:51820", nodes=["node-2", "node-3"])
    ]
    assert shared_endpoints(snapshot(node(1), telling(2, 51820)), UID) == []
