"""The ledger's journal: bytes <-> what has changed.

The file has two halves, and one of them is in use. It begins with a base record, followed by
change records; each counts whole or, with a wrong checksum, not at all. A base says that the files
of the folder hold everything numbered lower, but for the entries that it carries itself. When a
half is nearly full and its entries are safe in their files, a new base is written to the other
half: one atomic step that needs no room on the disk.

    base     record "LMJb", JSON: [[entries, marks], bytes of the file]
    change   record "LMJc", JSON: [[entries, marks], …]: all that was written at once

Records are numbered one by one. When the write of a base failed, the change after it takes the
same number: whether the base is on the disk after all or not, that change comes after it.

An entry is the whole new state of an address (a number, as in ipam/leases.py), so a change that
is replayed twice, or on top of files that have it already, does no harm.

Records are as in `base.records`. A whole one of a later version, wherever in the file, makes it a
journal that only a later Limpet reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from limpet.base.records.codec import encode_record, find_records
from limpet.ipam.leases import Binding, Entry, Holder, PodKey

VERSION = 1
_BASE, _CHANGE = b"LMJb", b"LMJc"
_to_json = json.JSONEncoder(separators=(",", ":")).encode


def encode_entries(entries: Mapping[int, Entry], marks: Mapping[int, int]) -> bytes:
    """What one reservation or release did: the payload's element, to be joined into a record."""
    return _to_json(
        [
            [[n, _plain_holder(e.holder), _plain_binding(e)] for n, e in entries.items()],
            list(marks.items()),
        ]
    ).encode()


def _plain_holder(holder: Holder | None) -> list[str] | None:
    return None if holder is None else [holder.container_id, holder.ifname]


def _plain_binding(entry: Entry) -> list[Any] | None:
    binding = entry.binding
    if binding is None:
        return None
    key = binding.key
    # The sandbox is the holder nearly always; the journal says it once.
    holder = entry.holder
    held = holder is not None and holder.container_id == binding.container_id
    container_id = None if held else binding.container_id
    return [key.namespace, key.pod, key.ifname, binding.order, container_id, binding.joined]


def encode_change(number: int, changes: Iterable[bytes]) -> bytes:
    """One record of results of `encode_entries`: on disk all of them or none."""
    return encode_record(_CHANGE, VERSION, number, b"[" + b",".join(changes) + b"]")


def encode_base(number: int, carried: bytes, file_bytes: int) -> bytes:
    """A base that carries a result of `encode_entries`."""
    return encode_record(_BASE, VERSION, number, b"[%s,%d]" % (carried, file_bytes))


@dataclass(slots=True)
class Journal:
    """What a journal says."""

    entries: dict[int, Entry] = field(default_factory=dict)
    """The state of each address that it mentions; it wins over the files of the folder."""
    marks: dict[int, int] = field(default_factory=dict)
    next_number: int = 1
    end: int = 0
    """Where the next record goes."""
    damage: str = ""
    """What is wrong with it; empty: nothing."""


def parse_journal(data: bytes) -> Journal:
    """Everything that can be read, in order, whatever is damaged around it.

    An incomplete last record is no damage: it was being written when the power went.
    Raises: NewerRecordError.
    """
    records = list(find_records(data, b"LMJ", VERSION))
    base = max((r for r in records if r.kind == _BASE), key=lambda r: r.number, default=None)
    start = base.number if base else 0
    changes = sorted(
        (r for r in records if r.kind == _CHANGE and r.number >= start), key=lambda r: r.number
    )
    journal = Journal()
    if base is None:
        journal.damage = "the record that it begins with cannot be read"
    else:
        carried, file_bytes = json.loads(base.payload)
        _replay(journal, [carried])
        if file_bytes != len(data):
            journal.damage = f"it has {len(data)} bytes instead of {file_bytes}"
        journal.next_number, journal.end = base.number + 1, base.end
        if changes and changes[0].number == base.number:
            journal.next_number = base.number
    for record in changes:
        if record.number != journal.next_number and not journal.damage:
            lost = f"{journal.next_number} to {record.number - 1}"
            journal.damage = f"records {lost} cannot be read, later ones can"
        _replay(journal, json.loads(record.payload))
        journal.next_number, journal.end = record.number + 1, record.end
    return journal


def _replay(journal: Journal, changes: list[Any]) -> None:
    for entries, marks in changes:
        for number, holder, binding in entries:
            journal.entries[number] = _entry(holder, binding)
        journal.marks.update(marks)


def _entry(holder: list[str] | None, binding: list[Any] | None) -> Entry:
    held_by = None if holder is None else Holder(*holder)
    if binding is None:
        return Entry(held_by, None)
    namespace, pod, ifname, order, container_id, joined = binding
    if container_id is None and held_by is not None:
        container_id = held_by.container_id
    return Entry(held_by, Binding(PodKey(namespace, pod, ifname), order, container_id, joined))
