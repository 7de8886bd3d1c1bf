"""Documents: all that the nodes of a cluster know in common is made of them.

A document has a kind and a name, a version, and was signed. Of two with the same kind and name
the higher one counts; a tombstone is higher than all else, so it removes for ever. What a kind is,
its `Kind` says; whatever keeps, merges, tells or feeds documents knows no kind by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from limpet.base.bounds.signers import DOCUMENT_BODY
from limpet.base.layered_map import alter

T = TypeVar("T")

Key = tuple[str, str]
"""Kind and name."""


class Sealed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A document as it was signed. The bytes are kept: a signature is of bytes, not of values."""

    kind: str
    body: bytes
    signature: bytes
    """Ed25519 over a context that names the kind, and the body."""


def digest_of(sealed: Sealed) -> bytes:
    """Equal documents of one kind have the same one, and no others."""
    return hashlib.sha256(sealed.body + sealed.signature).digest()


def weight_of(documents: Iterable[Sealed]) -> int:
    """How many they count as, where it is bounded how many are read: a large one for each KiB of
    it, as it is read before it is known who has signed it."""
    return sum(1 + (len(each.body) >> 10) for each in documents)


class Source(Enum):
    """Who has told of a document."""

    CLOUD = "cloud"
    NEIGHBOUR = "neighbour"
    SELF = "self"


class Head(NamedTuple):
    """What a body says that every kind has."""

    name: str
    version: int
    tombstone: bool = False
    era: int = 0


class Rank(NamedTuple):
    """Rank of a document: among those of one kind and name the highest counts."""

    era: int
    tombstone: bool
    version: int
    digest: bytes
    """Hash of body and signature: equal ranks are equal documents."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document that was read, with what it says."""

    name: str
    version: int
    sealed: Sealed
    value: Any
    tombstone: bool = False
    """What has this kind and name is gone, and does not come back."""
    era: int = 0
    """Number of the cluster's key that signed then, from 0. What a later key has signed counts
    before all that an earlier one has, which somebody may have stolen."""

    @property
    def kind(self) -> str:
        return self.sealed.kind

    @property
    def key(self) -> Key:
        return self.sealed.kind, self.name

    @property
    def rank(self) -> Rank:
        return Rank(self.era, self.tombstone, self.version, digest_of(self.sealed))

    @property
    def revision(self) -> int:
        """The cluster's revision when the controller signed it; 0: it did not, or does not say."""
        return getattr(self.value, "revision", 0)

    def is_newer(self, other: Document | None) -> bool:
        """Merging: whether it counts in place of the other one, of the same kind and name."""
        if other is None:
            return True
        one = (self.era, self.tombstone, self.version)
        two = (other.era, other.tombstone, other.version)
        if one != two:
            return one > two
        return self.sealed != other.sealed and self.rank > other.rank


def value_of(document: Document | None) -> Any:
    return None if document is None or document.tombstone else document.value


class Lookup(Protocol):
    """What something is checked with."""

    @property
    def kinds(self) -> Kinds: ...

    @property
    def pinned(self) -> bytes:
        """The cluster's first signing key; all else follows from it."""

    def find(self, key: Key) -> Document | None: ...

    def value(self, kind: str, name: str) -> Any:
        """What the document says; None: it is not known, or was removed."""


def plain_head(value: Any) -> Head:
    era = getattr(value, "era", 0)
    return Head(value.name, value.version, getattr(value, "tombstone", False), era)


def _nobody(_value: Any, _known: Lookup) -> Collection[bytes]:
    return ()


def _all(_value: Any, _known: Lookup) -> bool:
    return True


@dataclass(frozen=True)
class ByCluster(Generic[T]):
    """How the cluster signs a kind with its next key, after which no former one counts.

    The values have an `era`, which is set when they are signed.
    """

    renewed: Callable[[T, int, Callable[[], int]], T]
    """The same value with this version, and with the cluster's next revision, which the callable
    takes, where it has one."""
    withdrawn: Callable[[T, int], T] | None = None
    """The value at this revision that takes the place of what a stolen key has signed, under the
    same name: a tombstone, or something that says nothing any more."""
    signs: Callable[[T, Lookup], bool] = _all
    """Whether the cluster has signed this one; False: a node has."""
    of_one_node: bool = False
    """Each is of one node, by whose uid it is named; False: every node needs all of them."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """What there is to know of one kind of documents."""

    name: str
    """Part of what is signed, so that no kind passes for another."""
    parse: Callable[[dict[str, Any]], T]
    """What a body says. KeyError, TypeError, ValueError, AttributeError: it says nonsense."""
    signers: Callable[[T, Lookup], Collection[bytes]]
    """Public keys, one of which must have signed it, from what else is known. ValueError: it is
    not what it says."""
    head: Callable[[T], Head] = plain_head
    revoked: Callable[[T, Lookup], Collection[bytes]] = _nobody
    """Public keys by which it does not count any more: who uses one is told of to a person."""
    under: str = ""
    """Kind of the document that it stands under, which has its name, or what is before a `/` in it:
    without that it is not believed, it is told with that, and gone with that. Empty: the cluster
    signs every one of this kind."""
    root: bool = False
    """Others cannot be checked without it: each node keeps it twice. It names the cluster's keys,
    so its next version is made by whoever makes those."""
    by_cluster: ByCluster[T] | None = None
    """None: the cluster signs none of this kind, or it is the root."""
    kept_twice: bool = False
    """Each node keeps all of this kind twice: whoever lacks one does what it must not."""
    among_nodes: bool = False
    """Nodes tell it each other, and do not publish it in the cloud."""
    most_bytes: int = DOCUMENT_BODY.most
    """Size of the largest body; a grant with a hundred segments takes four kilobytes."""
    unsaid: Mapping[str, Any] = field(default_factory=dict)
    """Fields that came later, and what they are where a body says nothing of them. A body leaves
    them out then: what was sealed before stays as it is, and who does not know them reads it."""

    def parent(self, name: str) -> Key | None:
        return (self.under, name.partition("/")[0]) if self.under else None


class Kinds:
    """The kinds that are known, those that others stand under before those."""

    def __init__(self, kinds: Iterable[Kind[Any]]) -> None:
        self._by_name: dict[str, Kind[Any]] = {}
        self._order: dict[str, int] = {}
        for kind in kinds:
            self.register(kind)

    def register(self, kind: Kind[Any]) -> None:
        """Raises: ValueError where the name is taken, what it stands under is not known, or the
        cluster signs it and could not do so with its next key."""
        if kind.name in self._by_name or (kind.under and kind.under not in self._by_name):
            raise ValueError(f"register kind {kind.name}: it is there, or {kind.under!r} is not")
        by_cluster = kind.by_cluster
        is_clusters = not (kind.under or kind.root)
        if is_clusters and (by_cluster is None or by_cluster.withdrawn is None):
            raise ValueError(
                f"register kind {kind.name}: the cluster signs it, and `by_cluster` does not say "
                "how it is renewed and withdrawn when the cluster's key is rotated"
            )
        self._order[kind.name] = len(self._by_name)
        self._by_name[kind.name] = kind

    def get(self, name: str) -> Kind[Any] | None:
        return self._by_name.get(name)

    def __getitem__(self, name: str) -> Kind[Any]:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Kind[Any]]:
        return iter(self._by_name.values())

    def published(self) -> Iterator[Kind[Any]]:
        """Those that the cloud keeps and feeds."""
        return (kind for kind in self if not kind.among_nodes)

    def of_the_cluster(self) -> Iterator[Kind[Any]]:
        """Those of which the cluster signs every document, and which are checked with the root
        alone: what one of its former keys has signed is signed anew, or was forged."""
        return (kind for kind in self if not (kind.under or kind.root))

    def for_all_nodes(self) -> Iterator[Kind[Any]]:
        """The root, and what the cluster signs for every node alike. A node hears all of these
        before it counts as joined, and no object of a node at an API server carries them."""
        return (
            kind
            for kind in self
            if kind.root or (kind.by_cluster is not None and not kind.by_cluster.of_one_node)
        )

    def order(self, name: str) -> int:
        """Such that what is checked comes after what it is checked with."""
        return self._order.get(name, len(self._order))


_NOTHING: Mapping[str, Document] = {}


@dataclass(frozen=True, eq=False)
class Known:
    """Every document that counts, each checked. Never changes: what is merged gives another."""

    kinds: Kinds
    pinned: bytes = b""
    by_kind: Mapping[str, Mapping[str, Document]] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Known):
            return NotImplemented
        mine, others = (
            {name: found for name, found in each.by_kind.items() if found} for each in (self, other)
        )
        return self.pinned == other.pinned and mine == others

    __hash__ = None  # type: ignore[assignment]

    def of(self, kind: str) -> Mapping[str, Document]:
        """By name."""
        return self.by_kind.get(kind, _NOTHING)

    def find(self, key: Key) -> Document | None:
        return self.of(key[0]).get(key[1])

    def value(self, kind: str, name: str) -> Any:
        return value_of(self.find((kind, name)))

    def __iter__(self) -> Iterator[Document]:
        """In an order in which they can be checked."""
        for kind in self.kinds:
            yield from self.of(kind.name).values()

    @property
    def revision(self) -> int:
        """The highest that anything in it was signed at, by the key that signs now: of what an
        earlier one has signed everything was signed again, and the rest is a thief's."""
        rooted = [kind for kind in self.kinds if not kind.under]
        now = max((each.era for kind in rooted for each in self.of(kind.name).values()), default=0)
        return max(
            (
                each.revision
                for kind in rooted
                for each in self.of(kind.name).values()
                if each.era == now
            ),
            default=0,
        )

    def lineage(self, key: Key) -> list[Document]:
        """The document and what it stands under, that first; whoever has all can check all."""
        found: list[Document] = []
        at: Key | None = key
        while at is not None and (document := self.find(at)) is not None:
            found.insert(0, document)
            at = self.kinds[at[0]].parent(at[1])
        return found

    def under(self, name: str) -> list[Document]:
        """What stands under documents of this name."""
        return [
            document
            for kind in self.kinds
            if kind.under
            for each, document in self.of(kind.name).items()
            if each == name or each.startswith(name + "/")
        ]

    def with_changes(self, changes: Mapping[str, Mapping[str, Document | None]]) -> Known:
        """None: without it. Costs what has changed."""
        by_kind = {name: alter(self.of(name), changed) for name, changed in changes.items()}
        return Known(self.kinds, self.pinned, {**self.by_kind, **by_kind})


def essentials(known: Known, uid: str) -> Iterator[Document]:
    """What a node cannot start without: what others are checked with, and what the cluster has
    signed for it."""
    for kind in known.kinds:
        if kind.root:
            yield from known.of(kind.name).values()
        elif not kind.under and (own := known.of(kind.name).get(uid)) is not None:
            yield own


def kept_twice(known: Known, uid: str) -> Iterator[Document]:
    """The essentials, and what lets somebody do what he must not where it is lost: policies, and
    the tombstones, which are few."""
    found = {each.key: each for each in essentials(known, uid)}
    for kind in known.kinds:
        for each in known.of(kind.name).values():
            if (kind.kept_twice or each.tombstone) and not kind.under:
                found[each.key] = each
    yield from found.values()
