"""Records in a file that the power may cut anywhere: bytes <-> values.

    record   kind, 4 bytes | version u8 | length u32 | number u64 | crc32 u32 | payload

Integers are little-endian. Each counts whole or, with a wrong checksum, not at all; those behind a
damaged one are found by their kind. What the number means is the file's to say.

What stands in a record is written by others. One that is damaged may be full of what looks like the
beginnings of long records: so the checksums of such take time in proportion to the file, too.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from limpet.base.errors import LimpetError
from limpet.base.records.checksums import PartialChecksums

_HEADER = Struct("<4sBIQI")
HEADER_BYTES = _HEADER.size
_CHEAP_BYTES = 1 << 20


class NewerRecordError(LimpetError):
    """A record is of a format that only a later Limpet knows."""


class FramedRecord(NamedTuple):
    kind: bytes
    number: int
    payload: bytes
    start: int
    end: int


def encode_record(kind: bytes, version: int, number: int, payload: bytes) -> bytes:
    crc = crc32(payload, crc32(_HEADER.pack(kind, version, len(payload), number, 0)))
    return _HEADER.pack(kind, version, len(payload), number, crc) + payload


def find_records(
    data: bytes, start: bytes, version: int, position: int = 0
) -> Iterator[FramedRecord]:
    """The whole records from `position` on whose kinds begin with `start`, in order.

    Raises: NewerRecordError for one of a version above `version`.
    """
    found = _Finder(data, version)
    while (position := data.find(start, position)) >= 0:
        record = found.record_at(position)
        if record is not None:
            yield record
        position = record.end if record else position + 1


class _Finder:
    """The records of one file; remembers how much was read in vain."""

    def __init__(self, data: bytes, known: int) -> None:
        self._data = memoryview(data)
        self._known = known
        self._in_vain = 0
        self._partial: PartialChecksums | None = None

    def record_at(self, position: int) -> FramedRecord | None:
        start = position + HEADER_BYTES
        if start > len(self._data):
            return None
        kind, version, length, number, crc = _HEADER.unpack_from(self._data, position)
        end = start + length
        if end > len(self._data):
            return None
        before = crc32(_HEADER.pack(kind, version, length, number, 0))
        if self._checksum(start, end, before) != crc:
            return None
        if version > self._known:
            raise NewerRecordError(f"it has format {version}, this Limpet knows {self._known}")
        return FramedRecord(kind, number, bytes(self._data[start:end]), position, end)

    def _checksum(self, start: int, end: int, before: int) -> int:
        """CRC-32 of bytes that follow others with the checksum `before`."""
        if self._partial is None:
            self._in_vain += end - start
            # Records that are whole come to once the file; and what begins to tell parts apart
            # takes some 20 ms, in which far more than `_CHEAP_BYTES` are read.
            if self._in_vain <= max(2 * len(self._data), _CHEAP_BYTES):
                return crc32(self._data[start:end], before)
            self._partial = PartialChecksums(self._data)
        return self._partial.of(start, end, before)
