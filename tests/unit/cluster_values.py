"""Grants and presences for tests, signed with keys that are made of small numbers."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import strategies as st

from limpet.cluster.documents import NodeEntry, Sealed, Snapshot
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import ClusterKey, Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.seal import (
    make_entry,
    public_key_of,
    seal_grant,
    seal_network,
    seal_presence,
    uid_of,
)

CLUSTER_KEY = bytes(31) + b"\x01"
PINNED = public_key_of(CLUSTER_KEY)
TRUSTED = frozenset({PINNED})


def node_key(number: int) -> bytes:
    return bytes(30) + bytes([1, number])


def grant(number: int, **changes: object) -> Grant:
    public_key = public_key_of(node_key(number))
    values = {
        "uid": uid_of(public_key),
        "name": f"node-{number}",
        "public_key": public_key,
        "generation": 1,
        "revision": 1,
        "segments": (ip_network(f"10.244.{number}.0/24"),),
        **changes,
    }
    return Grant(**values)  # type: ignore[arg-type]


def presence(number: int, sequence: int = 1, **changes: object) -> Presence:
    values = {
        "uid": uid_of(public_key_of(node_key(number))),
        "sequence": sequence,
        "boot_id": "boot",
        "addresses": (ip_address(f"192.0.2.{number}"),),
        **changes,
    }
    return Presence(**values)  # type: ignore[arg-type]


def network(generation: int = 1, **changes: object) -> Network:
    values = {
        "cluster": "test",
        "generation": generation,
        "revision": 1,
        "keys": (ClusterKey(PINNED),),
        "pod_cidrs": (ip_network("10.244.0.0/16"), ip_network("fd00::/48")),
        **changes,
    }
    return Network(**values)  # type: ignore[arg-type]


def entry(number: int, *, sequence: int | None = None, **changes: object) -> NodeEntry:
    sealed_presence: Sealed | None = None
    if sequence is not None:
        sealed_presence = seal_presence(presence(number, sequence), node_key(number))
    return make_entry(seal_grant(grant(number, **changes), CLUSTER_KEY), sealed_presence, TRUSTED)


def snapshot_of(*entries: NodeEntry, generation: int | None = None) -> Snapshot:
    made = None if generation is None else network(generation)
    return Snapshot(
        made,
        None if made is None else seal_network(made, CLUSTER_KEY),
        {each.grant.uid: each for each in entries},
    )


def entries() -> st.SearchStrategy[NodeEntry]:
    return st.builds(
        entry,
        st.integers(1, 4),
        sequence=st.none() | st.integers(1, 3),
        generation=st.integers(1, 3),
        revision=st.integers(1, 3),
        tombstone=st.booleans(),
        name=st.sampled_from(["a", "b"]),
    )


def snapshots() -> st.SearchStrategy[Snapshot]:
    return st.builds(
        lambda parts, generation: snapshot_of(*parts, generation=generation),
        st.lists(entries(), max_size=5),
        st.none() | st.integers(1, 3),
    )
