"""Clusters for tests of the network between nodes: small numbers make nodes, paths and views."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import strategies as st
from tests.unit.cluster_values import grant, network, presence

from limpet.cluster.kinds.grant import Grant, Role
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry, Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.view import View, view_of
from limpet.datapath.overlay.plan import plan_peer
from limpet.datapath.overlay.state import PeerPart

OURS = 1


def mac(number: int, version: int) -> str:
    return f"02:4c:00:00:0{version}:{number:02x}"


def segments(number: int) -> tuple:  # type: ignore[type-arg]
    return (ip_network(f"10.244.{number}.0/24"), ip_network(f"fd00:0:0:{number}::/64"))


def a_grant(number: int, **changes: object) -> Grant:
    return grant(number, **{"segments": segments(number), **changes})


def a_presence(number: int, **changes: object) -> Presence:
    macs = {4: mac(number, 4), 6: mac(number, 6)}
    return presence(number, 1, **{"vtep_macs": macs, **changes})


def entry(granted: Grant, present: Presence | None = None) -> NodeEntry:
    return NodeEntry(granted, present)


def node(number: int, **changes: object) -> NodeEntry:
    return entry(a_grant(number, **changes), a_presence(number))


def snapshot(*entries: NodeEntry, **changes: object) -> Snapshot:
    return Snapshot(network(1, **changes), {each.grant.uid: each for each in entries})


UID = a_grant(OURS).uid
PEER = a_grant(2).uid
OWN = OwnSide(
    {4: mac(OURS, 4), 6: mac(OURS, 6)},
    1500,
    frozenset({"eth0"}),
    (ip_network("192.0.2.0/24"), ip_network("2001:db8::/64")),
)


def uid(number: int) -> str:
    return a_grant(number).uid


def vxlan(number: int, version: int = 4, **changes: object) -> PeerPath:
    text = f"192.0.2.{number}" if version == 4 else f"2001:db8::{number}"
    return PeerPath(transports.VXLAN, underlay=ip_address(text), **changes)  # type: ignore[arg-type]


def plain(number: int, **changes: object) -> PeerPath:
    hops = (ip_address(f"192.0.2.{number}"), ip_address(f"2001:db8::{number}"))
    values = {"device": "eth0", "next_hops": hops, "underlay": hops[0], **changes}
    return PeerPath(transports.ROUTE, **values)  # type: ignore[arg-type]


def view(*entries: NodeEntry, paths: dict[str, PeerPath], own: OwnSide = OWN) -> View:
    return view_of(snapshot(node(OURS), *entries), UID, paths, own)


def part(peer: object = None, path: PeerPath | None = None, own: OwnSide = OWN) -> PeerPart:
    made = node(2) if peer is None else peer
    paths = {} if path is None else {PEER: path}
    return plan_peer(view(made, paths=paths, own=own), PEER)  # type: ignore[arg-type]


# Strategies. Few values, so that peers get into each other's way.

_prefixes = st.sampled_from(
    [
        *(prefix for number in range(1, 6) for prefix in segments(number)),
        ip_network("10.244.2.0/25"),
        ip_network("10.20.0.0/16"),
        ip_network("192.0.2.0/24"),
        ip_network("0.0.0.0/0"),
        ip_network("fd00:bee::/48"),
    ]
)


def grants(number: int) -> st.SearchStrategy[Grant]:
    usual = st.just(segments(number))
    return st.builds(
        lambda held, behind, communities, roles, revision, tombstone: a_grant(
            number,
            segments=held,
            prefixes_behind=behind,
            communities=communities,
            roles=roles,
            revision=revision,
            tombstone=tombstone,
        ),
        usual | st.lists(_prefixes, max_size=3, unique=True).map(tuple),
        st.lists(_prefixes, max_size=2, unique=True).map(tuple),
        st.sampled_from([(), (), ("a",), ("b",), ("a", "b")]),
        st.sampled_from([frozenset({Role.EDGE}), frozenset({Role.CLOUD})]),
        st.integers(1, 3),
        st.sampled_from([False, False, False, True]),
    )


def presences(number: int) -> st.SearchStrategy[Presence]:
    macs = st.sampled_from([mac(each, 4) for each in range(1, 5)] + ["", "01:00:5e:00:00:01"])
    return st.builds(
        lambda macs, mtu_bytes, tunnel_port: a_presence(
            number, vtep_macs=macs, link_mtu_bytes=mtu_bytes, tunnel_port=tunnel_port
        ),
        st.just({4: mac(number, 4), 6: mac(number, 6)})
        | st.dictionaries(st.sampled_from([4, 6]), macs),
        st.sampled_from([1500, 1300, 9000, 0]),
        st.sampled_from([7000, 0]),
    )


def entries(number: int) -> st.SearchStrategy[NodeEntry]:
    return st.builds(entry, grants(number), st.none() | presences(number))


def paths(number: int) -> st.SearchStrategy[PeerPath]:
    hops = (ip_address(f"192.0.2.{number}"), ip_address(f"2001:db8::{number}"))
    return st.builds(
        PeerPath,
        st.sampled_from(transports.by_preference()),
        mtu_bytes=st.sampled_from([1500, 1320]),
        device=st.just("eth0"),
        next_hops=st.sampled_from([hops, hops[:1], hops[1:], ()]),
        underlay=st.sampled_from([*hops, None]),
        endpoint=st.sampled_from([(hops[0], 7000), (hops[1], 7000), None]),
    )


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Snapshot, dict[str, PeerPath]]:
    numbers = draw(st.sets(st.integers(2, 5)))
    ours = draw(grants(OURS).map(entry) | st.just(node(OURS)))
    made = {OURS: ours, **{number: draw(entries(number)) for number in numbers}}
    chosen = {uid(number): draw(paths(number)) for number in sorted(numbers) if draw(st.booleans())}
    return snapshot(*made.values()), chosen


def seen(*paths: tuple[str, PeerPath], community: str = "") -> View:
    second = node(2, communities=(community,)) if community else node(2)
    return view(second, node(3), paths=dict(paths))
