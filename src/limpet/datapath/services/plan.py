"""From Services and their rotations to the elements of the table, Service by Service."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from limpet.base.addresses import Address
from limpet.datapath.services.elements import (
    fill_slots,
    frontend_key,
    packed,
    read_target,
    slot_key,
)
from limpet.datapath.services.ruleset import (
    HAIRPIN,
    LOCAL_SLOTS,
    REFUSE,
    REMEMBERING,
    Pick,
    base_text,
    record_name,
    record_rules,
    slots_name,
    sources_of,
    surroundings_text,
)
from limpet.datapath.services.serving_nodes import ServingNodes
from limpet.datapath.services.sockets.layout import SOCKET_MAPS
from limpet.datapath.services.sockets.plan import socket_elements
from limpet.datapath.services.state import (
    MAPS,
    VERSIONS,
    ServicesState,
    StaleFlows,
    Surroundings,
)
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here, Rotation, Target, candidates, rotate
from limpet.services.values import Service, ServiceName, ServicePort

_GOTO, _JUMP = b"goto ", b"jump "
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
        self.chains: dict[str, str] = {}
        self.touched: dict[str, set[bytes]] = {name: set() for name in held}
        """Keys that may be other than when `settled` was called last."""
        self._around = surroundings_text(Surroundings())
        self._keys: dict[ServiceName, list[tuple[str, bytes]]] = {}
        """What each Service has in the maps, frontends first."""
        self._holder: dict[tuple[str, bytes], ServiceName] = {}
        """Whose a frontend is, of two Services that ask for it."""
        self._contested: dict[tuple[str, bytes], set[ServiceName]] = {}
        """Who has come too late."""
        self._nodes = ServingNodes()
        self._stale: dict[str, dict[tuple[bytes, int], frozenset[tuple[bytes, int]]]] = {
            "UDP": {},
            "TCP": {},
        }
        """By protocol: who serves now, where somebody serves no more."""
        self._left: set[bytes] = set()

    def surround(self, around: Surroundings) -> None:
        self._around = surroundings_text(around)

    def want(self) -> ServicesState:
        tables = {name: self.elements[name] for name in MAPS}
        sockets = {name: held for name, held in self.elements.items() if name in SOCKET_MAPS}
        return ServicesState(_BASE, self._around, self.chains, tables, sockets)

    @property
    def count(self) -> int:
        """Elements of nftables."""
        return sum(len(self.elements[name]) for name in MAPS)

    @property
    def services(self) -> Collection[ServiceName]:
        """That have elements."""
        return self._keys.keys()

    def serving(self) -> tuple[str, ...]:
        """Nodes with endpoints in rotation, those of the most Services first."""
        return self._nodes.names

    def stale(self) -> StaleFlows:
        udp, tcp = self._stale["UDP"], self._stale["TCP"]
        return StaleFlows(dict(udp), dict(tcp), frozenset(self._left))

    def settled(self) -> None:
        """What was planned is in the kernel."""
        for keys in self.touched.values():
            keys.clear()

    def forgotten(self) -> None:
        """Flows that were stale are gone."""
        for flows in self._stale.values():
            flows.clear()
        self._left.clear()

    def replan(self, names: Iterable[ServiceName], catalog: Catalog, here: Here) -> None:
        """These Services are as the catalog has them."""
        due = dict.fromkeys(names)
        while due:
            name = next(iter(due))
            del due[name]
            due.update(dict.fromkeys(self._replan(name, catalog, here)))

    # One Service

    def _replan(self, name: ServiceName, catalog: Catalog, here: Here) -> set[ServiceName]:
        """Others that get a frontend by it."""
        service = catalog.service(*name)
        before = {key: self.elements[key[0]].pop(key[1]) for key in self._keys.pop(name, ())}
        after: dict[tuple[str, bytes], bytes] = {}
        nodes: set[str] = set()
        if service is not None:
            for port in service.ports:
                rotations: dict[int, Rotation] = {}
                for frontend in frontends(service, port):
                    version = frontend.version
                    if version not in rotations:
                        found = candidates(catalog.slices(*name), port, version)
                        rotations[version] = rotate(service, found, here)
                        nodes.update(each.node for each in rotations[version].near)
                    self._add(service, port, frontend, rotations[version], before, after)
        self._nodes.note(name, frozenset(nodes))
        for (map_name, key), value in after.items():
            self.elements[map_name][key] = value
        if after:
            self._keys[name] = list(after)
        for each in before.keys() | after.keys():
            if before.get(each) != after.get(each):
                self.touched[each[0]].add(each[1])
        if service is not None and service.affinity_s:
            self._left |= set(before.values()) - set(after.values())
        waiting: set[ServiceName] = set()
        for each in before.keys() - after.keys():
            if self._holder.get(each) == name:
                del self._holder[each]
                waiting |= self._contested.pop(each, set())
        return waiting - {name}

    def _add(
        self,
        service: Service,
        port: ServicePort,
        frontend: Frontend,
        rotation: Rotation,
        before: dict[tuple[str, bytes], bytes],
        after: dict[tuple[str, bytes], bytes],
    ) -> None:
        version, at_node = frontend.version, not frontend.address
        key = frontend_key(frontend.address, port.protocol, frontend.port)
        verdicts = f"{'node_ports' if at_node else 'services'}{version}"
        slots = slots_name(version, port.protocol, at_node=at_node)
        if not self._holds(service, verdicts, key):
            return
        is_local = frontend.is_outside and service.exposure.is_local
        near = _slots(rotation.internal(service), before, slots, key, 0)
        if frontend.is_outside:
            near = _slots(rotation.near, before, slots, key, 0)
        local = _slots(rotation.local, before, slots, key, LOCAL_SLOTS) if is_local else []
        if near:
            sticky = service.affinity_s > 0
            count = len(local) if is_local else -1
            sources = sources_of(frontend.sources, version)
            pick = Pick(version, port.protocol, at_node, len(near), count, sticky, sources)
            self.chains.setdefault(pick.name, pick.rules())
            after[verdicts, key] = _GOTO + pick.name.encode()
            if sticky and version in REMEMBERING:
                kind = (version, port.protocol, service.affinity_s)
                record = record_name(*kind)
                self.chains.setdefault(record, record_rules(*kind))
                remembered = f"{'sticky_ports' if at_node else 'sticky'}{version}"
                after[remembered, key] = _JUMP + record.encode()
        else:
            after[verdicts, key] = _GOTO + REFUSE.encode()
        if self._sockets is not None and not frontend.is_outside:
            ends = self._sockets.ends_flows
            after.update(socket_elements(key, near, service, port, ends_flows=ends))
        for start, values in ((0, near), (LOCAL_SLOTS, local)):
            for number, value in enumerate(values):
                after[slots, slot_key(key, start + number)] = value
        for target in (*rotation.near, *rotation.local):
            if target.is_local:
                self._add_hairpin(service, version, packed(target.address), after)
        if port.protocol in self._stale:
            self._note_stale(port, frontend, (verdicts, slots, key), [*near, *local], before)

    def _add_hairpin(
        self, service: Service, version: int, address: bytes, after: dict[tuple[str, bytes], bytes]
    ) -> None:
        """An endpoint of this node that asks itself has to be asked by another address."""
        name, key = f"hairpin{version}", address + address
        if self._holds(service, name, key):
            after[name, key] = _GOTO + HAIRPIN.encode()

    def _holds(self, service: Service, name: str, key: bytes) -> bool:
        """Of several Services that want one key the first has it until it wants it no more."""
        if self._holder.setdefault((name, key), service.key) == service.key:
            return True
        self._contested.setdefault((name, key), set()).add(service.key)
        return False

    def _note_stale(
        self,
        port: ServicePort,
        frontend: Frontend,
        place: tuple[str, str, bytes],
        values: list[bytes],
        before: dict[tuple[str, bytes], bytes],
    ) -> None:
        """Flows of UDP stick to who left, and those that began while nobody served were sent
        nowhere. A connection of TCP that nobody has answered tries again by itself: elsewhere."""
        verdicts, slots, key = place
        old = before.get((verdicts, key))
        was = {value for (name, k), value in before.items() if name == slots and k[:-4] == key}
        if was - set(values) or (port.protocol == "UDP" and (old is None or (not was and values))):
            now = frozenset(map(read_target, values))
            self._stale[port.protocol][frontend.address, frontend.port] = now


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


def _slots(
    targets: Iterable[Target],
    before: dict[tuple[str, bytes], bytes],
    slots: str,
    key: bytes,
    start: int,
) -> list[bytes]:
    held: list[bytes] = []
    while (value := before.get((slots, slot_key(key, start + len(held))))) is not None:
        held.append(value)
    return fill_slots(targets, held)


def gateways_of(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """The first of each IP version."""
    found: dict[int, Address] = {}
    for each in addresses:
        found.setdefault(each.version, each)
    return tuple(found.values())
