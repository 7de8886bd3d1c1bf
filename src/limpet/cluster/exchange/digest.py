"""What is known of the cluster in little, to be compared with what a neighbour knows.

Nodes are put in buckets by a hash of the uid. A digest has 32 bits for each bucket, so two nodes
that know the same find that out with one small message, and else list only what differs.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from limpet.cluster.documents import NodeEntry, Sealed, Snapshot
from limpet.cluster.exchange.messages import (
    BUCKETS,
    GOOD_BODY_BYTES,
    ITEM_BYTES,
    LISTING_BYTES,
    NO_NETWORK,
    NO_PRESENCE,
    OVERHEAD_BYTES,
    Digest,
    GrantRank,
    Item,
    Listing,
    Message,
    NetworkRank,
    Pair,
    PresenceRank,
    Push,
    pair_bytes,
)

MOST_LISTINGS = 16
"""Datagrams in answer to one digest."""
_LARGEST = (1 << 64) - 1


def bucket_of(uid: str) -> int:
    return zlib.crc32(uid.encode()) % BUCKETS


@dataclass(frozen=True, slots=True)
class Difference:
    """What a listing shows, each in the order of uids."""

    newer_here: tuple[str, ...] = ()
    newer_there: tuple[str, ...] = ()
    network_newer_here: bool = False
    network_newer_there: bool = False


class Index:
    """The snapshot's ranks; a change costs what changed, not what is known."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._items: list[dict[str, Item]] = [{} for _ in range(BUCKETS)]
        self._buckets = [0] * BUCKETS
        self.network = NO_NETWORK
        self.update(snapshot, snapshot.nodes)

    def update(self, snapshot: Snapshot, uids: Iterable[str]) -> None:
        """What is known of `uids`, and the network, is now as `snapshot` has it."""
        self.network = _network_rank(snapshot)
        for uid in uids:
            bucket = bucket_of(uid)
            items = self._items[bucket]
            before, entry = items.pop(uid, None), snapshot.nodes.get(uid)
            if before is not None:
                self._buckets[bucket] ^= _mark(before)
            if entry is not None:
                items[uid] = item = _item(uid, entry)
                self._buckets[bucket] ^= _mark(item)

    def digest(self, nonce: bytes) -> Digest:
        return Digest(nonce, self.network, tuple(self._buckets))

    def differing(self, digest: Digest) -> list[int]:
        """Buckets in which the other knows something else, ascending."""
        pairs = enumerate(zip(self._buckets, digest.buckets, strict=True))
        return [bucket for bucket, (ours, theirs) in pairs if ours != theirs]

    def items(self, bucket: int) -> list[Item]:
        return list(self._items[bucket].values())

    def compare(self, listing: Listing) -> Difference:
        """What the one who made the listing lacks, and what we lack, in the listing's buckets."""
        theirs = {item.uid: item for item in listing.items}
        ours = {
            uid: item for bucket in listing.buckets for uid, item in self._items[bucket].items()
        }
        here = [uid for uid, item in ours.items() if _is_newer(item, theirs.get(uid))]
        there = [
            uid
            for uid, item in theirs.items()
            if bucket_of(uid) in listing.buckets and _is_newer(item, ours.get(uid))
        ]
        return Difference(
            tuple(sorted(here)),
            tuple(sorted(there)),
            self.network > listing.network,
            self.network < listing.network,
        )


def make_listings(
    index: Index,
    digest: Digest,
    nonce: bytes,
    *,
    room_bytes: int | None,
    below: Callable[[int], int],
) -> list[Message]:
    """The answer to a digest, in up to `MOST_LISTINGS` datagrams of `room_bytes` together.

    Where not all fits, it tells of random buckets, so that none is for ever in the way of others.
    """
    left = index.differing(digest)
    listings: list[tuple[list[int], list[Item]]] = [([], [])]
    spent = OVERHEAD_BYTES + LISTING_BYTES
    while left:
        bucket = left[below(len(left))]
        items = index.items(bucket)
        buckets, listed = listings[-1]
        added = ITEM_BYTES * len(items)
        if listed and LISTING_BYTES + ITEM_BYTES * len(listed) + added > GOOD_BODY_BYTES:
            if len(listings) == MOST_LISTINGS:
                break
            buckets, listed = [], []
            listings.append((buckets, listed))
            spent += OVERHEAD_BYTES + LISTING_BYTES
        spent += added
        if room_bytes is not None and spent > room_bytes:
            break
        left.remove(bucket)
        buckets.append(bucket)
        listed.extend(items)
    if len(listings) > 1 and not listings[-1][0]:
        listings.pop()
    return [
        Listing(digest.nonce, nonce, index.network, bool(left), frozenset(buckets), tuple(items))
        for buckets, items in listings
    ]


def make_pushes(snapshot: Snapshot, uids: Iterable[str], *, network: bool) -> list[Message]:
    """What is known of the uids, several to a datagram where they fit, a larger one alone."""
    pushes: list[Message] = []
    if network and snapshot.sealed_network is not None:
        # First: it may name the key that the grants are signed with.
        pushes.append(Push(network=snapshot.sealed_network))
    batch: list[Pair] = []
    size = 0
    for uid in uids:
        entry = snapshot.nodes.get(uid)
        if entry is None:
            continue
        pair = pair_of(entry)
        if batch and size + pair_bytes(pair) > GOOD_BODY_BYTES:
            pushes.append(Push(tuple(batch)))
            batch, size = [], 0
        batch.append(pair)
        size += pair_bytes(pair)
    return [*pushes, Push(tuple(batch))] if batch else pushes


def pair_of(entry: NodeEntry) -> Pair:
    return entry.sealed_grant, entry.sealed_presence


def _is_newer(one: Item, other: Item | None) -> bool:
    """Merging `one` into `other` would change it."""
    if other is None or one.grant > other.grant:
        return True
    # What is revoked has no presence, so the other's is none to learn from.
    return not other.grant.tombstone and one.presence > other.presence


def _item(uid: str, entry: NodeEntry) -> Item:
    presence = NO_PRESENCE
    generation = _clamp(entry.grant.generation)
    grant = GrantRank(entry.grant.tombstone, generation, _digest(entry.sealed_grant))
    if entry.presence is not None and entry.sealed_presence is not None:
        # Sequence 0 is one too: it has a digest, which none has not.
        sequence = _clamp(entry.presence.sequence)
        presence = PresenceRank(sequence, _digest(entry.sealed_presence))
    return Item(uid, grant, presence)


def _network_rank(snapshot: Snapshot) -> NetworkRank:
    if snapshot.network is None or snapshot.sealed_network is None:
        return NO_NETWORK
    return NetworkRank(_clamp(snapshot.network.generation), _digest(snapshot.sealed_network))


def _clamp(number: int) -> int:
    return min(max(0, number), _LARGEST)


def _digest(sealed: Sealed) -> int:
    """The first 32 bits of what `cluster.merge` decides by between equals."""
    return int.from_bytes(hashlib.sha256(sealed.body + sealed.signature).digest()[:4], "big")


def _mark(item: Item) -> int:
    """32 bits that change with the item; a bucket is the exclusive or of them."""
    text = repr(tuple(item[:1]) + tuple(item.grant) + tuple(item.presence)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")
