"""Grants and presences for tests, signed with keys that are made of small numbers."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import strategies as st

from limpet.cluster.documents import Document, Known, Sealed
from limpet.cluster.keys import ClusterKey, public_key_of, uid_of
from limpet.cluster.kinds import GRANT, KINDS, NETWORK, PRESENCE
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.membership import Membership
from limpet.cluster.merge import merge
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.seal import seal

CLUSTER_KEY = bytes(31) + b"\x01"
PINNED = public_key_of(CLUSTER_KEY)


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


def seal_network(value: Network, key: bytes) -> Sealed:
    return seal(NETWORK, value, key).sealed


def seal_grant(value: Grant, key: bytes) -> Sealed:
    return seal(GRANT, value, key).sealed


def seal_presence(value: Presence, key: bytes) -> Sealed:
    return seal(PRESENCE, value, key).sealed


def documents(number: int, *, sequence: int | None = None, **changes: object) -> list[Document]:
    """A node's grant, and its presence if it has a sequence."""
    found = [seal(GRANT, grant(number, **changes), CLUSTER_KEY)]
    if sequence is not None:
        found.append(seal(PRESENCE, presence(number, sequence), node_key(number)))
    return found


def told(number: int, *, sequence: int | None = None, **changes: object) -> list[Sealed]:
    return [each.sealed for each in documents(number, sequence=sequence, **changes)]


def introduced(membership: Membership) -> list[Sealed]:
    """What a node says of itself, with its grant."""
    lineage = membership.replica.known.lineage(membership.introduction)
    return [document.sealed for document in lineage]


def entry(number: int, *, sequence: int | None = None, **changes: object) -> NodeEntry:
    said = None if sequence is None else presence(number, sequence)
    return NodeEntry(grant(number, **changes), said)


NOTHING = Known(KINDS, PINNED)


def known_of(*news: list[Document], generation: int | None = None) -> Known:
    """`generation`: of the network; None: it is not known."""
    every = [document for each in news for document in each]
    if generation is not None:
        every.append(seal(NETWORK, network(generation), CLUSTER_KEY))
    return merge(NOTHING, every)[0]


def merged(one: Known, other: Known) -> Known:
    return merge(one, other)[0]


def node_documents() -> st.SearchStrategy[list[Document]]:
    return st.builds(
        documents,
        st.integers(1, 4),
        sequence=st.none() | st.integers(1, 3),
        generation=st.integers(1, 3),
        revision=st.integers(1, 3),
        tombstone=st.booleans(),
        name=st.sampled_from(["a", "b"]),
    )


def knowledge() -> st.SearchStrategy[Known]:
    return st.builds(
        lambda parts, generation: known_of(*parts, generation=generation),
        st.lists(node_documents(), max_size=5),
        st.none() | st.integers(1, 3),
    )
