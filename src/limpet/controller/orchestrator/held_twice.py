"""Addresses that two live pods hold, by whatever network. Pure, time passed in.

What the API server says of pods is compared with itself, and with what Limpet's nodes say that they
gave to a pod: they know it earlier, and also of a pod's further interfaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SETTLE_S = 15.0
"""So long must two hold one address: what a pod had that is just going may be another's already."""

Key = tuple[str, str]
"""Namespace and name of a pod."""


@dataclass(frozen=True, slots=True)
class LivePod:
    """A live pod that is not in its node's network."""

    key: Key
    uid: str
    node: str
    addresses: tuple[str, ...] = ()
    """In their short form."""


@dataclass(frozen=True, slots=True)
class HeldTwice:
    """One address, and who holds it, by name."""

    address: str
    pods: tuple[LivePod, ...]

    @property
    def words(self) -> str:
        holders = [f"{'/'.join(each.key)} on {each.node or 'no node'}" for each in self.pods]
        return f"{self.address} by {' and '.join(holders)}"


class AddressBook:
    """Pods by their addresses; a change costs what it changes."""

    def __init__(self) -> None:
        self._pods: dict[Key, LivePod] = {}
        self._reported: dict[str, dict[Key, set[str]]] = {}
        """By the name of the node: pods and their addresses."""
        self._keys: dict[str, tuple[Key, ...]] = {}
        """Who may hold an address; most have one, of whom the API server and the node tell."""
        self._since_s: dict[str, float] = {}
        """Since when an address is held twice."""

    def __len__(self) -> int:
        return len(self._pods)

    def put(self, pod: LivePod, now_s: float) -> None:
        before = self._pods.get(pod.key)
        if before == pod:
            return
        self._pods[pod.key] = pod
        gone = before.addresses if before is not None else ()
        self._changed(pod.key, {*gone, *pod.addresses, *self._reported_of(pod)}, now_s)
        if before is not None and before.node != pod.node:
            self._changed(pod.key, self._reported_of(before), now_s)

    def drop(self, key: Key, now_s: float) -> None:
        pod = self._pods.pop(key, None)
        if pod is not None:
            self._changed(key, {*pod.addresses, *self._reported_of(pod)}, now_s)

    def report(self, node: str, pods: Iterable[tuple[Key, str]], now_s: float) -> None:
        """What the node says that it gave out, all of it."""
        after: dict[Key, set[str]] = {}
        for key, address in pods:
            after.setdefault(key, set()).add(address)
        before = self._reported.pop(node, {})
        if after:
            self._reported[node] = after
        for key in before.keys() | after.keys():
            self._changed(key, before.get(key, set()) ^ after.get(key, set()), now_s)

    def held_twice(self, now_s: float) -> tuple[HeldTwice, ...]:
        """By address, those that have been so for a while."""
        return tuple(
            HeldTwice(address, self._holders(address))
            for address, since_s in sorted(self._since_s.items())
            if now_s - since_s >= SETTLE_S
        )

    def _reported_of(self, pod: LivePod) -> Iterable[str]:
        return self._reported.get(pod.node, {}).get(pod.key, ())

    def _changed(self, key: Key, addresses: Iterable[str], now_s: float) -> None:
        pod = self._pods.get(key)
        held = {*pod.addresses, *self._reported_of(pod)} if pod is not None else set()
        for address in addresses:
            others = tuple(each for each in self._keys.get(address, ()) if each != key)
            keys = (*others, key) if address in held else others
            if keys:
                self._keys[address] = keys
            else:
                self._keys.pop(address, None)
            if len(keys) > 1:
                self._since_s.setdefault(address, now_s)
            else:
                self._since_s.pop(address, None)

    def _holders(self, address: str) -> tuple[LivePod, ...]:
        return tuple(self._pods[key] for key in sorted(self._keys[address]))


def by_node(found: Sequence[HeldTwice]) -> Mapping[str, Sequence[str]]:
    """In words, by the names of the nodes that the pods are on."""
    words: dict[str, list[str]] = {}
    for each in found:
        for node in sorted({pod.node for pod in each.pods}):
            words.setdefault(node, []).append(each.words)
    return words
