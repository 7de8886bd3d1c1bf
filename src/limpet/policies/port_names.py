"""Where names of ports lead to that pods give them, kept right while pods change. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from limpet.base.addresses import Address
from limpet.policies.compiled import AllowedPeers, At
from limpet.policies.policy import NamedPort, PolicyPod

_REMEMBERED = 64
"""Changes of a name's ports that are told one by one; who asks after more looks at all of them."""
_Places = list[tuple[int, int, Address]]
"""By version and number, in order."""


class _NamedPods:
    """Where one name of a port leads to. A tenant may write thousands of rules that have the name,
    and thousands of others' pods may have it, so a rule looks at what it means and at nothing
    else."""

    def __init__(self) -> None:
        self.ats: dict[Address, dict[At, int]] = {}
        """And how many pods have each."""
        self.changes = 0
        self._last: deque[At] = deque(maxlen=_REMEMBERED)
        self._order: _Places | None = None
        """None: no range was asked for yet."""

    def change(self, at: At, by: int) -> None:
        is_known = at.address in self.ats
        here = self.ats.setdefault(at.address, {})
        here[at] = here.get(at, 0) + by
        if not here[at]:
            del here[at]
        self.changes += 1
        self._last.append(at)
        place = at.address.version, int(at.address), at.address
        if not here:
            del self.ats[at.address]
            if self._order is not None:
                del self._order[bisect_left(self._order, place)]
        elif self._order is not None and not is_known:
            insort(self._order, place)

    def since(self, changes: int) -> list[At] | None:
        """What has come or gone since there were so many changes; None: nobody knows."""
        count = self.changes - changes
        return [*islice(reversed(self._last), count)] if count <= len(self._last) else None

    def of(self, peers: AllowedPeers) -> Iterator[At]:
        """Those at addresses of these peers; some of them may come twice."""
        few: Collection[Address]
        few, many = sorted((self.ats, peers.addresses), key=len)
        addresses = iter(self.ats) if peers.everybody else (each for each in few if each in many)
        for address in addresses:
            yield from self.ats[address]
        for address in self._in_ranges(peers):
            yield from self.ats[address]

    def _in_ranges(self, peers: AllowedPeers) -> Iterator[Address]:
        if len(peers.ranges) > len(self.ats):
            yield from filter(peers.include, self.ats)
            return
        if self._order is None and peers.ranges:
            self._order = sorted((each.version, int(each), each) for each in self.ats)
        for version, first, last in peers.ranges:
            order = self._order or []
            for at in range(bisect_left(order, (version, first)), len(order)):
                if order[at][:2] > (version, last):
                    break
                yield order[at][2]


class NamedPorts(NamedTuple):
    """What names of ports mean at some peers, and what it was made of."""

    names: tuple[NamedPort, ...]
    peers: AllowedPeers
    sources: tuple[tuple[_NamedPods | None, int], ...]
    """For each name, and how often it had changed."""
    found: frozenset[At]


class PortNames:
    """Ports that pods give names to; of a name that no pod has any more nothing is kept."""

    def __init__(self) -> None:
        self._pods: dict[NamedPort, _NamedPods] = {}

    def move(self, before: PolicyPod | None, after: PolicyPod | None) -> None:
        """As `Choices.move`; only of pods that selectors may choose."""
        old, new = _ats(before), _ats(after)
        for name, at in old - new:
            self._pods[name].change(at, -1)
            if not self._pods[name].ats:
                del self._pods[name]
        for name, at in new - old:
            self._pods.setdefault(name, _NamedPods()).change(at, 1)

    def find(
        self, names: tuple[NamedPort, ...], peers: AllowedPeers, held: NamedPorts | None
    ) -> NamedPorts:
        """`held`: what was found before, corrected by what has changed where that is known."""
        pods = [self._pods.get(name) for name in names]
        sources = tuple((each, 0 if each is None else each.changes) for each in pods)
        if held is not None and (held.names, held.peers, held.sources) == (names, peers, sources):
            return held
        touched = None if held is None else _touched(held, names, peers, pods)
        if held is None or touched is None:
            found = frozenset(at for each in pods if each is not None for at in each.of(peers))
            return NamedPorts(names, peers, sources, found)
        come = {
            at
            for at in touched
            if peers.include(at.address)
            and any(each is not None and at in each.ats.get(at.address, ()) for each in pods)
        }
        return NamedPorts(names, peers, sources, (held.found - touched) | come)


def _touched(
    held: NamedPorts,
    names: tuple[NamedPort, ...],
    peers: AllowedPeers,
    pods: Iterable[_NamedPods | None],
) -> set[At] | None:
    """Ports that may be found now and were not before, or the other way round; None: any."""
    was = held.peers
    if (held.names, was.everybody, was.ranges) != (names, peers.everybody, peers.ranges):
        return None
    addresses = was.addresses ^ peers.addresses
    touched: set[At] = set()
    for each, (before, changes) in zip(pods, held.sources, strict=True):
        since = None if each is None or each is not before else each.since(changes)
        if each is not before or (each is not None and since is None):
            return None
        if each is not None:
            touched.update(since or ())
            for address in addresses:
                touched.update(each.ats.get(address, ()))
    return touched


def _ats(pod: PolicyPod | None) -> set[tuple[NamedPort, At]]:
    if pod is None:
        return set()
    return {
        (name, At(address, name.protocol, port))
        for name, port in pod.ports.items()
        for address in pod.addresses
    }
