"""The timeline's file: bytes <-> entries with their moments, in the order of their numbers. Pure.

    entry   record "LMTe", numbered by the entry's sequence: [moment, happening], MessagePack

Records are as in `base.records`: what the power cut short, or the disk damaged, is passed over, and
what comes behind it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from limpet.base.decoding import msgpack_decoder
from limpet.base.records import codec as records
from limpet.picture.timeline import Entry, Happening
from limpet.timeline.clock import Moment, beginnings, dated

VERSION = 1
_ENTRY = b"LMTe"


class Recorded(Struct, frozen=True):
    """An entry as it is kept."""

    sequence: int
    moment: Moment
    happening: Happening


class _Payload(Struct, frozen=True, array_like=True):
    moment: Moment
    happening: Happening


_decode = msgpack_decoder(_Payload).decode


def encode(recorded: Recorded) -> bytes:
    payload = msgspec.msgpack.encode(_Payload(recorded.moment, recorded.happening))
    return records.encode_record(_ENTRY, VERSION, recorded.sequence, payload)


def decode(data: bytes) -> Iterator[Recorded]:
    """All that can be read. Raises: NewerRecordError."""
    for record in records.find_records(data, _ENTRY, VERSION):
        try:
            payload = _decode(record.payload)
        except msgspec.MsgspecError:
            continue
        yield Recorded(record.number, payload.moment, payload.happening)


def entries_of(recorded: Iterable[Recorded]) -> list[Entry]:
    """As they are shown, in their order; times are put right where that is possible."""
    found = list(recorded)
    began_s = beginnings(each.moment for each in found)
    entries = []
    for each in found:
        at_s, clock = dated(each.moment, began_s)
        said = asdict(each.happening)
        entries.append(Entry(sequence=each.sequence, at_s=round(at_s, 3), clock=clock, **said))
    return entries
