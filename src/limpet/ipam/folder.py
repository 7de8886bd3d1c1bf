"""What a folder says about addresses: its files, and the journal over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from limpet.base.addresses import Address
from limpet.base.disk import Disk, refusals
from limpet.base.errors import StorageError
from limpet.base.records.codec import NewerRecordError
from limpet.ipam.hostlocal import (
    JOURNAL,
    UNKNOWN_HOLDER,
    BindingName,
    MarkName,
    OwnName,
    ReservationName,
    binding_name,
    parse_address,
    parse_binding,
    parse_holder,
    parse_name,
)
from limpet.ipam.journal_codec import Journal, parse_journal
from limpet.ipam.leases import FREE, Binding, Entry, FileFinding, Holder, address_of, number_of


@dataclass(slots=True)
class Folder:
    """The state of all addresses, and what differs from it on the disk."""

    path: Path
    entries: dict[int, Entry] = field(default_factory=dict)
    names: dict[int, set[str]] = field(default_factory=dict)
    """The files that are there about each address."""
    marks: dict[int, int] = field(default_factory=dict)
    stale: set[int] = field(default_factory=set)
    """Addresses whose files may say something else, or may not be synced."""
    journal: Journal | None = None
    journal_data: bytes = b""
    damaged_journals: int = 0
    """The highest number among the copies of damaged journals."""
    findings: list[FileFinding] = field(default_factory=list)


def read_folder(path: Path, network: str, disk: Disk) -> Folder:
    """Everything that can be read of a folder, and findings about the rest. Changes nothing.

    The journal wins for every address that it mentions. Each address has at most one binding, and
    each pod at most one per interface and family (or those of one sandbox): the one used last.

    Raises: StorageError if the folder or its journal cannot be read, or is of a later Limpet.
    """
    folder = Folder(path)
    with refusals("read folder", path):
        names = sorted(disk.list_folder(path))
    if JOURNAL in names:
        _read_journal(folder, disk)
    journalled = folder.journal.entries if folder.journal else {}
    bindings: dict[Address, list[tuple[Binding, str]]] = defaultdict(list)
    for name in names:
        value = parse_name(name)
        if isinstance(value, OwnName):
            if value.copy:
                folder.damaged_journals = max(folder.damaged_journals, value.copy)
                problem = "is a copy of a damaged journal"
                _find(folder, name, problem, "remove it when nobody needs it")
            continue
        if value is None:
            _find(folder, name, "is no file of an address store", "left alone")
            continue
        content = _read(folder, name, disk)
        if isinstance(value, MarkName):
            mark = parse_address(content.decode("ascii", "replace").strip()) if content else None
            if mark is not None:
                folder.marks[value.index] = number_of(mark)
            continue
        number = number_of(value.address)
        folder.names.setdefault(number, set()).add(name)
        if number in journalled:
            continue
        if isinstance(value, ReservationName):
            folder.entries[number] = Entry(_holder(folder, name, content), None)
        elif binding := _binding(folder, value, name, content, network):
            bindings[value.address].append((binding, name))
    for address, candidates in bindings.items():
        _bind(folder, address, candidates)
    if folder.journal is not None:
        _replay(folder, folder.journal)
    _drop_duplicates(folder)
    return folder


def _read_journal(folder: Folder, disk: Disk) -> None:
    path = folder.path / JOURNAL
    hint = "it may hold addresses that no other file does; check the disk before you remove it"
    with refusals("read", path, hint):
        folder.journal_data = disk.read(path)
    try:
        folder.journal = parse_journal(folder.journal_data)
    except NewerRecordError as error:
        hint = "install the later Limpet again; the file may hold addresses that no other does"
        raise StorageError("read", str(path), str(error), hint=hint) from error


def _find(folder: Folder, name: str, problem: str, action: str) -> None:
    folder.findings.append(FileFinding(str(folder.path / name), problem, action))


def _read(folder: Folder, name: str, disk: Disk) -> bytes | None:
    """None: it cannot be read, which is found already."""
    try:
        return disk.read(folder.path / name)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        _find(folder, name, problem, "what its name says counts; check the disk")
        return None


def _holder(folder: Folder, name: str, content: bytes | None) -> Holder:
    holder = parse_holder(content) if content is not None else UNKNOWN_HOLDER
    if holder is None:
        problem = "does not say which container holds the address"
        _find(folder, name, problem, "counts as held until `limpet ipam repair` finds it unused")
    return holder or UNKNOWN_HOLDER


def _binding(
    folder: Folder, value: BindingName, name: str, content: bytes | None, network: str
) -> Binding | None:
    binding, problem = parse_binding(value, content or b"", network)
    if problem and content is not None:
        action = "counts by its name" if binding else "left alone; the pod gets a new address"
        _find(folder, name, problem, action)
    if binding is None:
        folder.names[number_of(value.address)].discard(name)
    return binding


def _bind(folder: Folder, address: Address, candidates: list[tuple[Binding, str]]) -> None:
    """Bind `address` by the best of its binding files; the others are dropped."""
    (best, best_name), *losers = sorted(
        candidates, key=lambda candidate: (_rank(candidate[0]), candidate[1]), reverse=True
    )
    number = number_of(address)
    folder.entries[number] = folder.entries.get(number, FREE)._replace(binding=best)
    for _, name in losers:
        folder.stale.add(number)
        _find(folder, name, f"{address} is kept for another pod by {best_name}", "dropped")
    if binding_name(address, best) != best_name:
        folder.stale.add(number)


def _rank(binding: Binding) -> tuple[bool, int]:
    """What counts most: ours over adopted, then the latest use."""
    return bool(binding.key.ifname), binding.order


def _replay(folder: Folder, journal: Journal) -> None:
    for number, entry in journal.entries.items():
        folder.stale.add(number)
        if entry == FREE:
            folder.entries.pop(number, None)
        else:
            folder.entries[number] = entry
    folder.marks.update(journal.marks)
    if journal.damage:
        problem = f"is damaged: {journal.damage}"
        action = "everything readable was used; what was lost may be seen by `limpet ipam check`"
        _find(folder, JOURNAL, problem, action)


def _drop_duplicates(folder: Folder) -> None:
    """Leave each pod one address per family, or all those of its last sandbox."""
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number, (_, binding) in sorted(folder.entries.items()):
        if binding is not None:
            # An adopted binding's namespace may not be told apart from the pod's name.
            key = binding.key
            pod = key.pod if binding.joined else f"{key.namespace}-{key.pod}"
            groups[pod, address_of(number).version].append(number)
    for numbers in groups.values():
        if len(numbers) > 1:
            _drop_losers(folder, numbers)


def _drop_losers(folder: Folder, numbers: Iterable[int]) -> None:
    """Among bindings of pods that may be the same one."""
    kept: list[int] = []

    def rank(number: int) -> tuple[tuple[bool, int], bool, bool]:
        holder, binding = folder.entries[number]
        assert binding is not None
        return _rank(binding), not binding.joined, holder is not None

    for number in sorted(numbers, key=rank, reverse=True):
        holder, binding = folder.entries[number]
        assert binding is not None
        winner = next((n for n in kept if _same_pod(folder.entries[n].binding, binding)), None)
        if winner is None:
            kept.append(number)
            continue
        folder.stale.add(number)
        name = binding_name(address_of(number), binding)
        better = f"{binding.key.pod} is kept at {address_of(winner)}, used later"
        _find(folder, name, better, "dropped")
        if holder is None:
            del folder.entries[number]
        else:
            folder.entries[number] = Entry(holder, None)


def _same_pod(winner: Binding | None, binding: Binding) -> bool:
    """Whether the pod of `binding`, which ranks lower, has a better one in `winner`."""
    if winner is None:
        return False
    if winner.key == binding.key and winner.joined == binding.joined:
        # Of two range sets of one family a pod has two addresses, both given to one sandbox.
        return not binding.container_id or binding.container_id != winner.container_id
    if binding.key.ifname:
        return False
    if winner.joined or binding.joined:
        return True
    return (winner.key.namespace, winner.key.pod) == (binding.key.namespace, binding.key.pod)
