"""The controller's records in memory, with what is looked up in them; changes can be undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from typing import Any

import msgspec
from msgspec.structs import replace as replace_fields

from limpet.base.addresses import Address, Prefix
from limpet.base.errors import StorageError
from limpet.cluster.documents import Sealed
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.network import Network
from limpet.cluster.seal import (
    SealError,
    open_grant,
    open_network,
    public_key_of,
    seal_grant,
    trusted_keys,
)
from limpet.cluster.segments import AddressSpace, Holding
from limpet.controller.state.records import (
    AUTHORITY,
    COMMUNITY,
    NETWORK,
    NODE,
    PRESENCE,
    RECORDS,
    SEGMENT,
    STATE,
    TOKEN,
    AuthorityRecord,
    CommunityRecord,
    NetworkRecord,
    NodeRecord,
    PresenceRecord,
    Record,
    SegmentRecord,
    StateRecord,
    TokenRecord,
)

Key = tuple[str, str]


class _Endpoints(msgspec.Struct):
    """Of a presence, whose other parts are not needed to find nodes by."""

    endpoints: list[tuple[str, int]]


class Tables:
    """Records by kind and name; what was put since the last commit is known."""

    def __init__(self, quarantine_s: float) -> None:
        self._quarantine_s = quarantine_s
        self._records: dict[str, dict[str, Any]] = {kind: {} for kind in RECORDS}
        self._undo: list[tuple[Key, Record | None]] = []
        self._grants: dict[str, Grant] = {}
        self._uids: dict[str, set[str]] = {}
        self._endpoints: dict[str, list[tuple[str, int]]] = {}
        self._uids_at: dict[tuple[str, int], set[str]] = {}
        self._space: AddressSpace | None = None
        self._network: Network | None = None
        self._trusted: frozenset[bytes] = frozenset()

    # What is in them

    @property
    def exists(self) -> bool:
        """False: no cluster was made yet."""
        return bool(self._records[AUTHORITY])

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
        assert self._network is not None
        return self._network

    @property
    def sealed_network(self) -> Sealed:
        record: NetworkRecord = self._records[NETWORK][NETWORK]
        return record.sealed

    @property
    def trusted(self) -> frozenset[bytes]:
        """Keys that the cluster has signed with."""
        return self._trusted

    @property
    def space(self) -> AddressSpace:
        assert self._space is not None
        return self._space

    @property
    def grants(self) -> Mapping[str, Grant]:
        """By uid, tombstones too."""
        return self._grants

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        return self._records[NODE]

    @property
    def presences(self) -> Mapping[str, PresenceRecord]:
        return self._records[PRESENCE]

    @property
    def tokens(self) -> Mapping[str, TokenRecord]:
        return self._records[TOKEN]

    @property
    def communities(self) -> Mapping[str, CommunityRecord]:
        return self._records[COMMUNITY]

    def uids_of(self, name: str) -> list[str]:
        """Of the nodes of this name that are not removed."""
        return sorted(self._uids.get(name, ()))

    def uids_at(self, address: Address, port: int) -> frozenset[str]:
        """Of the nodes that say that they are reached there from outside."""
        return frozenset(self._uids_at.get((str(address), port), ()))

    # Changing them

    def put(self, kind: str, name: str, record: Record | None) -> None:
        """None: it is gone."""
        self._undo.append(((kind, name), self._records[kind].get(name)))
        self._set(kind, name, record)

    def put_node(self, record: NodeRecord, grant: Grant) -> None:
        self._undo.append(((NODE, grant.uid), self._records[NODE].get(grant.uid)))
        self._set(NODE, grant.uid, record, grant)

    def put_segment(self, prefix: Prefix, record: SegmentRecord | None) -> None:
        self.put(SEGMENT, segment_name(prefix), record)

    def hold(self, prefix: Prefix, uid: str) -> None:
        """The segment is the node's; its number was granted."""
        self.put_segment(prefix, SegmentRecord(uid))
        number = self.space.number(prefix)
        assert number is not None
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

    def sign(self, grant: Grant, record: NodeRecord | None = None, **changes: object) -> Sealed:
        """Puts the grant under the cluster's key. `record`: of a node that is new."""
        sealed = seal_grant(grant, self.authority.cluster_keys[-1])
        record = record or self.nodes[grant.uid]
        self.put_node(replace_fields(record, sealed=sealed, **changes), grant)
        return sealed

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

    def commit(self) -> None:
        self._undo.clear()

    def load(self, kind: str, name: str, value: bytes) -> None:
        """Raises: StorageError."""
        try:
            self._set(kind, name, msgspec.json.decode(value, type=RECORDS[kind]))
        except (msgspec.MsgspecError, SealError, ValueError) as error:
            raise StorageError("read record", f"{kind} {name}", str(error)) from error

    def _set(self, kind: str, name: str, record: Record | None, grant: Grant | None = None) -> None:
        if record is None:
            self._records[kind].pop(name, None)
        else:
            self._records[kind][name] = record
        if kind == NODE:
            assert record is None or isinstance(record, NodeRecord)
            self._index_node(name, record, grant)
        elif kind == SEGMENT:
            assert record is None or isinstance(record, SegmentRecord)
            prefix = ip_network(name.replace("_", "/"))
            holding = None
            if record is not None:
                holding = Holding(prefix, record.uid, record.resting_since_s)
            self.space.put(prefix, holding)
        elif kind == PRESENCE:
            assert record is None or isinstance(record, PresenceRecord)
            self._index_presence(name, record)
        elif isinstance(record, NetworkRecord):
            self._index_network(record)

    def _index_node(self, uid: str, record: NodeRecord | None, grant: Grant | None) -> None:
        before = self._grants.pop(uid, None)
        if before is not None and not before.tombstone:
            self._uids[before.name].discard(uid)
            if not self._uids[before.name]:
                del self._uids[before.name]
        if record is None:
            return
        after = grant or open_grant(record.sealed, self._trusted)
        self._grants[uid] = after
        if not after.tombstone:
            self._uids.setdefault(after.name, set()).add(uid)

    def _index_presence(self, uid: str, record: PresenceRecord | None) -> None:
        for endpoint in self._endpoints.pop(uid, ()):
            self._uids_at[endpoint].discard(uid)
            if not self._uids_at[endpoint]:
                del self._uids_at[endpoint]
        if record is None:
            return
        said = msgspec.json.decode(record.sealed.body, type=_Endpoints).endpoints
        endpoints = list(dict.fromkeys(said))
        if endpoints:
            self._endpoints[uid] = endpoints
        for endpoint in endpoints:
            self._uids_at.setdefault(endpoint, set()).add(uid)

    def _index_network(self, record: NetworkRecord) -> None:
        pinned = public_key_of(self.authority.cluster_keys[0])
        network = open_network(record.sealed, pinned)
        self._trusted = trusted_keys(pinned, network.keys)
        if self._space is None:
            self._space = AddressSpace(network, self._quarantine_s)
        self._network = network


def segment_name(prefix: Prefix) -> str:
    return str(prefix).replace("/", "_")
