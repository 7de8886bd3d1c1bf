"""From Services and their rotations to the elements of the table, Service by Service."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from sys import intern
from typing import NamedTuple

from limpet.base.addresses import packed
from limpet.datapath.services.chains import Chains, Leaving
from limpet.datapath.services.claims import Claims, Place
from limpet.datapath.services.elements import (
    Served,
    fill_slots,
    frontend_key,
    keep_objects,
    read_frontend,
    read_target,
    slot_key,
    slot_keys,
    target_value,
)
from limpet.datapath.services.ruleset import (
    HAIRPIN,
    LOCAL_SLOTS,
    REFUSE,
    Pick,
    base_text,
    record_name,
    record_rules,
    slots_name,
    sources_of,
)
from limpet.datapath.services.serving_nodes import ServingNodes
from limpet.datapath.services.sockets.layout import SOCKET_MAPS, End
from limpet.datapath.services.sockets.plan import socket_elements
from limpet.datapath.services.state import (
    MAPS,
    VERSIONS,
    ServicesState,
    StaleFlows,
    Surroundings,
)
from limpet.services.catalog import Catalog
from limpet.services.rotation import (
    Candidate,
    Here,
    Rotation,
    candidates,
    may_answer,
    rotate,
)
from limpet.services.values import Service, ServiceName, ServicePort

_GOTO, _JUMP = b"goto ", b"jump "
_VERDICTS = ("services", "node_ports", "sticky")
"""Maps whose values lead to chains that are made as they are needed."""
_VERDICTS_OF = {
    (at_node, version): intern(f"{'node_ports' if at_node else 'services'}{version}")
    for at_node in (False, True)
    for version in VERSIONS
}
_CLAIMED = ("services", "node_ports", "hairpin")
"""Maps with keys that several Services may want."""
_TARGET_BYTES = {4: 8, 6: 20}
_NO_ADDRESS = b""
_BASE = base_text()


class Frontend(NamedTuple):
    """An address and port that is asked for."""

    version: int
    address: bytes
    """Packed; empty: each of the node's."""
    port: int
    is_outside: bool
    """Meant for who comes from outside of the cluster."""
    sources: tuple[str, ...] = ()
    """Prefixes that may ask; empty: all."""


class _Choice(NamedTuple):
    """The choice among a port's endpoints of one family."""

    rotation: Rotation
    found: Sequence[Candidate]
    """All that there are."""
    here: Here

    def is_dead(self, value: bytes) -> bool:
        """Nobody is expected to answer there. `value`: as in maps."""
        return not any(
            target_value(each[0].address, each[1]) == value and may_answer(each, self.here)
            for each in self.found
        )


Held = dict[str, dict[bytes, bytes]]
"""What one Service has in the maps: elements by the map's name."""
_NONE: Mapping[bytes, bytes] = {}


class SocketWishes(NamedTuple):
    """How Services are served at the socket."""

    ends_flows: bool
    """Sockets of UDP that are connected to who serves no more can be ended."""


class Planner:
    """Keeps what should be in the maps; a changed Service costs what that Service costs."""

    def __init__(self, sockets: SocketWishes | None = None) -> None:
        """`sockets`: what is planned for eBPF programs beside nftables; None: nothing."""
        self._sockets = sockets
        held = (*MAPS, *(SOCKET_MAPS if sockets is not None else ()))
        self.elements: dict[str, dict[bytes, bytes]] = {name: {} for name in held}
        self._chains = Chains()
        self.touched: dict[str, set[bytes]] = {name: set() for name in held}
        """Keys that may be other than when `settled` was called last."""
        self._leaving = Leaving()
        self._keys: dict[ServiceName, list[tuple[str, tuple[bytes, ...]]]] = {}
        """What each Service has in the maps: keys by the map's name."""
        self._claims = Claims()
        self._nodes = ServingNodes()
        self._stale: dict[str, dict[End, tuple[bytes, ...]]] = {"UDP": {}, "TCP": {}}
        """By protocol: who serves now, as values of maps, where somebody serves no more."""
        self._dead: dict[End, frozenset[End]] = {}
        self._left: set[bytes] = set()
        self.troubles: dict[ServiceName, str] = {}
        """Services that are not served as they ask, and why."""

    def surround(self, around: Surroundings) -> None:
        self._leaving.put(around)

    def want(self) -> ServicesState:
        text = self._leaving.text(self.elements)
        tables = {name: self.elements[name] for name in MAPS}
        sockets = {name: held for name, held in self.elements.items() if name in SOCKET_MAPS}
        return ServicesState(_BASE, text, self._chains.texts, tables, sockets)

    @property
    def count(self) -> int:
        """Elements of nftables."""
        return sum(len(self.elements[name]) for name in MAPS)

    @property
    def services(self) -> Collection[ServiceName]:
        """Services that have elements."""
        return self._keys.keys()

    def serving(self) -> tuple[str, ...]:
        """Nodes with endpoints in rotation, those of the most Services first."""
        return self._nodes.names

    def stale(self) -> StaleFlows:
        udp, tcp = (Served(dict(self._stale[each])) for each in ("UDP", "TCP"))
        return StaleFlows(udp, tcp, dict(self._dead), frozenset(self._left))

    def suspect_flows(self) -> None:
        """For a while packets may have passed without being translated: what they began goes on
        like that, until it is forgotten."""
        for version in VERSIONS:
            for at_node, verdicts in ((False, "services"), (True, "node_ports")):
                for key in self.elements[f"{verdicts}{version}"]:
                    address, protocol, port = read_frontend(key)
                    if protocol in self._stale:
                        slots = self.elements[slots_name(version, protocol, at_node=at_node)]
                        self._stale[protocol][address, port] = _served(slots, key)

    def settled(self) -> None:
        """What was planned is in the kernel."""
        for keys in self.touched.values():
            keys.clear()

    def forgotten(self) -> None:
        """Flows that were stale are gone."""
        for flows in self._stale.values():
            flows.clear()
        self._dead.clear()
        self._left.clear()

    def replan(self, names: Iterable[ServiceName], catalog: Catalog, here: Here) -> None:
        """These Services are as the catalog has them."""
        due = dict.fromkeys(names)
        while due:
            name = next(iter(due))
            del due[name]
            due.update(dict.fromkeys(self._replan(name, catalog, here)))
        self._chains.forget()

    # One Service

    def _replan(self, name: ServiceName, catalog: Catalog, here: Here) -> set[ServiceName]:
        """Others that get a frontend by it."""
        service = catalog.service(*name)
        self.troubles.pop(name, None)
        before: Held = {}
        for map_name, keys in self._keys.pop(name, ()):
            before[map_name] = dict(zip(keys, map(self.elements[map_name].pop, keys), strict=True))
        after: Held = {}
        nodes, claimed = set[str](), set[Place]()
        try:
            if service is not None:
                self._add_all(service, catalog, here, before, after, nodes)
        except (ValueError, KeyError, struct.error) as error:
            # Others are served all the same; what it has claimed so far is given back.
            self.troubles[name] = f"nobody can serve what it says: {error}"
            claimed = self._claims.of(name)
            after.clear()
            nodes.clear()
            service = None
        self._nodes.note(name, nodes)
        for map_name, held in after.items():
            after[map_name] = held = keep_objects(before.get(map_name, _NONE), held)
            self.elements[map_name].update(held)
        if after:
            self._keys[name] = [(map_name, tuple(held)) for map_name, held in after.items()]
        for map_name in before.keys() | after.keys():
            old, new = before.get(map_name, _NONE), after.get(map_name, _NONE)
            self.touched[map_name].update(dict(old.items() ^ new.items()) if old else new)
        self._chains.used(_leads_to(after))
        self._chains.left(_leads_to(before))
        if service is not None and service.affinity_s:
            self._left |= _values(before) - _values(after)
        left = {
            (map_name, key)
            for map_name, held in before.items()
            if map_name.startswith(_CLAIMED)
            for key in held.keys() - after.get(map_name, _NONE).keys()
        }
        return self._claims.give_back(left | claimed, name)

    def _add_all(
        self,
        service: Service,
        catalog: Catalog,
        here: Here,
        before: Held,
        after: Held,
        nodes: set[str],
    ) -> None:
        """Raises: ValueError, KeyError and struct.error for what was written in no map's terms."""
        for port in service.ports:
            choices: dict[int, _Choice] = {}
            for frontend in frontends(service, port):
                version = frontend.version
                if version not in choices:
                    found = candidates(catalog.slices(*service.key), port, version)
                    rotation = rotate(service, found, here)
                    choices[version] = _Choice(rotation, found, here)
                    nodes.update(each.node for each in rotation.near)
                self._add(service, port, frontend, choices[version], before, after)

    def _add(
        self,
        service: Service,
        port: ServicePort,
        frontend: Frontend,
        choice: _Choice,
        before: Held,
        after: Held,
    ) -> None:
        version, at_node, rotation = frontend.version, not frontend.address, choice.rotation
        key = frontend_key(frontend.address, port.protocol, frontend.port)
        verdicts = _VERDICTS_OF[at_node, version]
        slots = slots_name(version, port.protocol, at_node=at_node)
        if (holder := self._claims.claim((verdicts, key), service.key)) != service.key:
            asked = str(ip_address(frontend.address)) if frontend.address else "a node's"
            self.troubles[service.key] = (
                f"{asked} port {frontend.port}/{port.protocol} is of {'/'.join(holder)}, which has "
                "asked for it before"
            )
            return
        is_local = frontend.is_outside and service.exposure.is_local
        wanted = rotation.near if frontend.is_outside else rotation.internal(service)
        held = before.get(slots, _NONE)
        was_near, was_local = (_in_slots(held, key, start) for start in (0, LOCAL_SLOTS))
        near = fill_slots(wanted, was_near)
        local = fill_slots(rotation.local, was_local) if is_local else []
        if near:
            sticky = service.affinity_s > 0
            count = len(local) if is_local else -1
            sources = sources_of(frontend.sources, version)
            pick = Pick(version, port.protocol, at_node, len(near), count, sticky, sources)
            name = pick.name
            if name not in self._chains.texts:
                self._chains.texts[name] = pick.rules()
            verdict = _GOTO + name.encode()
            if sticky:
                kind = (version, port.protocol, service.affinity_s)
                record = record_name(*kind)
                if record not in self._chains.texts:
                    self._chains.texts[record] = record_rules(*kind)
                remembered = f"{'sticky_ports' if at_node else 'sticky'}{version}"
                after.setdefault(remembered, {})[key] = _JUMP + record.encode()
        else:
            verdict = _GOTO + REFUSE.encode()
        after.setdefault(verdicts, {})[key] = verdict
        if self._sockets is not None and not frontend.is_outside:
            ends = self._sockets.ends_flows
            for name, found in socket_elements(key, near, service, port, ends_flows=ends).items():
                after.setdefault(name, {}).update(found)
        if {*map(len, near), *map(len, local)} - {_TARGET_BYTES[version]}:
            raise ValueError(f"an endpoint's address is none of IPv{version}")
        for start, values in ((0, near), (LOCAL_SLOTS, local)):
            if values:
                keys = slot_keys(key, start, len(values))
                after.setdefault(slots, {}).update(zip(keys, values, strict=True))
        for address in {
            each.address for each in (*rotation.near, *rotation.local) if each.is_local
        }:
            self._add_hairpin(service, version, packed(address), after)
        if port.protocol in self._stale:
            is_new = key not in before.get(verdicts, _NONE)
            was, now = {*was_near, *was_local}, [*near, *local]
            self._note_stale(port, frontend, was, now, choice, is_new=is_new)

    def _add_hairpin(self, service: Service, version: int, address: bytes, after: Held) -> None:
        """An endpoint of this node that asks itself has to be asked by another address."""
        name, key = f"hairpin{version}", address + address
        if self._claims.claim((name, key), service.key) == service.key:
            after.setdefault(name, {})[key] = _GOTO + HAIRPIN.encode()

    def _note_stale(
        self,
        port: ServicePort,
        frontend: Frontend,
        was: set[bytes],
        values: list[bytes],
        choice: _Choice,
        *,
        is_new: bool,
    ) -> None:
        """Flows of UDP stick to who left, and those that began while nobody served were sent
        nowhere. A connection of TCP that nobody has answered tries again by itself: elsewhere.

        `was`, `values`: who served before, and who does now."""
        left, asked = was - set(values), (frontend.address, frontend.port)
        if left or (port.protocol == "UDP" and (is_new or (not was and values))):
            self._stale[port.protocol][asked] = tuple(dict.fromkeys(values))
            if self._sockets is not None and port.protocol == "TCP" and not frontend.is_outside:
                died = {read_target(each) for each in left if choice.is_dead(each)}
                now = map(read_target, values)
                if dead := (self._dead.pop(asked, frozenset()) | died).difference(now):
                    self._dead[asked] = dead


def frontends(service: Service, port: ServicePort) -> Iterator[Frontend]:
    """By which addresses and ports a port of a Service is asked for; each once."""
    exposure = service.exposure
    versions = set()
    for address in service.addresses:
        key = packed(address)
        versions.add(_version(key))
        yield Frontend(_version(key), key, port.port, False)
    seen = set(service.addresses)
    for address in (*exposure.external_ips, *exposure.load_balancer_ips):
        if address not in seen:
            seen.add(address)
            is_balanced = address in exposure.load_balancer_ips
            sources = exposure.source_ranges if is_balanced else ()
            yield Frontend(_version(key := packed(address)), key, port.port, True, sources)
    if port.node_port and not service.is_headless:
        for version in VERSIONS:
            if version in versions:
                yield Frontend(version, _NO_ADDRESS, port.node_port, True)


def _version(address: bytes) -> int:
    return 4 if len(address) == 4 else 6


def _served(slots: Mapping[bytes, bytes], key: bytes) -> tuple[bytes, ...]:
    return tuple({x: None for start in (0, LOCAL_SLOTS) for x in _in_slots(slots, key, start)})


def _in_slots(slots: Mapping[bytes, bytes], key: bytes, start: int) -> list[bytes]:
    held: list[bytes] = []
    while (value := slots.get(slot_key(key, start + len(held)))) is not None:
        held.append(value)
    return held


def _leads_to(found: Held) -> list[str]:
    """Names of chains, once for each element."""
    return [
        value[len(_GOTO) :].decode()
        for name, held in found.items()
        if name.startswith(_VERDICTS)
        for value in held.values()
    ]


def _values(found: Held) -> set[bytes]:
    return {value for held in found.values() for value in held.values()}
