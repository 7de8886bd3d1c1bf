"""Records in a file that the power may cut anywhere: bytes <-> values.

    record   kind, 4 bytes | version u8 | length u32 | number u64 | crc32 u32 | payload

Integers are little-endian. Each counts whole or, with a wrong checksum, not at all; those behind a
damaged one are found by their kind. What the number means is the file's to say.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from limpet.base.errors import LimpetError

_HEADER = Struct("<4sBIQI")
HEADER_BYTES = _HEADER.size


class NewerRecordError(LimpetError):
    """A record is of a format that only a later Limpet knows."""


class Record(NamedTuple):
    kind: bytes
    number: int
    payload: bytes
    start: int
    end: int


def encode_record(kind: bytes, version: int, number: int, payload: bytes) -> bytes:
    crc = _crc(kind, version, number, payload)
    return _HEADER.pack(kind, version, len(payload), number, crc) + payload


def _crc(kind: bytes, version: int, number: int, payload: bytes) -> int:
    return crc32(payload, crc32(_HEADER.pack(kind, version, len(payload), number, 0)))


def find_records(data: bytes, start: bytes, version: int, position: int = 0) -> Iterator[Record]:
    """The whole records from `position` on whose kinds begin with `start`, in order.

    Raises: NewerRecordError for one of a version above `version`.
    """
    while (position := data.find(start, position)) >= 0:
        record = _record_at(data, position, version)
        if record is not None:
            yield record
        position = record.end if record else position + 1


def _record_at(data: bytes, position: int, known: int) -> Record | None:
    start = position + HEADER_BYTES
    if start > len(data):
        return None
    kind, version, length, number, crc = _HEADER.unpack_from(data, position)
    payload = data[start : start + length]
    if len(payload) != length or _crc(kind, version, number, payload) != crc:
        return None
    if version > known:
        raise NewerRecordError(f"it has format {version}, this Limpet knows {known}")
    return Record(kind, number, payload, position, start + length)
