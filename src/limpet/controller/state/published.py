"""What nodes sign themselves and publish, of whatever kind; operations as those of grants.py."""

from __future__ import annotations

from msgspec.structs import replace as replace_fields

from limpet.base.bounds.members import BOOT_IDS
from limpet.cluster.api import Code
from limpet.cluster.documents import Document, Sealed
from limpet.cluster.kinds import KINDS
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.seal import check, read_sealed
from limpet.controller.registry.records import PRESENCE, DocumentRecord, PresenceRecord, Record
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.registry.tables import Tables
from limpet.controller.state.grants import live_grant


def publish(tables: Tables, uid: str, sealed: Sealed, now_s: float) -> int:
    """The version that counts now. Raises: RefusedError, SealError."""
    grant = live_grant(tables, uid)
    document = read_sealed(sealed, KINDS)
    if KINDS[document.kind].among_nodes:
        raise RefusedError(
            Code.BAD_REQUEST,
            f"node {grant.name} publishes {document.kind} {document.name}, which nodes tell each "
            "other: a controller keeps none of this kind",
        )
    parent = KINDS[document.kind].parent(document.name)
    if parent is None or parent[1] != uid:
        raise RefusedError(
            Code.NOT_YOURS,
            f"node {grant.name} publishes {document.kind} {document.name}, which is not its own",
        )
    check(document, tables)
    known = tables.find(document.key)
    record: Record = DocumentRecord(document.sealed)
    if document.kind == PRESENCE:
        record = _presence_record(tables, document, now_s)
    if known is not None and known.sealed == sealed:
        return known.version
    if known is not None and (known.tombstone or document.version <= known.version):
        raise RefusedError(
            Code.STALE,
            f"node {grant.name}: {document.kind} {document.version} is not newer than "
            f"{known.version}",
            version=known.version,
        )
    tables.put_document(document, record)
    return document.version


def _presence_record(tables: Tables, document: Document, now_s: float) -> PresenceRecord:
    """Raises: RefusedError where two machines say it in turns."""
    known, boot_id = tables.presences.get(document.name), document.value.boot_id
    if known is None:
        return PresenceRecord(document.sealed, document.version, boot_id, (), now_s)
    if boot_id in known.retired_boot_ids:
        raise RefusedError(
            Code.CLONED,
            f"node {tables.grants[document.name].name}: two machines use its key at once, boots "
            f"{boot_id} and {known.boot_id} (a cloned disk? Give one of them a new key and let it "
            "join anew)",
            version=known.sequence,
        )
    retired, cloned_at_s = known.retired_boot_ids, known.cloned_at_s
    if boot_id != known.boot_id:
        retired = (*retired, known.boot_id)[-BOOT_IDS.most :]
        cloned_at_s = None  # a machine was rebooted: another that goes on is refused, and noted
    return replace_fields(
        known,
        sequence=document.version,
        boot_id=boot_id,
        retired_boot_ids=retired,
        at_s=now_s,
        cloned_at_s=cloned_at_s,
    )


def note_clone(tables: Tables, uid: str, now_s: float) -> Grant:
    """Kept for `limpet node show` until the node publishes with a boot id that was never seen: a
    person has to look. Returns the node's grant."""
    known = tables.presences.get(uid)
    if known is not None and known.cloned_at_s is None:
        tables.put(PRESENCE, uid, replace_fields(known, cloned_at_s=now_s))
    return tables.grants[uid]
