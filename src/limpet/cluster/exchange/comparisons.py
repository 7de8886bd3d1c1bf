"""What came of comparing with each member, and so how often and with how much it is compared again.

A member of another version has what this node cannot read, or cannot read what this node has. That
difference stays: were it asked for, told and compared without an end, it would fill thin links.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from limpet.base.bounds.neighbours import (
    COMPARED_AT_ONCE,
    COMPARED_MEMBERS,
    COMPARED_PER_S,
    REFUSED_DOCUMENTS,
    SUSPECTED_MEMBERS,
    SUSPICIONS_AT_ONCE,
    SUSPICIONS_PER_MINUTE,
)
from limpet.base.rate_limit import TokenBuckets
from limpet.cluster.documents import Key, Sealed
from limpet.cluster.exchange.digest import DocumentIndex, bucket_of, item_digest, mark_of
from limpet.cluster.exchange.messages import Listing

T = TypeVar("T")

MOST_WANTED, MOST_PUSHED = 120, 128
"""Documents in one answer; so many are asked for in a packet that no path fragments."""
_IN_VAIN = 3
"""Comparisons in a row with one member that bring neither side anything, from which on the next
would not either; fewer may be chance, as packets are lost."""
_SELDOM = 4
"""One of so many comparisons with it is made then."""


@dataclass(slots=True)
class _Record:
    in_vain: int = 0
    """Comparisons in a row that have found a difference, and brought nothing."""
    differs: bool = False
    """The last one has found a difference."""
    brought: bool = False
    """It has brought one of the two sides something."""
    wanted: set[int] = field(default_factory=set)
    """Marks of what it was asked for since the last one began."""
    told: dict[Key, int] = field(default_factory=dict)
    """What the member was sent since it lacked it, with its bucket, until that is listed again."""


@dataclass(frozen=True, slots=True)
class Settling:
    """What is to be done about a listing."""

    told: tuple[Key, ...]
    wanted: tuple[int, ...]
    """Marks."""
    again: bool
    """There is more than that: it is soon compared again."""


class Comparisons:
    """How often, and with how many documents, a node compares with each member."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self.suspicions = TokenBuckets(
            SUSPICIONS_PER_MINUTE.most / 60, SUSPICIONS_AT_ONCE.most, most=SUSPECTED_MEMBERS.most
        )
        self.looked_at = TokenBuckets(
            COMPARED_PER_S.most, COMPARED_AT_ONCE.most, most=COMPARED_MEMBERS.most
        )
        self._below = below
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._refused: OrderedDict[int, None] = OrderedDict()
        """Digests, as items have them, of what was told and could not be read. They are short, and
        somebody may write what has another's: therefore such documents are still asked for."""

    def begin(self, uid: str) -> bool:
        """A comparison with the member is due. False: not now, as the last ones were in vain."""
        record = self._record(uid)
        if record.differs and not record.brought:
            record.in_vain += 1
        record.differs = record.brought = False
        record.wanted.clear()
        return record.in_vain < _IN_VAIN or self._below(_SELDOM) == 0

    def note_fresh(self, uid: str, keys: Iterable[Key]) -> None:
        """What the member told counts, and was not known. News that it tells by itself says nothing
        of what a comparison brings."""
        record = self._record(uid)
        if any(mark_of(key) in record.wanted for key in keys):
            record.in_vain, record.brought = 0, True

    def note_refused(self, documents: Iterable[Sealed]) -> None:
        """Documents that this version cannot read."""
        for sealed in documents:
            digest = item_digest(sealed)
            self._refused[digest] = None
            self._refused.move_to_end(digest)
            if len(self._refused) > REFUSED_DOCUMENTS.most:
                self._refused.popitem(last=False)

    def settle(self, uid: str, index: DocumentIndex, listing: Listing) -> Settling:
        """What we lack is asked for, and what the other lacks is told: of what is of no use to one
        of the two only a document by chance, so that an error does not last."""
        here, there = index.compare(listing)
        record = self._record(uid)
        if not (here or there or listing.more):
            record.in_vain = 0
            record.told.clear()
            return Settling((), (), again=False)
        record.differs = True
        self._look_at_what_was_told(uid, here, listing)
        is_in_vain = record.in_vain >= _IN_VAIN
        told = self._one(here) if is_in_vain else here[:MOST_PUSHED]
        record.told |= {key: bucket_of(mark_of(key)) for key in told}
        while len(record.told) > MOST_PUSHED:
            del record.told[next(iter(record.told))]
        digests = {item.mark: item.digest for item in listing.items}
        refused = tuple(mark for mark in there if digests[mark] in self._refused)
        unknown = tuple(mark for mark in there if digests[mark] not in self._refused)
        more = listing.more or len(here) > MOST_PUSHED or len(unknown) > MOST_WANTED
        wanted = (*self._one(refused), *unknown)[:MOST_WANTED]
        record.wanted.update(wanted)
        return Settling(told, wanted, again=more and not is_in_vain)

    def _look_at_what_was_told(self, uid: str, here: Iterable[Key], listing: Listing) -> None:
        record, missing = self._record(uid), frozenset(here)
        seen = [key for key, bucket in record.told.items() if bucket in listing.buckets]
        for key in seen:
            del record.told[key]
        if not missing.issuperset(seen):
            record.in_vain, record.brought = 0, True

    def _one(self, those: tuple[T, ...]) -> tuple[T, ...]:
        return (those[self._below(len(those))],) if those else ()

    def _record(self, uid: str) -> _Record:
        found = self._records.setdefault(uid, _Record())
        self._records.move_to_end(uid)
        if len(self._records) > COMPARED_MEMBERS.most:
            self._records.popitem(last=False)
        return found
