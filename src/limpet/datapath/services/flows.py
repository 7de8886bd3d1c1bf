"""Flows and clients that would stick to who serves no more, noted Service by Service. Pure.

An endpoint that others are nearer than, or that ends in order, keeps the flows that it has: it is
out of rotation and serves still. Source: kube-proxy's pkg/proxy/conntrack/cleanup.go. A client that
is remembered begins a connection whenever it comes, which who ends may refuse: it is led elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from limpet.datapath.services.elements import (
    TARGET_BYTES,
    Frontend,
    in_slots,
    read_frontend,
    read_target,
)
from limpet.datapath.services.ruleset import LOCAL_MARK, LOCAL_SLOTS, slots_name
from limpet.datapath.services.sockets.layout import End
from limpet.datapath.services.state import VERSIONS, AskedKey, Elements, StaleFlows
from limpet.services.values import ServiceName

_ASKED = ((False, "services", "sticky"), (True, "node_ports", "sticky_ports"))
"""Whether a port of the node is asked for, and the maps of what is asked for and of where clients
are remembered."""
_STUCK = ("UDP", "TCP")
_NOBODY: frozenset[bytes] = frozenset()
Beside = dict[AskedKey, frozenset[bytes]]
"""Who serves out of rotation."""
_Kept = dict[ServiceName, tuple[tuple[int, bytes, bytes], ...]]
"""The same, Service by Service: IP version, key, and all targets in one, since as sets those of
10,000 Services would take 8 MB."""


class Served(Mapping[End, frozenset[End]]):
    """Who serves what is asked for; made of the maps' values when somebody looks, since of 10,000
    Services that come at once it would take 30 MB, between what stays."""

    def __init__(self, values: Mapping[End, tuple[bytes, ...]]) -> None:
        self._values = values
        self._read: dict[End, frozenset[End]] = {}

    def __getitem__(self, asked: End) -> frozenset[End]:
        if asked not in self._read:
            self._read[asked] = frozenset(map(read_target, self._values[asked]))
        return self._read[asked]

    def __contains__(self, asked: object) -> bool:
        return asked in self._values

    def __iter__(self) -> Iterator[End]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class ServedPort(NamedTuple):
    """Who serves what is asked for; targets as values of maps."""

    was: frozenset[bytes]
    """Who was in rotation before."""
    rotation: frozenset[bytes]
    """Who is now."""
    able: frozenset[bytes]
    """Who may answer, in rotation or not."""
    dead: frozenset[bytes]
    """Who is in rotation no more, and not expected to answer."""
    is_new: bool
    """Nobody was asked there before."""


class FlowNotes:
    """Kept until the flows are forgotten; who serves beside the rotation, as long as it does."""

    def __init__(self) -> None:
        self._beside: _Kept = {}
        """UDP alone: no flow of another protocol sticks to who is out of rotation."""
        self._apart: _Kept = {}
        """Whom clients that are remembered come back to, out of rotation."""
        self._stale: dict[str, dict[End, tuple[bytes, ...]]] = {each: {} for each in _STUCK}
        """By protocol: who serves now, where somebody serves no more."""
        self._dead: dict[End, frozenset[End]] = {}
        self._left: dict[AskedKey, frozenset[bytes]] = {}
        self._kept: dict[AskedKey, frozenset[bytes]] | None = None

    def told(self) -> StaleFlows:
        udp, tcp = (Served(dict(self._stale[each])) for each in _STUCK)
        return StaleFlows(udp, tcp, dict(self._dead), dict(self._left), self._kept)

    def forgotten(self) -> None:
        """They are gone."""
        for flows in self._stale.values():
            flows.clear()
        self._dead.clear()
        self._left.clear()
        self._kept = None

    def turn(self, name: ServiceName) -> ServiceTurn:
        """For a Service that is planned anew; what is noted counts when it is taken."""
        beside, apart = (held.pop(name, ()) for held in (self._beside, self._apart))
        return ServiceTurn(dict(map(_read, beside)), dict(map(_read, apart)))

    def take(self, name: ServiceName, turn: ServiceTurn) -> None:
        for kept, turned in ((self._beside, turn.beside), (self._apart, turn.apart)):
            if turned:
                kept[name] = tuple(
                    (version, key, b"".join(held)) for (version, key), held in turned.items()
                )
        for protocol, asked in turn.touched:
            self._stale[protocol][asked] = tuple(turn.served[protocol, asked])
        for asked, (died, now) in turn.died.items():
            if dead := (self._dead.pop(asked, frozenset()) | died) - now:
                self._dead[asked] = dead
        for at, left in turn.left.items():
            self._left[at] = self._left.get(at, _NOBODY) | left

    def suspect(self, elements: Elements) -> None:
        """Any flow may have begun while nothing was translated, and any client be remembered.

        `elements`: all that was planned.
        """
        beside, apart = (
            dict(_read(each) for held in kept.values() for each in held)
            for kept in (self._beside, self._apart)
        )
        served: dict[str, dict[End, tuple[bytes, ...]]] = {each: {} for each in _STUCK}
        for version, key, rotation in _all_in_rotation(elements):
            address, protocol, port = read_frontend(key)
            if protocol in served:
                at, also = (address, port), beside.get((version, key), _NOBODY)
                served[protocol][at] = (*served[protocol].get(at, ()), *rotation, *also)
        for protocol, found in served.items():
            self._stale[protocol].update(found)
        self._kept = _all_remembered(elements, apart)


def _all_in_rotation(elements: Elements) -> Iterator[tuple[int, bytes, tuple[bytes, ...]]]:
    """IP version, key, who is in rotation: of all that is asked for."""
    for version in VERSIONS:
        for at_node, asked, _ in _ASKED:
            for key in elements[f"{asked}{version}"]:
                yield version, key, in_rotation(elements, key, version, at_node=at_node)


def _all_remembered(elements: Elements, apart: Beside) -> dict[AskedKey, frozenset[bytes]]:
    """Whom clients may come back to, wherever they are remembered. Where the source is kept nobody
    knows which of them came from outside, and those get no answer from another node."""
    kept: dict[AskedKey, frozenset[bytes]] = {}
    for version in VERSIONS:
        for at_node, asked, sticky in _ASKED:
            for key in elements[f"{sticky}{version}"]:
                if keeps_source(elements[f"{asked}{version}"][key]):
                    slots = elements[_slots_of(key, version, at_node=at_node)]
                    kept[version, key] = frozenset(in_slots(slots, key, LOCAL_SLOTS))
                else:
                    rotation = in_rotation(elements, key, version, at_node=at_node)
                    kept[version, key] = apart.get((version, key), _NOBODY).union(rotation)
    return kept


def keeps_source(verdict: bytes) -> bool:
    """Who comes from outside goes to endpoints of this node alone. `verdict`: as in maps."""
    return LOCAL_MARK in verdict.decode()


def in_rotation(
    elements: Elements, key: bytes, version: int, *, at_node: bool
) -> tuple[bytes, ...]:
    """Who is, for what is asked for by the key."""
    slots = elements.get(_slots_of(key, version, at_node=at_node), {})
    return tuple({x: None for start in (0, LOCAL_SLOTS) for x in in_slots(slots, key, start)})


def _slots_of(key: bytes, version: int, *, at_node: bool) -> str:
    _, protocol, _ = read_frontend(key)
    return slots_name(version, protocol, at_node=at_node)


def _read(kept: tuple[int, bytes, bytes]) -> tuple[AskedKey, frozenset[bytes]]:
    version, key, joined = kept
    size = TARGET_BYTES[version]
    held = (joined[at : at + size] for at in range(0, len(joined), size))
    return (version, key), frozenset(held)


class ServiceTurn:
    """What is noted while one Service is planned."""

    def __init__(self, beside: Beside, apart: Beside) -> None:
        """`beside`, `apart`: as they were before."""
        self._was_beside, self._was_apart = beside, apart
        self.beside: Beside = {}
        """Who serves flows of UDP out of rotation now."""
        self.apart: Beside = {}
        """Whom clients that are remembered come back to, out of rotation."""
        self.served: defaultdict[tuple[str, End], set[bytes]] = defaultdict(set)
        """By protocol and what is asked for: of a port of the node those of both IP versions."""
        self.touched: set[tuple[str, End]] = set()
        """Where somebody serves no more."""
        self.died: dict[End, tuple[frozenset[End], frozenset[End]]] = {}
        """Who is not expected to answer, and who serves."""
        self.left: dict[AskedKey, frozenset[bytes]] = {}
        """Targets that who asks there may be remembered with, and may not go to."""

    def note(self, protocol: str, frontend: Frontend, key: bytes, serving: ServedPort) -> None:
        """Flows of UDP stick to who left, and those that began while nobody served were sent
        nowhere. A connection of TCP that nobody has answered tries again by itself: elsewhere."""
        if protocol not in _STUCK:
            return
        asked = (frontend.address, frontend.port)
        served, was = serving.rotation, serving.was
        if protocol == "UDP":
            served |= serving.able
            was |= self._was_beside.get((frontend.version, key), _NOBODY)
            if beside := serving.able - serving.rotation:
                self.beside[frontend.version, key] = beside
        left = was - served
        self.served[protocol, asked] |= served
        if left or (protocol == "UDP" and (serving.is_new or (not was and served))):
            self.touched.add((protocol, asked))
        if serving.dead:
            died, now = map(read_target, serving.dead), map(read_target, serving.rotation)
            self.died[asked] = (frozenset(died), frozenset(now))

    def remember(
        self,
        frontend: Frontend,
        key: bytes,
        was: frozenset[bytes],
        now: frozenset[bytes],
        allowed: frozenset[bytes],
    ) -> None:
        """Clients are remembered there, and come back to who is `allowed`. `was`, `now`: who was
        in rotation, and is."""
        at = (frontend.version, key)
        self.leave(at, (was | self._was_apart.get(at, _NOBODY)) - allowed)
        if apart := allowed - now:
            self.apart[at] = apart

    def forget(self, version: int, key: bytes, was: Iterable[bytes]) -> None:
        """Clients are remembered there no more."""
        at = (version, key)
        self.leave(at, self._was_apart.get(at, _NOBODY).union(was))

    def leave(self, at: AskedKey, targets: frozenset[bytes]) -> None:
        """No client that asks there goes to these any more."""
        if targets:
            self.left[at] = self.left.get(at, _NOBODY) | targets

    def end(self, key: bytes) -> None:
        """Nobody is asked there any more: a client that goes on asking from one port would keep
        its flow, and with it an address that is another's by now. Of a port of the node the other
        IP version may be served still."""
        address, protocol, port = read_frontend(key)
        if protocol == "UDP":
            self.touched.add((protocol, (address, port)))
