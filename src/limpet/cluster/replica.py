"""What this node knows of its cluster, of whatever kind. On disk before it counts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum

import structlog

from limpet.base.errors import StorageError
from limpet.base.event_queue import EventQueue
from limpet.base.faults import noted
from limpet.cluster.documents import Document, Key, Sealed, Source
from limpet.cluster.key_alarms import KeyAlarms
from limpet.cluster.keys import RevokedKeyError, SealError
from limpet.cluster.merge import Changes
from limpet.cluster.seal import check, read_sealed
from limpet.cluster.snapshot.file import SnapshotFile

_log = structlog.get_logger("replica")


class Outcome(Enum):
    """What became of an offered document."""

    FRESH = "fresh"
    STALE = "stale"
    """Known, or older than what is known."""
    BAD = "bad"
    """Not signed by whom it should be, or no document at all."""
    LATER = "later"
    """There is no room for it now: it was not looked at."""


@dataclass(frozen=True, slots=True)
class Change:
    """What has changed; told once for everything that came together."""

    source: Source
    keys: frozenset[Key]


Listener = Callable[[Change], None]


class Replica:
    """Runs on the event loop's thread. Listeners are called on it, after what they hear is true."""

    def __init__(
        self,
        file: SnapshotFile,
        pinned_key: bytes,
        *,
        is_held_back: Callable[[Document], bool] = lambda _document: False,
    ) -> None:
        """Takes up what `file` holds. `is_held_back`: of what is in order, but is not to count."""
        self.counters: Counter[str] = Counter()
        """Offers by `<source>_<outcome>`."""
        self.alarms = KeyAlarms()
        """Who has told what a revoked key signed."""
        self.file = file
        """What was taken is on its way there."""
        self._listeners: list[Listener] = []
        self._changes = EventQueue(self._pass_on)
        self.known, self.problems = file.read(pinned_key)
        """`problems`: of what the disk held, in words."""
        self.has_heard_all = not file.is_doubted
        """All that the cluster has to say was told to this node once, and none of it was lost."""
        self._by_signature = {each.sealed.signature: each for each in self.known}
        self._is_held_back = is_held_back

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def key_of(self, sealed: Sealed) -> Key | None:
        """Key of a document that is known with these very bytes; costs next to nothing."""
        found = self._by_signature.get(sealed.signature)
        return found.key if found is not None and found.sealed == sealed else None

    def offer(
        self,
        documents: Iterable[Sealed],
        *,
        source: Source,
        teller: str = "",
        has_room: Callable[[Document], bool] = lambda _document: True,
    ) -> list[Outcome]:
        """Checks what somebody says, merges what is new, and tells; what became of each document.

        Whoever says it: each is signed. What is known already costs no check. `teller`: uid of the
        neighbour. `has_room`: asked for each that may be new, before its signature is looked at.
        """
        offered, changes = list(documents), Changes(self.known)
        outcomes = [Outcome.BAD] * len(offered)
        # What is checked with something else comes after that, in whatever order they were told.
        order = self.known.kinds.order
        for at in sorted(range(len(offered)), key=lambda at: order(offered[at].kind)):
            try:
                outcomes[at] = self._take(offered[at], changes, has_room)
            except RevokedKeyError as error:
                self._accuse(offered[at], source, teller, error)
            self.counters[f"{source.value}_{outcomes[at].value}"] += 1
        if Outcome.FRESH in outcomes:
            keys, _written = self._change(changes)
            self.tell(source, keys)
        return outcomes

    def _take(
        self, sealed: Sealed, changes: Changes, has_room: Callable[[Document], bool]
    ) -> Outcome:
        """Raises: RevokedKeyError."""
        if self.key_of(sealed) is not None:
            return Outcome.STALE
        try:
            document = read_sealed(sealed, self.known.kinds)
            if not changes.is_news(document):
                if self.known.kinds[document.kind].root:
                    check(document, changes)  # of two successors of one key one is a thief's
                return Outcome.STALE
            if not has_room(document):
                return Outcome.LATER
            check(document, changes)
        except RevokedKeyError:
            raise
        except SealError as error:
            _log.debug("what is said does not count", kind=sealed.kind[:40], error=str(error))
            return Outcome.BAD
        if self._is_held_back(document):
            return Outcome.STALE
        changes.take(document)
        return Outcome.FRESH

    def _accuse(self, sealed: Sealed, source: Source, teller: str, error: RevokedKeyError) -> None:
        document = read_sealed(sealed, self.known.kinds)
        if self.alarms.note(document, source, teller, time.monotonic()):
            _log.error(
                "a revoked key of the cluster has signed what is told: somebody may have it",
                error=str(error),
                source=source.value,
                teller=teller,
                what_to_do="compare the key in `limpet status` there with `limpet network show`; a "
                "node with another one is to be replaced",
            )

    def publish(self, document: Document) -> Future[None]:
        """What this node says itself counts; done when it is on the disk, or was refused there.

        Nobody is told of it here: after a crash the same version must never say something else.
        """
        changes = Changes(self.known)
        changes.take(document)
        return self._change(changes)[1]

    def _change(self, changes: Changes) -> tuple[list[Key], Future[None]]:
        before = self.known
        self.known, keys = changes.finish()
        news = []
        for key in keys:
            if (former := before.find(key)) is not None:
                self._by_signature.pop(former.sealed.signature, None)
            if (document := self.known.find(key)) is not None:
                self._by_signature[document.sealed.signature] = document
                news.append(document)
        return keys, self.file.put(news)

    async def hear_all(self) -> None:
        """All was told, by the controller: listeners hear it, with no keys, if it was not so."""
        if self.has_heard_all:
            return
        self.has_heard_all = True
        self.tell(Source.CLOUD, ())
        try:
            await asyncio.wrap_future(self.file.settle())
        except StorageError as error:
            _log.warning("a restart now would have all told again", error=str(error))

    def tell(self, source: Source, keys: Iterable[Key]) -> None:
        """All listeners hear it, after what was told before: also where one of them tells it."""
        self._changes.tell(Change(source, frozenset(keys)))

    def _pass_on(self, change: Change) -> None:
        for listener in self._listeners:
            with noted("news"):  # the others have to hear it too
                listener(change)
