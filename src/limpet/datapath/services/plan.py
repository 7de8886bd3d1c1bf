"""From Services and their rotations to the elements of the table, Service by Service."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address
from sys import intern
from typing import NamedTuple

from limpet.datapath.services.chains import Chains, Leaving
from limpet.datapath.services.claims import (
    Around,
    Claims,
    Place,
    cluster_address_of,
    rank_of,
)
from limpet.datapath.services.elements import (
    EXTERNAL,
    TARGET_BYTES,
    Choice,
    Frontend,
    choose,
    fill_slots,
    frontend_key,
    frontends,
    in_slots,
    keep_objects,
    slot_keys,
)
from limpet.datapath.services.flows import (
    FlowNotes,
    ServedPort,
    ServiceTurn,
    in_rotation,
    keeps_source,
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
from limpet.datapath.services.sockets.layout import SOCKET_MAPS
from limpet.datapath.services.sockets.plan import SocketPlan
from limpet.datapath.services.state import (
    MAPS,
    VERSIONS,
    ServicesState,
    StaleFlows,
    Surroundings,
)
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here, OfferedPorts
from limpet.services.serving_nodes import ServingNodes
from limpet.services.values import Service, ServiceName, ServicePort

_GOTO, _JUMP = b"goto ", b"jump "
_REFUSED, _BY_HAIRPIN = _GOTO + REFUSE.encode(), _GOTO + HAIRPIN.encode()
_VERDICTS = ("services", "node_ports", "sticky")
"""Maps whose values lead to chains that are made as they are needed."""
_VERDICTS_OF = {
    (at_node, version): intern(f"{'node_ports' if at_node else 'services'}{version}")
    for at_node in (False, True)
    for version in VERSIONS
}
_REMEMBERED = {
    f"{name}{version}": (version, name == "sticky_ports")
    for name in ("sticky", "sticky_ports")
    for version in VERSIONS
}
"""Maps of what clients are remembered for: IP version, and whether it is a port of the node."""
_ASKED_BY = {f"{name}{version}" for name in ("services", "node_ports") for version in VERSIONS}
"""Maps of what is asked for."""
_CLAIMED = ("services", "node_ports", "hairpin", "addresses")
"""Maps with keys that several Services may want."""
_OWN_ADDRESSES = tuple(f"addresses{version}" for version in VERSIONS)
_BASE = base_text()


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
        self.sockets = SocketPlan(None if sockets is None else sockets.ends_flows)
        held = (*MAPS, *(SOCKET_MAPS if sockets is not None else ()))
        self.elements: dict[str, dict[bytes, bytes]] = {name: {} for name in held}
        self._chains = Chains()
        self.touched: dict[str, set[bytes]] = {name: set() for name in held}
        """Keys that may be other than when `settled` was called last."""
        self._leaving = Leaving()
        self._keys: dict[ServiceName, list[tuple[str, tuple[bytes, ...]]]] = {}
        """What each Service has in the maps: keys by the map's name."""
        self._claims = Claims()
        self._lifted: dict[ServiceName, Held] = {}
        """What Services had that have to be planned anew, since another has what was theirs."""
        self._around = Around()
        self._nodes = ServingNodes()
        self._flows = FlowNotes()
        self.troubles: dict[ServiceName, str] = {}
        """Services that are not served as they ask, and why."""

    def surround(self, around: Surroundings) -> None:
        self._leaving.put(around)
        self._around.put(around)

    def want(self) -> ServicesState:
        text = self._leaving.text(self.elements, self._around.reserved.servers)
        tables = {name: self.elements[name] for name in MAPS}
        sockets = {name: held for name, held in self.elements.items() if name in SOCKET_MAPS}
        return ServicesState(_BASE, text, self._chains.texts, tables, sockets)

    @property
    def count(self) -> int:
        """Elements of nftables."""
        return sum(len(self.elements[name]) for name in MAPS)

    @property
    def waiting(self) -> int:
        """How often a Service wants what another has."""
        return self._claims.waiting

    @property
    def services(self) -> Collection[ServiceName]:
        """Services that have elements, or had them until another took some."""
        return self._keys.keys() | self._lifted.keys()

    def serving(self) -> tuple[str, ...]:
        """Nodes with endpoints in rotation, those of the most Services first."""
        return self._nodes.names

    def stale(self) -> StaleFlows:
        return self._flows.told()

    def suspect_flows(self) -> None:
        """For a while packets may have passed without being translated: what they began goes on
        like that, until it is forgotten."""
        self._flows.suspect(self.elements)

    def settled(self) -> None:
        """What was planned is in the kernel."""
        for keys in self.touched.values():
            keys.clear()

    def forgotten(self) -> None:
        """Flows that were stale are gone."""
        self._flows.forgotten()

    def replan(self, names: Iterable[ServiceName], catalog: Catalog, here: Here) -> None:
        """These Services are as the catalog has them."""
        due = dict.fromkeys(names)
        due.update(dict.fromkeys(self._around.look(catalog)))
        while due:
            name = next(iter(due))
            del due[name]
            due.update(dict.fromkeys(self._replan(name, catalog, here)))
            due = due or dict.fromkeys(self.sockets.waiting())
        self._chains.forget()

    # One Service

    def _replan(self, name: ServiceName, catalog: Catalog, here: Here) -> set[ServiceName]:
        """Others that get a frontend by it."""
        service = catalog.service(*name)
        self.troubles.pop(name, None)
        self.sockets.left.discard(name)
        self._around.hairpins.forget(name)
        due = self._around.reserved.note(name, service)
        before = self._lifted.pop(name, None) or self._lift(name)
        self._claims.release(name, _claimed(before))
        after: Held = {}
        nodes = set[str]()
        turn = self._flows.turn(name)
        try:
            if service is not None:
                self._add_all(service, catalog, here, before, after, nodes, turn)
        except (ValueError, KeyError, struct.error) as error:
            # Others are served all the same; what it has claimed so far is given back.
            self.troubles[name] = f"nobody can serve what it says: {error}"
            self._claims.release(name, self._claims.of(name))
            after.clear()
            nodes.clear()
        self._nodes.note(name, nodes)
        for map_name, held in after.items():
            after[map_name] = held = keep_objects(before.get(map_name, _NONE), held)
            self.elements[map_name].update(held)
        if after:
            self._keys[name] = [(map_name, tuple(held)) for map_name, held in after.items()]
            self.sockets.change(name, after, 1)
        for map_name in before.keys() | after.keys():
            old, new = before.get(map_name, _NONE), after.get(map_name, _NONE)
            self.touched[map_name].update(dict(old.items() ^ new.items()) if old else new)
        self._chains.used(_leads_to(after))
        self._chains.left(_leads_to(before))
        for map_name in before.keys() & _REMEMBERED.keys():
            version, at_node = _REMEMBERED[map_name]
            for key in before[map_name].keys() - after.get(map_name, _NONE).keys():
                turn.forget(version, key, in_rotation(before, key, version, at_node=at_node))
        for map_name in before.keys() & _ASKED_BY:
            for key in before[map_name].keys() - after.get(map_name, _NONE).keys():
                if self._claims.holder((map_name, key)) is None:  # else that one says who serves
                    turn.end(key)
        self._flows.take(name, turn)
        for map_name in _OWN_ADDRESSES:
            changed = before.get(map_name, _NONE).keys() ^ after.get(map_name, _NONE).keys()
            due |= self._around.reserved.claimants(changed)
        return (due | self._lifted.keys() | self._claims.settle()) - {name}

    def _lift(self, name: ServiceName) -> Held:
        """What it had; it is in no map any more."""
        held = {
            map_name: dict(zip(keys, map(self.elements[map_name].pop, keys), strict=True))
            for map_name, keys in self._keys.pop(name, ())
        }
        self.sockets.change(name, held, -1)
        return held

    def _add_all(
        self,
        service: Service,
        catalog: Catalog,
        here: Here,
        before: Held,
        after: Held,
        nodes: set[str],
        turn: ServiceTurn,
    ) -> None:
        """Raises: ValueError, KeyError and struct.error for what was written in no map's terms."""
        offered = OfferedPorts(catalog.slices(*service.key))
        for port in service.ports:
            choices: dict[int, Choice] = {}
            for frontend in frontends(service, port):
                version = frontend.version
                if version not in choices:
                    found = offered.candidates(port, version)
                    choices[version] = choose(service, port, found, here)
                    nodes.update(each.node for each in choices[version].rotation.near)
                self._add(service, port, frontend, choices[version], before, after, turn)

    def _refusal(self, place: Place, frontend: Frontend, protocol: str, service: Service) -> str:
        """Why the Service is not asked for there, in words; empty: it is."""
        asked = str(ip_address(frontend.address)) if frontend.address else "a node's"
        if frontend.precedence:
            address = frontend.address
            owner = self._claims.holder((f"addresses{frontend.version}", address))
            if owner is not None and owner != service.key:
                return f"{asked} is {cluster_address_of(owner)}"
            is_external = frontend.precedence == EXTERNAL
            if whose := self._around.reserved.refusal(
                address, protocol, frontend.port, is_external=is_external
            ):
                return f"{asked} {whose}"
        rank = rank_of(frontend, service)
        holder, displaced = self._claims.claim(place, rank)
        if displaced is not None and displaced in self._keys:
            self._lifted[displaced] = self._lift(displaced)
        if holder == service.key:
            return ""
        return (
            f"{asked} port {frontend.port}/{protocol} is of {'/'.join(holder)}, which goes first: "
            "cluster addresses do, then load balancers', then the older Service's"
        )

    def _add(
        self,
        service: Service,
        port: ServicePort,
        frontend: Frontend,
        choice: Choice,
        before: Held,
        after: Held,
        turn: ServiceTurn,
    ) -> None:
        version, at_node, rotation = frontend.version, not frontend.address, choice.rotation
        key = frontend_key(frontend.address, port.protocol, frontend.port)
        verdicts = _VERDICTS_OF[at_node, version]
        slots = slots_name(version, port.protocol, at_node=at_node)
        if trouble := self._refusal((verdicts, key), frontend, port.protocol, service):
            self.troubles[service.key] = trouble
            return
        is_local = frontend.is_outside and service.exposure.is_local
        wanted = rotation.near if frontend.is_outside else rotation.internal(service)
        held = before.get(slots, _NONE)
        was_near, was_local = (in_slots(held, key, start) for start in (0, LOCAL_SLOTS))
        near = fill_slots(wanted, was_near)
        local = fill_slots(rotation.local, was_local) if is_local else []
        was, now = frozenset((*was_near, *was_local)), frozenset((*near, *local))
        keeps_inside = service.is_internal_local and not frontend.is_outside
        sticky = service.affinity_s > 0
        comes_back = now if keeps_inside else now | choice.takes_clients
        if near:
            count = len(local) if is_local else -1
            sources = sources_of(self._around.reserved.sources(frontend), version)
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
            verdict = _REFUSED
        after.setdefault(verdicts, {})[key] = verdict
        if not frontend.is_outside:
            # At its other ports nobody is meant: not to be sent out of the node after all. Who
            # comes with the address of one that is about to go has to have it then.
            others = f"addresses{version}"
            if self._claims.share((others, frontend.address), service.key):
                after.setdefault(others, {})[frontend.address] = _REFUSED
        if self.sockets.is_asked and not frontend.is_outside:
            is_here = sticky and keeps_inside
            members = choice.members(port.protocol, now, comes_back, is_here=is_here)
            planned = self.sockets.elements(key, near, members, service, port, beside=after)
            for name, found in planned.items():
                after.setdefault(name, {}).update(found)
        if {*map(len, near), *map(len, local)} - {TARGET_BYTES[version]}:
            raise ValueError(f"an endpoint's address is none of IPv{version}")
        for start, values in ((0, near), (LOCAL_SLOTS, local)):
            if values:
                keys = slot_keys(key, start, len(values))
                after.setdefault(slots, {}).update(zip(keys, values, strict=True))
        for own in self._around.hairpins.addresses(service.key, choice):
            if self._claims.share((f"hairpin{version}", own + own), service.key):
                after.setdefault(f"hairpin{version}", {})[own + own] = _BY_HAIRPIN
        verdict_before = before.get(verdicts, _NONE).get(key)
        dead: frozenset[bytes] = frozenset()
        if self.sockets.is_asked and port.protocol == "TCP" and not frontend.is_outside:
            dead = frozenset(filter(choice.is_dead, was - now))
        serving = ServedPort(was, now, choice.able, dead, is_new=verdict_before is None)
        turn.note(port.protocol, frontend, key, serving)
        if sticky:
            turn.remember(frontend, key, was, now, comes_back)
            if is_local and verdict_before and not keeps_source(verdict_before):
                turn.leave((version, key), comes_back - {*local})


def _claimed(held: Held) -> list[Place]:
    """Places that other Services may want, too."""
    return [
        (map_name, key)
        for map_name, keys in held.items()
        if map_name.startswith(_CLAIMED)
        for key in keys
    ]


def _leads_to(found: Held) -> list[str]:
    """Names of chains, once for each element."""
    return [
        value[len(_GOTO) :].decode()
        for name, held in found.items()
        if name.startswith(_VERDICTS)
        for value in held.values()
    ]
