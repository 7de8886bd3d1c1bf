"""What the controller keeps in its store: one struct for each kind of item."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from limpet.cluster import kinds
from limpet.cluster.api import InterfaceAddresses
from limpet.cluster.documents import Document, Sealed
from limpet.cluster.kinds.network import TunnelBackend

AUTHORITY, STATE = "authority", "state"
"""Kinds with one item each, which has the kind's name."""
SEGMENT, TOKEN, COMMUNITY = "segment", "token", "community"
REPORT, REPORT_PART = "report", "report-part"
"""What a node reports of its pods: the first part by its uid, each further one by uid, dot and
number, so that a change writes little of it."""
NODE, PRESENCE = kinds.GRANT.name, kinds.PRESENCE.name
"""Kinds whose items hold a document of that kind and name, beside what else is kept of it."""


class AuthorityRecord(msgspec.Struct, frozen=True):
    """The cluster's secrets."""

    ca_key: bytes
    """Ed25519."""
    ca_certificate: str
    """PEM."""
    cluster_keys: tuple[bytes, ...]
    """Private; oldest first, the last one signs."""
    rotated_at: tuple[int, ...] = ()
    """Revision from which on each but the first signs."""


class RecoveryRecord(msgspec.Struct, frozen=True):
    """The controller was restored: what it has granted since the back-up it must learn."""

    epoch: int
    began_at_s: float
    above: int
    """The revision of the back-up: grants above it may be lost."""
    below: int
    """The revision that was gone on from: grants above it are not lost."""
    marks: dict[int, int]
    """Highest granted segment number by IP version, as of the back-up."""
    granted: dict[int, int]
    """Like `marks`, but higher where the database that was replaced knew of more."""
    highest_lost: int
    """The highest revision between the two that anybody showed and nobody here knew."""
    paused: bool
    """Found out, not declared: nothing is granted until a person or every node says so."""
    highest_shown: int = 0
    """The highest up to `below` that anybody showed, whether or not it was news."""

    @property
    def heard_up_to(self) -> int:
        """Who knows nothing above this has nothing to show before its report counts."""
        return max(self.highest_lost, self.highest_shown)

    def having_heard(self, revisions: Iterable[int]) -> RecoveryRecord:
        """With what was shown, which the cluster's key has signed."""
        highest = max((each for each in revisions if each <= self.below), default=0)
        return replace(self, highest_shown=max(self.highest_shown, highest))


class StateRecord(msgspec.Struct, frozen=True):
    revision: int
    marks: dict[int, int]
    """The highest number of a segment that was ever granted, by IP version."""
    recovery: RecoveryRecord | None = None
    epoch: int = 0
    """How many recoveries there were."""


class DocumentRecord(msgspec.Struct, frozen=True):
    """A document alone: its kind has nothing else to keep."""

    sealed: Sealed


class NodeRecord(msgspec.Struct, frozen=True):
    sealed: Sealed
    joined_at_s: float
    awaits_replacement: bool = False
    replaced_by: str = ""
    reported_epoch: int = 0
    """The last recovery in which the node has shown its grant."""
    communities: tuple[str, ...] = ()
    """Communities that it was put into by name; a grant also lists those chosen by labels."""
    node_labels: tuple[str, ...] = ()
    """Keys of its labels that are those of its Node in Kubernetes."""
    node_uid: str = ""
    """Uid of its Node, as it was seen last; empty: it never had one."""
    node_gone_at_s: float | None = None
    """When its Node was deleted, if it was and is not there again."""
    joined_by: str = ""
    """Id of the token that let it in; empty: it came by an account, or was shown."""


class CommunityRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A community, by its name. `NodeRecord.communities` tells who was put into it by name."""

    selector: str = ""
    """Nodes whose labels it matches are in it; empty: none."""
    members: tuple[str, ...] = ()
    """Names of nodes that its object in Kubernetes names: also those that join later."""
    tunnel_backend: TunnelBackend | None = None
    """As a person said; what counts is in the network."""


class SegmentRecord(msgspec.Struct, frozen=True):
    """A segment, by its prefix with `_` for `/`. An empty uid: it may be in use by anybody."""

    uid: str
    resting_since_s: float | None = None


class PresenceRecord(msgspec.Struct, frozen=True):
    sealed: Sealed
    sequence: int
    boot_id: str
    retired_boot_ids: tuple[str, ...]
    at_s: float
    cloned_at_s: float | None = None


class TokenRecord(msgspec.Struct, frozen=True):
    digest: bytes
    created_at_s: float
    expires_at_s: float
    roles: tuple[str, ...]
    communities: tuple[str, ...]
    labels: dict[str, str]
    used_by: str = ""
    """A uid."""
    held_since_s: float | None = None
    """When that node was answered, while it has not confirmed that it has the answer."""
    created_by: str = ""
    removed_at_s: float | None = None
    """When a person took it back; it has expired then, too."""
    removed_by: str = ""
    node_name: str = ""
    """The one name under which it lets a node in; empty: any but a Node's of Kubernetes."""

    def lets_in_less_than(self, found: TokenRecord) -> bool:
        """It is later than what was found in its place: no token becomes again what it was."""
        if self.removed_at_s is not None and found.removed_at_s is None:
            return True
        if self.used_by != found.used_by:
            return not found.used_by
        return found.held_since_s is not None and self.held_since_s is None


class PartMark(msgspec.Struct, frozen=True, array_like=True):
    """What a part of a report holds."""

    pods: int
    size_bytes: int
    """Size of its pods as JSON."""
    written: int = 0
    """`ReportPart.written`; 0: of the first part, which is in the report itself."""


class ReportRecord(msgspec.Struct, frozen=True):
    sequence: int
    at_s: float
    pods: tuple[InterfaceAddresses, ...]
    """Pods of the first part."""
    parts: tuple[PartMark, ...] = ()
    """Marks of every part, the first one too; as many as a power of two."""
    knows_kept: bool = False
    """All of it was written by controllers that know of pods which are not there any more."""


class ReportPart(msgspec.Struct, frozen=True):
    written: int
    """A random number, each time another: a part that its report does not name was written before a
    report that never was."""
    pods: tuple[InterfaceAddresses, ...]


Record = (
    AuthorityRecord
    | StateRecord
    | DocumentRecord
    | NodeRecord
    | SegmentRecord
    | PresenceRecord
    | TokenRecord
    | CommunityRecord
)
_RECORDS: dict[str, type[Record]] = {
    NODE: NodeRecord,
    SEGMENT: SegmentRecord,
    PRESENCE: PresenceRecord,
    TOKEN: TokenRecord,
    COMMUNITY: CommunityRecord,
}


def record_types() -> dict[str, type[Record]]:
    """Types of all kinds held in memory, in the order in which they are read: what is signed comes
    after what it is checked with. Reports are not: they are many, and read by a person alone.
    """
    published = kinds.KINDS.published()
    documents = {kind.name: _RECORDS.get(kind.name, DocumentRecord) for kind in published}
    return {AUTHORITY: AuthorityRecord, STATE: StateRecord, **documents, **_RECORDS}


def record_of(document: Document, now_s: float) -> Record:
    """The first record of a document that the cluster signs."""
    if document.kind == NODE:
        return NodeRecord(document.sealed, now_s)
    return DocumentRecord(document.sealed)
