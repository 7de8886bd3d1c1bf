"""The ledger of one network's addresses: reservations, bindings, and what is free.

It lives in one folder, in host-local's layout, and is used from one thread. What it does counts at
once in memory; `durable` tells when it is on the disk, and only then may it be answered for.
"""

from __future__ import annotations

import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path

from limpet.base.addresses import Address
from limpet.base.disk import Disk, refusals
from limpet.base.errors import ExhaustedError, StorageError
from limpet.ipam.allocation import MORE_ROOM, AddressChoice, Claim, Pool, choose
from limpet.ipam.folder import Folder, read_folder
from limpet.ipam.hostlocal import LOCK
from limpet.ipam.index import LeaseIndex
from limpet.ipam.journal_file import WHAT_TO_DO
from limpet.ipam.leases import (
    FREE,
    AddressLease,
    AddressRecord,
    AddressState,
    Binding,
    Entry,
    FileFinding,
    Holder,
    PodKey,
    RangeSet,
    Reservation,
    Usage,
    address_of,
    number_of,
)
from limpet.ipam.store import LedgerStore, Tuning

_POOLS = 8
"""Sets of ranges kept ready: one, and more for a while after a network's config has changed."""

Pools = tuple[Pool, ...]
IsAlive = Callable[[Address, Holder], bool]


class Ledger:
    """Made by `Ledger.open`. An address has at most one holder and at most one binding."""

    def __init__(
        self,
        folder: Folder,
        network: str,
        store: LedgerStore,
        lock: int,
        rest_s: float,
        tuning: Tuning,
    ) -> None:
        self.network = network
        self._store = store
        self._lock: int | None = lock
        self._rest_s = rest_s
        self._tuning = tuning
        self._index = LeaseIndex(folder.entries)
        self._findings = folder.findings
        self._marks = folder.marks
        self._pools: dict[tuple[RangeSet, ...], Pools] = {}
        self._resting: OrderedDict[int, float] = OrderedDict()
        """Since when; of what came free by us, whatever ranges it is of."""

    @classmethod
    def open(
        cls,
        folder: Path,
        network: str,
        *,
        disk: Disk | None = None,
        rest_s: float = 30.0,
        tuning: Tuning | None = None,
    ) -> Ledger:
        """The ledger of `folder`, made if missing, locked until `close` or the process' end.

        What cannot be read is in `findings`, and is left alone. `rest_s`: seconds that an address
        rests after its release while others are free.

        Raises: StorageError: another process has the folder, or it cannot be read or written.
        """
        disk, tuning = disk or Disk(), tuning or Tuning()
        with refusals("make folder", folder, WHAT_TO_DO):
            disk.make_folder(folder)
        lock = _take_lock(folder / LOCK, disk, tuning.lock_wait_s)
        try:
            state = read_folder(folder, network, disk)
            store = LedgerStore(state, network, disk, tuning)
        except StorageError:
            os.close(lock)
            raise
        return cls(state, network, store, lock, rest_s, tuning)

    def close(self) -> None:
        """Leave the files as the whole truth, if the disk takes them, and unlock the folder."""
        if self._lock is not None:
            self._store.close()
            os.close(self._lock)
            self._lock = None

    def durable(self) -> Future[None]:
        """Completes when everything done so far is on the disk; call it after every change.

        Fails with StorageError that names the file. What was done stays done in memory and is
        written as soon as the disk takes it: a caller that cannot wait answers with the error, and
        the runtime's DEL then releases what the ADD reserved. The next call tries again.
        """
        return self._store.durable()

    def reserve(
        self,
        holder: Holder,
        key: PodKey,
        range_sets: Sequence[RangeSet],
        *,
        requested: Sequence[Address] = (),
        now_s: float,
        taken_elsewhere: Callable[[Address], bool] | None = None,
        kept_elsewhere: Callable[[Address], bool] | None = None,
        is_alive: IsAlive | None = None,
    ) -> Reservation:
        """One address out of each range set for `holder`, or none at all.

        The pod `key` gets what is kept for it, else what has been unused for longest, and it is
        kept for the pod from now on (not for one without namespace and name). An older sandbox of
        the same pod loses its address to this one; a holder that is not known to be that loses it
        only if `is_alive` says that it is gone. The same holder again gets the same addresses.
        `taken_elsewhere`: whether something else on the node uses an address; `kept_elsewhere`:
        whether another network keeps it, so that others are given first. `now_s`: monotonic.

        Raises: UnavailableError, ExhaustedError, StorageError (the disk refuses changes).
        """
        pools = self._pools_at(range_sets, now_s)
        index, named = self._index, bool(key.namespace or key.pod)
        claim = Claim(
            self.network,
            holder,
            held=index.held_by(holder),
            kept=index.kept_for(key) if named else (),
            requested=requested,
            taken_elsewhere=taken_elsewhere or _never,
            kept_elsewhere=kept_elsewhere or _never,
            is_alive=is_alive or _always,
        )
        choices = choose(pools, claim, index.entries)
        entries, evicted = self._reserved(choices, claim, pools, key if named else None)
        marks = {i: choice.number for i, choice in enumerate(choices) if choice.fresh}
        if entries:
            self._apply(entries, marks, now_s, release=False)
            for i, number in marks.items():
                pools[i].mark = number
        return Reservation(
            tuple(_lease(pool, each.number) for pool, each in zip(pools, choices, strict=True)),
            evicted,
            restored=all(c.number in claim.held or c.number in claim.kept for c in choices),
        )

    def release(self, holder: Holder, *, now_s: float) -> tuple[Address, ...]:
        """Free what exactly this holder holds; its bindings stay. Unknown holder: nothing."""
        return self._release(self._index.held_by(holder), now_s)

    def release_address(self, address: Address, *, now_s: float) -> Holder | None:
        """Free an address whoever holds it, and return who did; its binding stays."""
        holder = self._index.entries.get(number_of(address), FREE).holder
        if holder is not None:
            self._release((number_of(address),), now_s)
        return holder

    def forget(self, what: PodKey | Address, *, now_s: float) -> tuple[Address, ...]:
        """Keep an address, or those of a pod, for nobody any more; who holds it goes on doing so.

        A key without ifname means all interfaces of the pod.
        """
        index = self._index
        if not isinstance(what, PodKey):
            numbers: tuple[int, ...] = (number_of(what),)
        elif what.ifname:
            numbers = index.kept_for(what)
        else:
            numbers = index.kept_for_pod(what.namespace, what.pod)
        entries = {
            number: index.entries[number]._replace(binding=None)
            for number in numbers
            if index.entries.get(number, FREE).binding is not None
        }
        if entries:
            self._apply(entries, {}, now_s, release=True)
        return tuple(map(address_of, entries))

    # Views.

    @property
    def findings(self) -> list[FileFinding]:
        """What was wrong in the folder when it was opened, and what the disk refuses now."""
        return [*self._findings, *self._store.findings()]

    @property
    def refusal(self) -> StorageError | None:
        """Why an address could not be given now for the disk's sake; None when it could."""
        return self._store.refusal

    def is_held(self, address: Address) -> bool:
        return self._index.entries.get(number_of(address), FREE).holder is not None

    def is_kept(self, address: Address, *, now_s: float) -> bool:
        """Whether nobody holds it, and it is an absent pod's or rests."""
        number = number_of(address)
        entry = self._index.entries.get(number)
        if entry is not None:
            return entry.holder is None
        return self._resting.get(number, -math.inf) > now_s - self._rest_s

    def holders(self) -> Mapping[Address, Holder]:
        return {
            address_of(number): entry.holder
            for number, entry in self._index.entries.items()
            if entry.holder is not None
        }

    def bindings(self) -> Mapping[Address, Binding]:
        return {
            address_of(number): entry.binding
            for number, entry in self._index.entries.items()
            if entry.binding is not None
        }

    def addresses_of(self, holder: Holder) -> tuple[Address, ...]:
        return tuple(map(address_of, self._index.held_by(holder)))

    def records(self, *, now_s: float) -> tuple[AddressRecord, ...]:
        """Every address that is not simply free, in order."""
        resting = [n for n, since_s in self._resting.items() if since_s > now_s - self._rest_s]
        return _records(self._index.entries, resting)

    def usage(self, range_sets: Sequence[RangeSet], *, now_s: float) -> tuple[Usage, ...]:
        """How full each range set is."""
        return tuple(pool.usage() for pool in self._pools_at(range_sets, now_s))

    # Changes.

    def _reserved(
        self, choices: Sequence[AddressChoice], claim: Claim, pools: Pools, key: PodKey | None
    ) -> tuple[dict[int, Entry], tuple[Holder, ...]]:
        """The entries that a reservation changes, and who loses an address by it."""
        have = self._index.entries
        holder = claim.holder
        binding = Binding(key, self._index.order + 1, holder.container_id) if key else None
        chosen = [choice.number for choice in choices]
        entries: dict[int, Entry] = {}
        evicted: dict[Holder, None] = {}
        for number in chosen:
            old = have.get(number, FREE)
            if old.holder and old.holder.container_id and number not in claim.held:
                evicted[old.holder] = None
            if old.holder != holder or not _same_use(old.binding, binding):
                entries[number] = Entry(holder, binding)
        versions = {address_of(number).version for number in chosen}
        for number in claim.kept:  # outside today's ranges, or another container has it now
            if number not in chosen and address_of(number).version in versions:
                entries[number] = have[number]._replace(binding=None)
        for number in claim.held:  # the same holder has asked for another address now
            if number not in chosen and any(number in pool for pool in pools):
                entries[number] = entries.get(number, have[number])._replace(holder=None)
        for pool in pools:
            absent = pool.longest_absent(self._tuning.absent_pods)
            if absent is not None:
                entries.setdefault(absent, FREE)
        return entries, tuple(evicted)

    def _release(self, numbers: Iterable[int], now_s: float) -> tuple[Address, ...]:
        order = self._index.order + 1
        entries = {}
        for number in numbers:
            binding = self._index.entries[number].binding
            # Its last use ends now: of the absent pods this is the last to lose its address.
            entries[number] = Entry(None, replace(binding, order=order) if binding else None)
        if entries:
            self._apply(entries, {}, now_s, release=True)
        return tuple(map(address_of, entries))

    def _apply(
        self, entries: Mapping[int, Entry], marks: Mapping[int, int], now_s: float, *, release: bool
    ) -> None:
        self._store.append(entries, marks, release=release)
        self._marks.update(marks)
        for number, entry in entries.items():
            self._index.put(number, entry)
            self._resting.pop(number, None)
            if entry == FREE:
                self._resting[number] = now_s
            for pools in self._pools.values():
                for pool in pools:
                    pool.place(number, entry, now_s)

    def _pools_at(self, range_sets: Sequence[RangeSet], now_s: float) -> Pools:
        """The pools of a network's ranges, without what has rested enough."""
        rested_s = now_s - self._rest_s
        while self._resting and next(iter(self._resting.values())) <= rested_s:
            self._resting.popitem(last=False)
        key = tuple(range_sets)
        pools = self._pools.get(key)
        if pools is None:
            pools = self._pools[key] = self._make_pools(key)
        for pool in pools:
            pool.wake(rested_s)
        return pools

    def _make_pools(self, range_sets: tuple[RangeSet, ...]) -> Pools:
        if not range_sets or not all(range_sets):
            raise ExhaustedError(
                f"reserve an address in network {self.network}: it has no ranges ({MORE_ROOM})"
            )
        if len(self._pools) >= _POOLS:
            del self._pools[next(iter(self._pools))]
        gateways = [member.gateway for range_set in range_sets for member in range_set]
        return tuple(
            Pool(range_set, gateways, self._index.entries, self._marks.get(i), self._resting)
            for i, range_set in enumerate(range_sets)
        )


def _lease(pool: Pool, number: int) -> AddressLease:
    member = pool.range_of(number)
    with_length = (int(address_of(number)), member.subnet.prefixlen)
    interface = IPv4Interface if member.subnet.version == 4 else IPv6Interface
    return AddressLease(interface(with_length), member.gateway)


def _same_use(old: Binding | None, new: Binding | None) -> bool:
    """Whether two bindings differ in nothing but their order."""
    if old is None or new is None:
        return old is new
    return replace(old, order=new.order) == new


def _never(address: Address) -> bool:
    return False


def _always(address: Address, holder: Holder) -> bool:
    return True


def _take_lock(path: Path, disk: Disk, wait_s: float) -> int:
    give_up_s = time.monotonic() + wait_s
    while True:
        with refusals("lock", path, WHAT_TO_DO):
            lock = disk.lock(path)
        if lock is not None:
            return lock
        if time.monotonic() >= give_up_s:
            hint = f"another agent, or a host-local that hangs: `fuser -v {path}` says which"
            raise StorageError("lock", str(path), "another process has locked it", hint=hint)
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What a folder says at one moment."""

    records: tuple[AddressRecord, ...]
    findings: tuple[FileFinding, ...]


def read_ledger(folder: Path) -> LedgerView:
    """What a folder says, without its lock, changing nothing; for when no agent has it.

    Raises: StorageError.
    """
    state = read_folder(folder, folder.name, Disk())
    return LedgerView(_records(state.entries, set()), tuple(state.findings))


def _records(entries: Mapping[int, Entry], resting: Iterable[int]) -> tuple[AddressRecord, ...]:
    records = {number: _record(number, entry) for number, entry in entries.items()}
    for number in resting:
        record = AddressRecord(address_of(number), AddressState.RESTING, None, None, 0)
        records.setdefault(number, record)
    return tuple(record for _, record in sorted(records.items()))


def _record(number: int, entry: Entry) -> AddressRecord:
    holder, binding = entry
    state = AddressState.BOUND if holder is None else AddressState.LIVE
    key, order = (binding.key, binding.order) if binding else (None, 0)
    return AddressRecord(address_of(number), state, holder, key, order)
