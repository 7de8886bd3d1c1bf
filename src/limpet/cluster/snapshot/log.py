"""The snapshot's log: bytes <-> sealed documents, in the order in which they became known.

    header   "LMPSNAP\\n" | version u32 | cluster, 8 bytes | length of the base u64 | crc32 u32
    record   "LMSd" | length u32 | synced u64 | crc32 u32 | [kind, body, signature], MessagePack

The cluster is a hash of the key that all in it was checked with. The base is what the file began
with, header included: it was on the disk before the file got its name. Records follow in groups,
each synced before the next is written; `synced` is where a record's group begins. So what cannot
be read is damage if it lies in the base or before the group of a later record. Anything else was
being written when the power went, and nobody was told that it is on the disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import msgspec

from limpet.base.errors import LimpetError
from limpet.cluster.documents import Sealed

VERSION = 1
_HEADER = Struct("<8sI8sQI")
_HEADER_MAGIC = b"LMPSNAP\n"
_RECORD = Struct("<4sIQI")
_MAGIC = b"LMSd"
HEADER_BYTES = _HEADER.size

_decode = msgspec.msgpack.Decoder(Sealed).decode


class NewerLogError(LimpetError):
    """The log is of a format that only a later Limpet knows."""


def cluster_mark(pinned_key: bytes) -> bytes:
    return hashlib.sha256(b"limpet snapshot\0" + pinned_key).digest()[:8]


def encode_header(mark: bytes, base_bytes: int = HEADER_BYTES) -> bytes:
    """`base_bytes`: of the header and the records that the file begins with."""
    head = _HEADER.pack(_HEADER_MAGIC, VERSION, mark, base_bytes, 0)
    return head[:-4] + crc32(head).to_bytes(4, "little")


def encode_record(sealed: Sealed, synced: int) -> bytes:
    """A record of a group that begins at offset `synced` of the file."""
    payload = msgspec.msgpack.encode(sealed)
    return _RECORD.pack(_MAGIC, len(payload), synced, _crc(payload, synced)) + payload


def _crc(payload: bytes, synced: int) -> int:
    return crc32(payload, crc32(_RECORD.pack(_MAGIC, len(payload), synced, 0)))


@dataclass(slots=True)
class SnapshotLog:
    """What a log says."""

    documents: list[Sealed] = field(default_factory=list)
    mark: bytes = b""
    """Of the cluster that they were checked for; empty: it cannot be read."""
    end: int = 0
    """Where the next record goes, if nothing is wrong before it."""
    last_group: int = 0
    """Where the records begin that were written last, by one sync or none."""
    torn: bool = False
    """Documents come after what the power cut: the file can't be gone on with."""
    damage: str = ""
    """What is wrong with it; empty: nothing."""


def parse_log(data: bytes) -> SnapshotLog:
    """Every document that can be read, in order, whatever is damaged around it.

    Raises: NewerLogError.
    """
    mark, base_bytes = _header(data)
    log = SnapshotLog(mark=mark, end=HEADER_BYTES if base_bytes else 0)
    holes = []
    synced = base_bytes
    for record in _records(data, log.end):
        if record.start > log.end:
            holes.append((log.end, record.start))
        log.end = record.end
        synced = max(synced, record.synced)
        log.documents.append(record.document)
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
    return log


def _header(data: bytes) -> tuple[bytes, int]:
    """Mark and length of the base; 0: the header cannot be read. Raises: NewerLogError."""
    if len(data) < HEADER_BYTES:
        return b"", 0
    magic, version, mark, base_bytes, crc = _HEADER.unpack_from(data)
    if magic != _HEADER_MAGIC or crc != crc32(data[: HEADER_BYTES - 4] + bytes(4)):
        return b"", 0
    if version > VERSION:
        raise NewerLogError(
            f"it has format {version}, this Limpet knows {VERSION} (install the later Limpet "
            "again, or move the file away: the cluster tells everything anew)"
        )
    return mark, base_bytes


class _Record(NamedTuple):
    start: int
    end: int
    synced: int
    document: Sealed


def _records(data: bytes, position: int) -> Iterator[_Record]:
    while (position := data.find(_MAGIC, position)) >= 0:
        record = _record_at(data, position)
        if record is not None:
            yield record
        position = record.end if record else position + 1


def _record_at(data: bytes, position: int) -> _Record | None:
    start = position + _RECORD.size
    if start > len(data):
        return None
    _magic, length, synced, crc = _RECORD.unpack_from(data, position)
    payload = data[start : start + length]
    if len(payload) != length or _crc(payload, synced) != crc:
        return None
    try:
        return _Record(position, start + length, synced, _decode(payload))
    except msgspec.MsgspecError:
        return None
