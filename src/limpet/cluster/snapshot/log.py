"""The snapshot's log: bytes <-> sealed documents, in the order in which they became known.

    header   "LMPSNAP\\n" | version u32 | length of the base u64 | crc32 u32
    record   "LMS" kind | length u32 | synced u64 | crc32 u32 | payload, MessagePack
    kind     "n" network: [body, signature]; "e" entry: grant's, then presence's if there is one

The base is what the file began with, header included: it was on the disk before the file got its
name. Records follow in groups, each synced before the next is written; `synced` is where a
record's group begins. So what cannot be read is damage if it lies in the base or before the group
of a later record. Anything else was being written when the power went, and nobody was told that
it is on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import msgspec

from limpet.base.errors import LimpetError
from limpet.cluster.documents import Sealed

VERSION = 1
_HEADER = Struct("<8sIQI")
_HEADER_MAGIC = b"LMPSNAP\n"
_RECORD = Struct("<4sIQI")
_MAGIC = b"LMS"
_NETWORK, _ENTRY = b"LMSn", b"LMSe"
HEADER_BYTES = _HEADER.size

_decode = msgspec.msgpack.Decoder(list[bytes]).decode

Pair = tuple[Sealed, Sealed | None]
"""A grant and its node's presence."""


class NewerLogError(LimpetError):
    """The log is of a format that only a later Limpet knows."""


def encode_header(base_bytes: int = HEADER_BYTES) -> bytes:
    """`base_bytes`: of the header and the records that the file begins with."""
    head = _HEADER.pack(_HEADER_MAGIC, VERSION, base_bytes, 0)
    return _HEADER.pack(_HEADER_MAGIC, VERSION, base_bytes, crc32(head))


def encode_network(sealed: Sealed, synced: int) -> bytes:
    """A record of a group that begins at offset `synced` of the file."""
    return _encode(_NETWORK, (sealed.body, sealed.signature), synced)


def encode_pair(pair: Pair, synced: int) -> bytes:
    """A record of a group that begins at offset `synced` of the file."""
    grant, presence = pair
    parts: tuple[bytes, ...] = (grant.body, grant.signature)
    if presence is not None:
        parts += (presence.body, presence.signature)
    return _encode(_ENTRY, parts, synced)


def _encode(magic: bytes, parts: tuple[bytes, ...], synced: int) -> bytes:
    payload = msgspec.msgpack.encode(parts)
    return _RECORD.pack(magic, len(payload), synced, _crc(magic, payload, synced)) + payload


def _crc(magic: bytes, payload: bytes, synced: int) -> int:
    return crc32(payload, crc32(_RECORD.pack(magic, len(payload), synced, 0)))


@dataclass(slots=True)
class SnapshotLog:
    """What a log says."""

    networks: list[Sealed] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
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
    base_bytes = _base_bytes(data)
    log = SnapshotLog(end=HEADER_BYTES if base_bytes else 0)
    holes = []
    synced = base_bytes
    for record in _records(data, log.end):
        if record.start > log.end:
            holes.append((log.end, record.start))
        log.end = record.end
        synced = max(synced, record.synced)
        if isinstance(record.document, Sealed):
            log.networks.append(record.document)
        else:
            log.pairs.append(record.document)
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


def _base_bytes(data: bytes) -> int:
    """0: the header cannot be read. Raises: NewerLogError."""
    if len(data) < HEADER_BYTES:
        return 0
    magic, version, base_bytes, crc = _HEADER.unpack_from(data)
    if magic != _HEADER_MAGIC or crc != crc32(_HEADER.pack(magic, version, base_bytes, 0)):
        return 0
    if version > VERSION:
        raise NewerLogError(
            f"it has format {version}, this Limpet knows {VERSION} (install the later Limpet "
            "again, or move the file away: the cluster tells everything anew)"
        )
    return int(base_bytes)


class _Record(NamedTuple):
    start: int
    end: int
    synced: int
    document: Sealed | Pair


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
    magic, length, synced, crc = _RECORD.unpack_from(data, position)
    payload = data[start : start + length]
    if len(payload) != length or _crc(magic, payload, synced) != crc:
        return None
    document = _document(magic, payload)
    return None if document is None else _Record(position, start + length, synced, document)


def _document(magic: bytes, payload: bytes) -> Sealed | Pair | None:
    try:
        parts = _decode(payload)
    except msgspec.MsgspecError:
        return None
    if magic == _NETWORK and len(parts) == 2:
        return Sealed(*parts)
    if magic == _ENTRY and len(parts) in (2, 4):
        return Sealed(*parts[:2]), Sealed(*parts[2:]) if len(parts) == 4 else None
    return None
