"""What is known of the cluster in little, to be compared with what a neighbour knows.

Documents are put in buckets by a hash of kind and name. A digest has 32 bits for each bucket, so
two nodes that know the same find that out with one small message, and else list only what differs.

These bits are a hash of all the bucket's documents and of the digest's nonce. Did they depend on
documents alone, or were they put together of theirs, a node that was removed could write its own
until a bucket with its grant looked like one with its tombstone, and who has not heard of that
would not be told by anybody who has.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable

from limpet.base.bounds.signers import MAX_VERSION
from limpet.cluster.datagrams.peer_datagram import OVERHEAD_BYTES
from limpet.cluster.documents import Document, Key, Known, Sealed, digest_of, weight_of
from limpet.cluster.exchange.messages import (
    BUCKET_BYTES,
    BUCKETS,
    GOOD_BODY_BYTES,
    ITEM_BYTES,
    LISTING_BYTES,
    SUM_BYTES,
    Digest,
    Item,
    Listing,
    Message,
    Push,
    Want,
    encode,
)

MOST_LISTINGS = 16
"""Datagrams in answer to one digest."""
_TOMBSTONE, _ERA = MAX_VERSION.most + 1, (MAX_VERSION.most + 1) << 1
"""Bits of an item's version above those of the document's."""
_PUSH_BYTES = 9
"""At most, of an empty push."""
_PACKED = struct.Struct(">QQI")


def mark_of(key: Key) -> int:
    """64 bits that stand for kind and name."""
    text = "\0".join(key).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def bucket_of(mark: int) -> int:
    return mark % BUCKETS


def item_digest(sealed: Sealed) -> int:
    return int.from_bytes(digest_of(sealed)[:4], "big")


def item_of(document: Document) -> Item:
    version = document.era * _ERA + document.tombstone * _TOMBSTONE + document.version
    return Item(mark_of(document.key), version, item_digest(document.sealed))


class DocumentIndex:
    """What is known, by mark; a change costs what changed, not what is known."""

    def __init__(self, known: Known) -> None:
        self._documents: list[dict[int, Document]] = [{} for _ in range(BUCKETS)]
        self._packed: list[bytes | None] = [b""] * BUCKETS
        """All that a bucket has; None: it has changed since."""
        self._digest: Digest | None = None
        """The last one that was made, if it is of what is known now."""
        self.update(known, (document.key for document in known))

    def update(self, known: Known, keys: Iterable[Key]) -> None:
        """What is known of `keys` is now as `known` has it."""
        self._digest = None
        for key in keys:
            mark = mark_of(key)
            bucket = bucket_of(mark)
            self._packed[bucket] = None
            document = known.find(key)
            if document is not None:
                self._documents[bucket][mark] = document
            else:
                self._documents[bucket].pop(mark, None)

    def digest(self, nonce: bytes) -> Digest:
        if self._digest is None or self._digest.nonce != nonce:
            sums = (_sum(self._pack(bucket), nonce) for bucket in range(BUCKETS))
            self._digest = Digest(nonce, b"".join(sums))
        return self._digest

    def differing(self, digest: Digest) -> list[int]:
        """Buckets in which the other knows something else, ascending."""
        ours, theirs = self.digest(digest.nonce).sums, digest.sums
        places = range(0, SUM_BYTES * BUCKETS, SUM_BYTES)
        return [
            bucket
            for bucket, at in enumerate(places)
            if ours[at : at + SUM_BYTES] != theirs[at : at + SUM_BYTES]
        ]

    def _pack(self, bucket: int) -> bytes:
        packed = self._packed[bucket]
        if packed is None:
            items = sorted(self.items(bucket))
            packed = self._packed[bucket] = b"".join(_PACKED.pack(*item) for item in items)
        return packed

    def cost(self, message: Message) -> int:
        """At most so many documents are looked at for what it is answered; found without that.

        All are hashed for a digest, of 15,000 in the time in which some hundreds are listed.
        """
        match message:
            case Digest():
                most = MOST_LISTINGS * GOOD_BODY_BYTES // ITEM_BYTES
                return min(1 + sum(map(len, self._documents)), most)
            case Listing():
                return 1 + len(message.items) + sum(map(self.size, message.buckets))
            case Want():
                wanted = map(self._find, message.marks)
                return 1 + len(message.marks) + weight_of(each.sealed for each in wanted if each)
            case Push():
                return 0

    def size(self, bucket: int) -> int:
        return len(self._documents[bucket])

    def items(self, bucket: int) -> list[Item]:
        return [item_of(document) for document in self._documents[bucket].values()]

    def keys(self, marks: Iterable[int]) -> list[Key]:
        """Keys of the documents with these marks that are known."""
        found = map(self._find, marks)
        return [document.key for document in found if document is not None]

    def _find(self, mark: int) -> Document | None:
        return self._documents[bucket_of(mark)].get(mark)

    def compare(self, listing: Listing) -> tuple[tuple[Key, ...], tuple[int, ...]]:
        """Keys of what is newer here, and marks of what is newer there, in its buckets."""
        theirs = {item.mark: item for item in listing.items}
        ours = {item.mark: item for bucket in listing.buckets for item in self.items(bucket)}
        here = [mark for mark, item in ours.items() if mark not in theirs or item > theirs[mark]]
        there = [
            mark
            for mark, item in theirs.items()
            if bucket_of(mark) in listing.buckets and (mark not in ours or item > ours[mark])
        ]
        return tuple(sorted(self.keys(here))), tuple(sorted(there))


def make_listings(
    index: DocumentIndex,
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
    size = LISTING_BYTES
    spent = OVERHEAD_BYTES + size
    while left:
        bucket = left[below(len(left))]
        buckets, listed = listings[-1]
        added = BUCKET_BYTES + ITEM_BYTES * index.size(bucket)
        if listed and size + added > GOOD_BODY_BYTES:
            if len(listings) == MOST_LISTINGS:
                break
            buckets, listed = [], []
            listings.append((buckets, listed))
            size = LISTING_BYTES
            spent += OVERHEAD_BYTES + size
        size += added
        spent += added
        if room_bytes is not None and spent > room_bytes:
            break
        left.remove(bucket)
        buckets.append(bucket)
        listed.extend(index.items(bucket))
    if len(listings) > 1 and not listings[-1][0]:
        listings.pop()
    return [
        Listing(digest.nonce, nonce, bool(left), frozenset(buckets), tuple(items))
        for buckets, items in listings
    ]


def make_pushes(known: Known, keys: Iterable[Key]) -> list[Message]:
    """What is known of the keys, each with what it stands under, that first and in one datagram.

    Several to a datagram where they fit, a larger one alone.
    """
    order = known.kinds.order
    lineages = [lineage for key in keys if (lineage := known.lineage(key))]
    lineages.sort(key=lambda each: (order(each[0].kind), each[0].name, order(each[-1].kind)))
    pushes: list[Message] = []
    batch: dict[Key, Sealed] = {}
    size = _PUSH_BYTES
    for lineage in lineages:
        news = {each.key: each.sealed for each in lineage}
        added = sum(len(encode(sealed)) for key, sealed in news.items() if key not in batch)
        if batch and size + added > GOOD_BODY_BYTES:
            pushes.append(Push(tuple(batch.values())))
            batch, size, added = {}, _PUSH_BYTES, sum(map(len, map(encode, news.values())))
        batch.update(news)
        size += added
    return [*pushes, Push(tuple(batch.values()))] if batch else pushes


def _sum(packed: bytes, nonce: bytes) -> bytes:
    """Zeros of an empty bucket, as most are in a small cluster."""
    if not packed:
        return bytes(SUM_BYTES)
    return hashlib.blake2b(packed, digest_size=SUM_BYTES, key=nonce).digest()
