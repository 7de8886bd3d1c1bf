"""The controller's records in memory, with what is looked up in them; changes can be undone."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_network
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace as replace_fields

from limpet.base.addresses import Address, Endpoint, Prefix
from limpet.base.decoding import decode_json
from limpet.base.errors import StorageError
from limpet.cluster.api import Code
from limpet.cluster.documents import Document, Key, Kind, Kinds, Sealed, value_of
from limpet.cluster.keys import RevokedKeyError, SealError, public_key_of
from limpet.cluster.kinds import KINDS, NETWORK
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network, signing_keys
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.seal import check, read_sealed, seal
from limpet.cluster.segments import AddressSpace, Holding
from limpet.controller.node_objects.node import NodeSource
from limpet.controller.registry.records import (
    AUTHORITY,
    COMMUNITY,
    NODE,
    PRESENCE,
    SEGMENT,
    STATE,
    TOKEN,
    AuthorityRecord,
    CommunityRecord,
    DocumentRecord,
    NodeRecord,
    PresenceRecord,
    Record,
    SegmentRecord,
    StateRecord,
    TokenRecord,
    record_types,
)
from limpet.controller.registry.refusal import RefusedError

_NETWORK = (NETWORK.name, NETWORK.name)
T = TypeVar("T")


class Tables:
    """Records by kind and name; what was put since the last commit is known."""

    def __init__(self, quarantine_s: float, source: NodeSource | None = None) -> None:
        """`source`: None: segments are the controller's."""
        self.source = replace(source or NodeSource(), quarantine_s=quarantine_s)
        self._records: dict[str, dict[str, Any]] = {kind: {} for kind in record_types()}
        self.nodes: Mapping[str, NodeRecord] = self._records[NODE]
        self.presences: Mapping[str, PresenceRecord] = self._records[PRESENCE]
        self.tokens: Mapping[str, TokenRecord] = self._records[TOKEN]
        self.communities: Mapping[str, CommunityRecord] = self._records[COMMUNITY]
        self._documents: dict[Key, Document] = {}
        self._undo: list[tuple[Key, Record | None]] = []
        self._grants: dict[str, Grant] = {}
        self._uids: dict[str, set[str]] = {}
        self._uids_at: dict[Endpoint, set[str]] = {}
        self._space: AddressSpace | None = None

    # What is in them

    @property
    def exists(self) -> bool:
        """False: no cluster was made yet."""
        return bool(self._records[AUTHORITY])

    @property
    def has_network(self) -> bool:
        """False: somebody has taken it away."""
        return _NETWORK in self._documents

    @property
    def has_state(self) -> bool:
        """False: somebody has taken it away, or nobody can read it."""
        return bool(self._records[STATE])

    @property
    def highest_revision(self) -> int:
        """Highest revision of all documents; 0: there are none."""
        return max((each.revision for each in self._documents.values()), default=0)

    @property
    def has_grants(self) -> bool:
        """Something was signed, or granted."""
        return bool(self._documents or self._records[SEGMENT])

    @property
    def authority(self) -> AuthorityRecord:
        authority: AuthorityRecord = self._records[AUTHORITY][AUTHORITY]
        return authority

    @property
    def state(self) -> StateRecord:
        state: StateRecord = self._records[STATE][STATE]
        return state

    @property
    def network(self) -> Network:
        network: Network = self._documents[_NETWORK].value
        return network

    @property
    def era(self) -> int:
        """Number of the key that signs now."""
        return len(signing_keys(self)) - 1

    @property
    def first_documents(self) -> tuple[Sealed, ...]:
        """What whoever knows nothing has to be told first."""
        return tuple(
            document.sealed for key, document in self._documents.items() if KINDS[key[0]].root
        )

    @property
    def space(self) -> AddressSpace:
        assert self._space is not None
        return self._space

    @property
    def grants(self) -> Mapping[str, Grant]:
        """By uid, tombstones too."""
        return self._grants

    # What documents are checked with, and those of one node

    @property
    def kinds(self) -> Kinds:
        return KINDS

    @property
    def pinned(self) -> bytes:
        return public_key_of(self.authority.cluster_keys[0])

    def record(self, kind: str, name: str) -> Any:
        """None: there is none."""
        return self._records[kind].get(name)

    def records(self, kind: str) -> Mapping[str, Any]:
        """All of the kind, by name."""
        return self._records[kind]

    def find(self, key: Key) -> Document | None:
        return self._documents.get(key)

    def value(self, kind: str, name: str) -> Any:
        return value_of(self.find((kind, name)))

    def presence(self, uid: str) -> Presence | None:
        """The node's own presence; None: it has published none."""
        presence: Presence | None = self.value(PRESENCE, uid)
        return presence

    def versions(self, uid: str) -> dict[str, int]:
        """Versions of what the node has published under its own name, by kind."""
        found = (self.find((kind.name, uid)) for kind in KINDS.published() if kind.under)
        return {document.kind: document.version for document in found if document is not None}

    def uids_of(self, name: str) -> list[str]:
        """Uids of the nodes of this name, without removed ones."""
        return sorted(self._uids.get(name, ()))

    def uids_at(self, address: Address, port: int) -> frozenset[str]:
        """Uids of the nodes whose presences name this endpoint."""
        return frozenset(self._uids_at.get((address, port), ()))

    # Changing them

    def put(self, kind: str, name: str, record: Record | None) -> None:
        """None: it is gone."""
        self._undo.append(((kind, name), self._records[kind].get(name)))
        self._set(kind, name, record)

    def put_document(
        self, document: Document, record: Record | None = None, **changes: object
    ) -> Sealed:
        """Stores a document that was checked. `record`: for a new one; `changes`: its other fields.

        What stands under a document goes with its tombstone.
        """
        kind, name = document.key
        record = record or self._records[kind].get(name) or DocumentRecord(document.sealed)
        if isinstance(record, PresenceRecord):  # which says again what its document says
            changes = {"sequence": document.version, **changes}
        self._undo.append((document.key, self._records[kind].get(name)))
        self._set(kind, name, replace_fields(record, sealed=document.sealed, **changes), document)
        if document.tombstone:
            for below in [each for each in KINDS.published() if each.under == kind]:
                for each in [
                    each for each in self._records[below.name] if below.parent(each) == document.key
                ]:
                    self.put(below.name, each, None)
        return document.sealed

    def sign(
        self, kind: Kind[T], value: T, record: Record | None = None, **changes: object
    ) -> Sealed:
        """Puts it under the cluster's key. Raises: RefusedError where that is not here; TypeError
        for a value of a kind that has no era and needs one."""
        key = self.authority.cluster_keys[-1]
        if kind.by_cluster is not None:
            if public_key_of(key) != signing_keys(self)[-1]:
                raise RefusedError(
                    Code.TRY_AGAIN,
                    f"sign a {kind.name}: nodes know a later key of this cluster than this "
                    "controller has (it was restored from a back-up of before `limpet controller "
                    "rotate-key`): restore one of after that; without one the cluster has to be "
                    "begun anew, and every node to join again",
                )
            value = replace(value, era=self.era)  # type: ignore[type-var]
        document = seal(kind, value, key)
        return self.put_document(document, record, **changes)

    def put_node(self, uid: str, **changes: object) -> None:
        """What is kept of the node beside its grant."""
        self.put_document(self._documents[NODE, uid], replace_fields(self.nodes[uid], **changes))

    def put_segment(self, prefix: Prefix, record: SegmentRecord | None) -> None:
        self.put(SEGMENT, segment_name(prefix), record)

    def hold(self, prefix: Prefix, uid: str) -> None:
        """The segment is the node's; its number, if the controller grants it, was granted."""
        self.put_segment(prefix, SegmentRecord(uid))
        number = self.space.number(prefix)
        if number is not None and number in self.space.own(prefix.version):
            self.raise_mark(prefix.version, number)

    def raise_mark(self, version: int, number: int) -> None:
        state = self.state
        if number > state.marks.get(version, -1):
            marks = {**state.marks, version: number}
            self.put(STATE, STATE, replace_fields(state, marks=marks))

    def next_revision(self) -> int:
        revision = self.state.revision + 1
        self.put(STATE, STATE, replace_fields(self.state, revision=revision))
        return revision

    @property
    def position(self) -> int:
        return len(self._undo)

    def undo(self, position: int) -> None:
        """Everything that was put since `position`."""
        while len(self._undo) > position:
            (kind, name), record = self._undo.pop()
            self._set(kind, name, record)

    def changed(self) -> Iterator[tuple[str, str, Record | None]]:
        """What differs from the last commit, each once."""
        for kind, name in dict.fromkeys(key for key, _ in self._undo):
            yield kind, name, self._records[kind].get(name)

    def put_since(self, position: int) -> frozenset[Key]:
        return frozenset(key for key, _ in self._undo[position:])

    def commit(self, but: Collection[Key] = ()) -> None:
        """`but`: these were not written, and are again what they were."""
        before = dict(reversed(self._undo))
        self._undo.clear()
        for key in but:
            self._set(*key, before[key])

    def check_if_under(self, kind: str, name: str) -> None:
        """Returns if it is no document that others than the controller write, or one that whom it
        is of has signed. Raises: SealError.

        What the cluster has signed with a former key counts: a rotation may not have come to it.
        """
        document = self.find((kind, name))
        if document is not None and is_under(kind):
            with contextlib.suppress(RevokedKeyError):
                check(document, self)

    def is_under_removed(self, kind: str, name: str) -> bool:
        """Whether it is a document of one that has a tombstone."""
        parent = KINDS[kind].parent(name) if is_under(kind) else None
        above = self.find(parent) if parent is not None else None
        return above is not None and above.tombstone

    def load(self, kind: str, name: str, value: bytes, of: type[Record]) -> None:
        """Raises: StorageError."""
        try:
            self._set(kind, name, decode_json(value, of))
        except (msgspec.MsgspecError, SealError, ValueError) as error:
            raise StorageError("read record", f"{kind} {name}", str(error)) from error

    def _set(
        self, kind: str, name: str, record: Record | None, document: Document | None = None
    ) -> None:
        if record is None:
            self._records[kind].pop(name, None)
        else:
            self._records[kind][name] = record
        if KINDS.get(kind) is not None:
            # Checked before it was written, and nobody else writes here.
            if record is not None and document is None:
                document = read_sealed(record.sealed, KINDS)  # type: ignore[union-attr]
            self._set_document((kind, name), document)
        elif kind == SEGMENT and self._space is not None:
            self._hold(name, record)

    def _hold(self, name: str, record: Record | None) -> None:
        assert record is None or isinstance(record, SegmentRecord)
        prefix = ip_network(name.replace("_", "/"))
        holding = None
        if record is not None:
            holding = Holding(prefix, record.uid, record.resting_since_s)
        self.space.put(prefix, holding)

    def _set_document(self, key: Key, document: Document | None) -> None:
        before = self._documents.pop(key, None)
        if document is not None:
            self._documents[key] = document
        if key == _NETWORK:
            if self._space is None and document is not None:
                self._space = self.source.address_space(document.value)
                # Those that were read while the network was missing.
                for name, record in self._records[SEGMENT].items():
                    self._hold(name, record)
        elif key[0] == NODE:
            self._grants.pop(key[1], None)
            if document is not None:
                self._grants[key[1]] = document.value
            _index(self._uids, _names(before), _names(document), key[1])
        elif key[0] == PRESENCE:
            _index(self._uids_at, _endpoints(before), _endpoints(document), key[1])


def _names(document: Document | None) -> tuple[str, ...]:
    """Name of a node that is not removed."""
    return (document.value.name,) if document is not None and not document.tombstone else ()


def _endpoints(document: Document | None) -> tuple[Endpoint, ...]:
    return document.value.endpoints if document is not None else ()


def _index(uids: dict[T, set[str]], before: Iterable[T], after: Iterable[T], uid: str) -> None:
    """Puts `uid` where it is found now, in place of where it was."""
    for key in set(before):
        uids[key].discard(uid)
        if not uids[key]:
            del uids[key]
    for key in after:
        uids.setdefault(key, set()).add(uid)


def is_under(kind: str) -> bool:
    """Items of this kind are documents under another's, which nodes write, too."""
    return KINDS.get(kind) is not None and bool(KINDS[kind].under)


def by_name(grants: Iterable[Grant]) -> list[Grant]:
    return sorted(grants, key=lambda each: (each.name, each.uid))


def live_uids(tables: Tables) -> list[str]:
    """Uids of the nodes of the cluster, without removed ones."""
    return [uid for uid, grant in tables.grants.items() if not grant.tombstone]


def segment_name(prefix: Prefix) -> str:
    return str(prefix).replace("/", "_")
