"""The snapshot's log: bytes <-> sealed documents, in the order in which they became known.

    header     record "LMSh", numbered by the length of the base: cluster, 8 bytes
    document   record "LMSd", numbered by `synced`: [kind, body, signature], MessagePack

Records are as in `base.records`. The cluster is a hash of the key that all in it was checked with.
The base is what the file began with, header included: it was on the disk before the file got its
name. Records follow in groups, each synced before the next is written; `synced` is where a record's
group begins. So what cannot be read is damage if it lies in the base or before the group of a later
record. Anything else was being written when the power went, and nobody was told that it is on the
disk.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec

from limpet.base.decoding import msgpack_decoder
from limpet.base.records import codec as records
from limpet.cluster.documents import Sealed

VERSION = 1
_HEADER, _DOCUMENT = b"LMSh", b"LMSd"
_MARK_BYTES = 8
HEADER_BYTES = records.HEADER_BYTES + _MARK_BYTES

_decode = msgpack_decoder(Sealed).decode


def cluster_mark(pinned_key: bytes) -> bytes:
    return hashlib.sha256(b"limpet snapshot\0" + pinned_key).digest()[:_MARK_BYTES]


def encode_header(mark: bytes, base_bytes: int = HEADER_BYTES) -> bytes:
    """`base_bytes`: of the header and the records that the file begins with."""
    return records.encode_record(_HEADER, VERSION, base_bytes, mark)


def encode_record(sealed: Sealed, synced: int) -> bytes:
    """A record of a group that begins at offset `synced` of the file."""
    return records.encode_record(_DOCUMENT, VERSION, synced, msgspec.msgpack.encode(sealed))


@dataclass(slots=True)
class SnapshotLog:
    """What a log says."""

    documents: list[Sealed] = field(default_factory=list)
    mark: bytes = b""
    """Mark of the cluster that they were checked for; empty: it cannot be read."""
    end: int = 0
    """Where the next record goes, if nothing is wrong before it."""
    last_group: int = 0
    """Where the records begin that were written last, by one sync or none."""
    torn: bool = False
    """Documents come after what the power cut: the file can't be gone on with."""
    damage: str = ""
    """What is wrong with it; empty: nothing."""
    whole: bool = False
    """All of it can be read, to its last byte: nothing can have been in it that is lost."""


def parse_log(data: bytes) -> SnapshotLog:
    """Every document that can be read, in order, whatever is damaged around it.

    Raises: NewerRecordError.
    """
    head = next(records.find_records(data[:HEADER_BYTES], _HEADER, VERSION), None)
    mark, base_bytes = (head.payload, head.number) if head and not head.start else (b"", 0)
    log = SnapshotLog(mark=mark, end=HEADER_BYTES if base_bytes else 0)
    holes = []
    synced = base_bytes
    for record in records.find_records(data, _DOCUMENT, VERSION, log.end):
        try:
            document = _decode(record.payload)
        except msgspec.MsgspecError:
            continue
        if record.start > log.end:
            holes.append((log.end, record.start))
        log.end = record.end
        synced = max(synced, record.number)
        log.documents.append(document)
    if log.end < base_bytes:
        holes.append((log.end, base_bytes))
    damaged = [f"{start} to {end}" for start, end in holes if start < synced]
    log.torn = bool(holes)
    log.last_group = min(synced, log.end)
    if not base_bytes:
        log.damage = "its first bytes cannot be read"
    elif len(data) < base_bytes:
        log.damage = f"it was cut short to {len(data)} of {base_bytes} bytes or more"
    elif damaged:
        log.damage = f"bytes {', '.join(damaged[:3])}{' and more' * (len(damaged) > 3)} are damaged"
    log.whole = not (log.damage or holes) and log.end == len(data)
    return log
