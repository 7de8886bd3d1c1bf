"""Endpoints of a headless Service: by their names, by their addresses, and the nearest first.

A change costs what the slices cost that changed. What is asked for is taken from the nearest on,
and no more is looked at than is wanted, however many endpoints there are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from heapq import merge
from ipaddress import ip_address
from itertools import groupby, islice
from typing import NamedTuple, TypeVar

from limpet.services.rotation import OWN_NODE, Here
from limpet.services.values import Endpoint, EndpointSlice, Service

FAMILIES = (4, 6)
K = TypeVar("K")


class HeadlessEndpoint(NamedTuple):
    """An endpoint, and where it is written: in this order they come where they are equally near."""

    piece: str
    """Name of its slice."""
    position: int
    endpoint: Endpoint

    @property
    def hostname(self) -> str:
        """Its own, in small letters, or one made of its address."""
        address = self.endpoint.address.lower()
        return self.endpoint.hostname.lower() or address.replace(".", "-").replace(":", "-")


Pieces = dict[str, list[HeadlessEndpoint]]
"""By slice."""


class _Pool:
    """Endpoints of one family, all of them ready or none."""

    def __init__(self) -> None:
        self.pieces: Pieces = {}
        self.by_node: dict[str, Pieces] = {}

    def put(self, each: HeadlessEndpoint) -> None:
        for pieces in (self.pieces, self.by_node.setdefault(each.endpoint.node, {})):
            pieces.setdefault(each.piece, []).append(each)

    def drop(self, piece: str) -> None:
        for each in self.pieces.pop(piece, ()):
            node = each.endpoint.node
            if (pieces := self.by_node.get(node)) is not None:
                pieces.pop(piece, None)
                if not pieces:
                    del self.by_node[node]

    def nearest(self, here: Here, pieces: Container[str] | None) -> Iterator[HeadlessEndpoint]:
        """Those that nobody doubts; `pieces`: of these slices alone."""
        known = {**here.distances, **({here.node: OWN_NODE} if here.node else {})}
        told = [node for node in known if node in self.by_node]
        told.sort(key=known.__getitem__)
        for _, nodes in groupby(told, key=known.__getitem__):
            heard = [x for x in nodes if x not in here.silent or x == here.node]
            near = merge(*(_in_order(self.by_node[node], pieces) for node in heard))
            yield from (each for each in near if each.endpoint.address not in here.gone)
        if len(told) < len(self.by_node):
            for each in _in_order(self.pieces, pieces):
                if each.endpoint.node not in known and not here.doubts(each.endpoint):
                    yield each

    def doubted(self, here: Here, pieces: Container[str] | None) -> Iterator[HeadlessEndpoint]:
        """All others, in the order of the slices."""
        if here.silent or here.gone:
            for each in _in_order(self.pieces, pieces):
                if here.doubts(each.endpoint):
                    yield each


def _in_order(held: Pieces, pieces: Container[str] | None) -> Iterator[HeadlessEndpoint]:
    for name in sorted(held):
        if pieces is None or name in pieces:
            yield from held[name]


class HeadlessService:
    """Endpoints that are told: ready ones, and those that were ready before the server could not
    hear their nodes; of a Service that wants them in any state, all."""

    def __init__(self, *, in_any_state: bool) -> None:
        self.in_any_state = in_any_state
        self.by_address: dict[str, list[HeadlessEndpoint]] = {}
        """By the address in its usual spelling."""
        self._slices: dict[str, EndpointSlice] = {}
        self._by_hostname: dict[tuple[int, str], list[HeadlessEndpoint]] = {}
        """Those with a name of their own, by their family and that name."""
        self._pools = {(family, ready): _Pool() for family in FAMILIES for ready in (True, False)}
        self._by_port: dict[str, dict[str, dict[str, tuple[int, ...]]]] = {}
        """Numbers of ports by protocol, then by name, then by slice."""

    def update(self, slices: Iterable[EndpointSlice]) -> tuple[set[str], set[str]]:
        """Addresses that have come, and those that are gone. What is the same as before costs
        nothing."""
        now = {each.name: each for each in slices}
        touched: set[str] = set()
        before: set[str] = set()
        for name, piece in [*self._slices.items()]:
            if now.get(name) is not piece:
                addresses = {as_usual(each.address) for each in piece.endpoints}
                before |= addresses & self.by_address.keys()
                touched |= addresses
                self._drop(name, addresses)
        for name, piece in now.items():
            if name not in self._slices:
                touched |= {as_usual(each.address) for each in piece.endpoints}
                self._put(piece)
        after = touched & self.by_address.keys()
        return after - before, before - after

    def _put(self, piece: EndpointSlice) -> None:
        self._slices[piece.name] = piece
        told = [
            HeadlessEndpoint(piece.name, position, endpoint)
            for position, endpoint in enumerate(piece.endpoints)
            if endpoint.is_ready or endpoint.is_doubted or self.in_any_state
        ]
        if not piece.version or not told:
            return
        for each in told:
            family = _family(each.endpoint)
            self.by_address.setdefault(as_usual(each.endpoint.address), []).append(each)
            if each.endpoint.hostname:
                self._by_hostname.setdefault((family, each.hostname), []).append(each)
            self._pools[family, each.endpoint.is_ready].put(each)
        numbers: dict[tuple[str, str], dict[int, None]] = {}
        for port in piece.ports:
            if port.name:
                numbers.setdefault((port.protocol, port.name), {})[port.port] = None
        for (protocol, name), found in numbers.items():
            names = self._by_port.setdefault(protocol, {})
            names.setdefault(name, {})[piece.name] = tuple(found)

    def _drop(self, name: str, addresses: Iterable[str]) -> None:
        piece = self._slices.pop(name)
        for pool in self._pools.values():
            pool.drop(name)
        for address in addresses:
            _leave_out(self.by_address, address, name)
        hosts = {(_family(x), x.hostname.lower()) for x in piece.endpoints if x.hostname}
        for host in hosts:
            _leave_out(self._by_hostname, host, name)
        for port in piece.ports:
            names = self._by_port.get(port.protocol, {})
            if port.name in names:
                names[port.name].pop(name, None)
                if not names[port.name]:
                    del names[port.name]

    # Asking

    def has_ports(self, protocol: str) -> bool:
        """Some have ports of the protocol that have names."""
        return bool(self._by_port.get(protocol))

    def ports(self, protocol: str, name: str) -> dict[str, tuple[int, ...]]:
        """Numbers of the ports of that name, by slice."""
        return self._by_port.get(protocol, {}).get(name, {})

    def place(self, address: str, here: Here) -> tuple[bool, int]:
        """How near the address is: equal ones are as good as each other."""
        endpoint = self.by_address[address][-1].endpoint
        return here.doubts(endpoint), here.distance(endpoint)

    def nearest(
        self, here: Here, most: int, pieces: Container[str] | None = None
    ) -> list[HeadlessEndpoint]:
        """The nearest first, `most` of each family, and none that is known to be dead, unless all
        of its family are: a doubt is no reason to say nothing, and what asks for addresses of one
        family is helped by none of the other. Whose Service wants them in any state, gets those
        last. `pieces`: of these slices alone."""
        found: list[HeadlessEndpoint] = []
        for family in FAMILIES:
            both = [self._pools[family, is_ready] for is_ready in (True, False)]
            if not self.in_any_state:
                both = both[:1] if both[0].pieces else both[1:]
            found += self._of(both, here, most, pieces)
        return sorted(found, key=lambda each: (*self._rank(each, here), each[:2]))

    def _of(
        self, pools: list[_Pool], here: Here, most: int, pieces: Container[str] | None
    ) -> list[HeadlessEndpoint]:
        def place(each: HeadlessEndpoint) -> tuple[int, tuple[str, int]]:
            return here.distance(each.endpoint), (each.piece, each.position)

        streams = (pool.nearest(here, pieces) for pool in pools)
        found = list(islice(merge(*streams, key=place), most))
        if len(found) < most and (self.in_any_state or not found):
            others = merge(*(pool.doubted(here, pieces) for pool in pools), key=lambda x: x[:2])
            found += islice(others, most - len(found))
        return found

    def named(self, hostname: str, here: Here, most: int) -> list[HeadlessEndpoint]:
        """Those that have the name, as `nearest`; of each family the first `most` are looked at."""
        found: list[HeadlessEndpoint] = []
        for family in FAMILIES:
            mine = [
                *islice(self._by_hostname.get((family, hostname), ()), most),
                *self._without_a_name(hostname, family, most),
            ]
            if not self.in_any_state:
                mine = [each for each in mine if each.endpoint.is_ready] or mine
                mine = [each for each in mine if not here.doubts(each.endpoint)] or mine
            found += mine
        return sorted(found, key=lambda each: (*self._rank(each, here), each[:2]))

    def _without_a_name(self, hostname: str, family: int, most: int) -> Iterator[HeadlessEndpoint]:
        """Those whose address the name is made of."""
        try:
            address = str(ip_address(hostname.replace("-", "." if family == 4 else ":")))
        except ValueError:
            return
        for each in islice(self.by_address.get(address, ()), most):
            if not each.endpoint.hostname and each.hostname == hostname:
                yield each

    def _rank(self, each: HeadlessEndpoint, here: Here) -> tuple[bool, int]:
        return here.doubts(each.endpoint) and self.in_any_state, here.distance(each.endpoint)


def as_usual(address: str) -> str:
    """One address in one spelling."""
    return str(ip_address(address)) if ":" in address else address


def _family(endpoint: Endpoint) -> int:
    return 6 if ":" in endpoint.address else 4


def is_indexed(service: Service) -> bool:
    """It has endpoints with names of their own."""
    return service.is_headless and not service.external_name


def _leave_out(held: dict[K, list[HeadlessEndpoint]], key: K, piece: str) -> None:
    left = [each for each in held.get(key, ()) if each.piece != piece]
    if left:
        held[key] = left
    else:
        held.pop(key, None)
