"""The entries of a ledger, and the ways to find them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from limpet.ipam.leases import FREE, Binding, Entry, Holder, PodKey

_K = TypeVar("_K", Holder, PodKey, str)
Numbers = tuple[int, ...]


class LeaseIndex:
    def __init__(self, entries: Mapping[int, Entry]) -> None:
        self.entries: dict[int, Entry] = {}
        """What is not free, by the number of its address."""
        self.order = 0
        """The highest order of a binding so far."""
        self._by_holder: dict[Holder, Numbers] = {}
        self._by_key: dict[PodKey, Numbers] = {}
        self._joined: dict[str, Numbers] = {}
        for number, entry in sorted(entries.items()):
            self.put(number, entry)

    def put(self, number: int, entry: Entry) -> None:
        old = self.entries.get(number, FREE)
        if old.holder != entry.holder:
            _move(self._by_holder, number, old.holder, entry.holder)
        if old.binding != entry.binding:
            _move(self._by_key, number, _key(old.binding), _key(entry.binding))
            _move(self._joined, number, _joined(old.binding), _joined(entry.binding))
            if entry.binding is not None:
                self.order = max(self.order, entry.binding.order)
        if entry == FREE:
            self.entries.pop(number, None)
        else:
            self.entries[number] = entry

    def held_by(self, holder: Holder) -> Numbers:
        """Also what an older host-local has reserved for the container, without an ifname.

        Nothing for an empty container id, which is nobody's.
        """
        if not holder.container_id:
            return ()
        numbers = self._by_holder.get(holder, ())
        if holder.ifname:
            numbers += self._by_holder.get(Holder(holder.container_id, ""), ())
        return numbers

    def kept_for(self, key: PodKey) -> Numbers:
        """What is kept for the pod's interface, then what is kept for the pod whichever it is."""
        numbers = self._by_key.get(key, ())
        if key.ifname:
            numbers += self._by_key.get(PodKey(key.namespace, key.pod, ""), ())
        return numbers + self._joined.get(f"{key.namespace}-{key.pod}", ())

    def kept_for_pod(self, namespace: str, pod: str) -> Numbers:
        """What is kept for all interfaces of a pod."""
        keys = [key for key in self._by_key if (key.namespace, key.pod) == (namespace, pod)]
        numbers = [number for key in keys for number in self._by_key[key]]
        return (*numbers, *self._joined.get(f"{namespace}-{pod}", ()))


def _key(binding: Binding | None) -> PodKey | None:
    return None if binding is None or binding.joined else binding.key


def _joined(binding: Binding | None) -> str | None:
    return binding.key.pod if binding is not None and binding.joined else None


def _move(index: dict[_K, Numbers], number: int, old: _K | None, new: _K | None) -> None:
    if old == new:
        return
    if old is not None:
        rest = tuple(other for other in index[old] if other != number)
        if rest:
            index[old] = rest
        else:
            del index[old]
    if new is not None:
        others: Numbers = index.get(new, ())
        index[new] = (*others, number)
