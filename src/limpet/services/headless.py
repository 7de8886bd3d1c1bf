"""Endpoints of a headless Service: by their names, by their addresses, and the nearest first.

A change costs what the slices cost that changed. What is asked for is taken from the nearest on,
and no more is looked at than is wanted, however many endpoints there are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
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


Ordered = list[HeadlessEndpoint]
"""In order of slices and positions, so that those of one slice stand together."""


class SlicesOfPort(dict[str, tuple[int, ...]]):
    """Numbers of the ports of one name, by slice."""

    def __init__(self) -> None:
        self.order: list[str] = []
        """Names of the slices, sorted."""

    def put(self, piece: str, numbers: tuple[int, ...]) -> None:
        insort(self.order, piece)
        self[piece] = numbers

    def drop(self, piece: str) -> None:
        if self.pop(piece, None) is not None:
            del self.order[bisect_left(self.order, piece)]


class _Pool:
    """Endpoints of one family, all of them ready or none."""

    def __init__(self) -> None:
        self.all: Ordered = []
        self.by_node: dict[str, Ordered] = {}

    def put(self, block: Ordered) -> None:
        """Those of one slice, in their order."""
        _put(self.all, block)
        nodes: dict[str, Ordered] = {}
        for each in block:
            nodes.setdefault(each.endpoint.node, []).append(each)
        for node, mine in nodes.items():
            _put(self.by_node.setdefault(node, []), mine)

    def drop(self, piece: str) -> None:
        for node in {each.endpoint.node for each in _take(self.all, piece)}:
            _take(self.by_node[node], piece)
            if not self.by_node[node]:
                del self.by_node[node]

    def nearest(self, here: Here, of: SlicesOfPort | None) -> Iterator[HeadlessEndpoint]:
        """Those that nobody doubts; `of`: of these slices alone."""
        known = {**here.distances, **({here.node: OWN_NODE} if here.node else {})}
        told = [node for node in known if node in self.by_node]
        told.sort(key=known.__getitem__)
        for _, nodes in groupby(told, key=known.__getitem__):
            heard = [x for x in nodes if x not in here.silent or x == here.node]
            yield from self._in_order(heard, here, of)
        others = len(self.by_node) - len(told)
        if others * _FEW < len(self.all):
            unknown = self.by_node.keys() - known.keys() if others else ()
            yield from self._in_order([x for x in unknown if x not in here.silent], here, of)
            return
        for each in _those_of(self.all, of):
            if each.endpoint.node not in known and not here.doubts(each.endpoint):
                yield each

    def _in_order(
        self, nodes: Iterable[str], here: Here, of: SlicesOfPort | None
    ) -> Iterator[HeadlessEndpoint]:
        """Those at nodes that answer."""
        for each in merge(*(_those_of(self.by_node[node], of) for node in nodes)):
            if each.endpoint.address not in here.gone:
                yield each

    def doubted(self, here: Here, of: SlicesOfPort | None) -> Iterator[HeadlessEndpoint]:
        """All others, in the order of the slices."""
        if here.silent or here.gone:
            for each in _those_of(self.all, of):
                if here.doubts(each.endpoint):
                    yield each


_FEW = 8
"""What is so many times fewer is gone through by looking for each in what is more."""
_BEHIND = 1 << 62
"""Behind all positions in a slice."""


def _those_of(held: Ordered, of: SlicesOfPort | None) -> Iterator[HeadlessEndpoint]:
    if of is None:
        return iter(held)
    if len(of) * _FEW < len(held):
        return (each for piece in of.order for each in held[_range(held, piece)])
    return (each for each in held if each.piece in of)


def _range(held: Ordered, piece: str) -> slice:
    return slice(bisect_left(held, (piece,)), bisect_left(held, (piece, _BEHIND)))


def _put(held: Ordered, block: Ordered) -> None:
    """What is of one slice stands together already."""
    at = bisect_left(held, block[0])
    held[at:at] = block


def _take(held: Ordered, piece: str) -> Ordered:
    """Those of the slice, which are in it no more."""
    where = _range(held, piece)
    taken = held[where]
    del held[where]
    return taken


class HeadlessService:
    """Endpoints that are told: ready ones, and those that were ready before the server could not
    hear their nodes; of a Service that wants them in any state, all."""

    def __init__(self, *, in_any_state: bool) -> None:
        self.in_any_state = in_any_state
        self.by_address: dict[str, Ordered] = {}
        """By the address in its usual spelling."""
        self._slices: dict[str, EndpointSlice] = {}
        self._by_hostname: dict[tuple[int, str], Ordered] = {}
        """Those with a name of their own, by their family and that name."""
        self._pools = {(family, ready): _Pool() for family in FAMILIES for ready in (True, False)}
        self._by_port: dict[str, dict[str, SlicesOfPort]] = {}
        """By protocol, then by name."""

    def update(self, slices: Iterable[EndpointSlice]) -> tuple[set[str], set[str]]:
        """As `change`, of all slices that there are."""
        now = {each.name: each for each in slices}
        gone: dict[str, EndpointSlice | None] = dict.fromkeys(self._slices.keys() - now.keys())
        return self.change({**gone, **now})

    def change(self, slices: Mapping[str, EndpointSlice | None]) -> tuple[set[str], set[str]]:
        """Addresses that have come, and those that are gone. `slices`: by their names, all that may
        be others now; None: it is no more. What is the same as before costs nothing."""
        touched: set[str] = set()
        before: set[str] = set()
        changed = [
            (name, piece) for name, piece in slices.items() if self._slices.get(name) is not piece
        ]
        for name, _ in changed:
            if (old := self._slices.get(name)) is not None:
                addresses = _addresses(old)
                before |= addresses & self.by_address.keys()
                touched |= addresses
                self._drop(name, addresses)
        for _, piece in changed:
            if piece is not None:
                touched |= _addresses(piece)
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
        by_address: dict[str, Ordered] = {}
        by_hostname: dict[tuple[int, str], Ordered] = {}
        pools: dict[tuple[int, bool], Ordered] = {}
        for each in told:
            family = _family(each.endpoint)
            by_address.setdefault(as_usual(each.endpoint.address), []).append(each)
            if each.endpoint.hostname:
                by_hostname.setdefault((family, each.hostname), []).append(each)
            pools.setdefault((family, each.endpoint.is_ready), []).append(each)
        for address, block in by_address.items():
            _put(self.by_address.setdefault(address, []), block)
        for host, block in by_hostname.items():
            _put(self._by_hostname.setdefault(host, []), block)
        for which, block in pools.items():
            self._pools[which].put(block)
        numbers: dict[tuple[str, str], dict[int, None]] = {}
        for port in piece.ports:
            if port.name:
                numbers.setdefault((port.protocol, port.name), {})[port.port] = None
        for (protocol, name), found in numbers.items():
            names = self._by_port.setdefault(protocol, {})
            names.setdefault(name, SlicesOfPort()).put(piece.name, tuple(found))

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
                names[port.name].drop(name)
                if not names[port.name]:
                    del names[port.name]

    # Asking

    def has_ports(self, protocol: str) -> bool:
        """Some have ports of the protocol that have names."""
        return bool(self._by_port.get(protocol))

    def ports(self, protocol: str, name: str) -> SlicesOfPort:
        """Numbers of the ports of that name, by slice."""
        return self._by_port.get(protocol, {}).get(name) or SlicesOfPort()

    def place(self, address: str, here: Here) -> tuple[bool, int]:
        """How near the address is: equal ones are as good as each other."""
        endpoint = self.by_address[address][-1].endpoint
        return here.doubts(endpoint), here.distance(endpoint)

    def nearest(
        self, here: Here, most: int, of: SlicesOfPort | None = None
    ) -> list[HeadlessEndpoint]:
        """The nearest first, `most` of each family, and none that is known to be dead, unless all
        of its family are: a doubt is no reason to say nothing, and what asks for addresses of one
        family is helped by none of the other. Whose Service wants them in any state, gets those
        last. `of`: of these slices alone."""
        found: list[HeadlessEndpoint] = []
        for family in FAMILIES:
            both = [self._pools[family, is_ready] for is_ready in (True, False)]
            if not self.in_any_state:
                both = both[:1] if both[0].all else both[1:]
            found += self._of(both, here, most, of)
        return sorted(found, key=lambda each: (*self._rank(each, here), each[:2]))

    def _of(
        self, pools: list[_Pool], here: Here, most: int, of: SlicesOfPort | None
    ) -> list[HeadlessEndpoint]:
        def place(each: HeadlessEndpoint) -> tuple[int, tuple[str, int]]:
            return here.distance(each.endpoint), (each.piece, each.position)

        streams = (pool.nearest(here, of) for pool in pools)
        found = list(islice(merge(*streams, key=place), most))
        if len(found) < most and (self.in_any_state or not found):
            others = merge(*(pool.doubted(here, of) for pool in pools), key=lambda x: x[:2])
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


def named_among(
    slices: Iterable[EndpointSlice], hostname: str, most: int, *, in_any_state: bool
) -> HeadlessService:
    """Endpoints of that name among the first `most` of these slices: of a Service that has a
    cluster address, whose endpoints are seldom asked for one by one, no index is kept."""
    found = HeadlessService(in_any_state=in_any_state)
    addresses = {hostname.replace("-", each) for each in ".:"}
    for piece in slices:
        some = piece.endpoints[: max(most, 0)]
        most -= len(some)
        mine = tuple(
            each
            for each in some
            if each.hostname.lower() == hostname
            or (not each.hostname and each.address.lower() in addresses)
        )
        if mine:
            some_of_it = EndpointSlice(*piece.key, piece.service, piece.version, (), mine)
            found.change({piece.name: some_of_it})
        if most <= 0:
            break
    return found


def _addresses(piece: EndpointSlice) -> set[str]:
    """Those of a slice of names (FQDN) are none, whatever they look like."""
    return {as_usual(each.address) for each in piece.endpoints} if piece.version else set()


def as_usual(address: str) -> str:
    """One address in one spelling."""
    return str(ip_address(address)) if ":" in address else address


def _family(endpoint: Endpoint) -> int:
    return 6 if ":" in endpoint.address else 4


def is_indexed(service: Service) -> bool:
    """It has endpoints with names of their own."""
    return service.is_headless and not service.external_name


def _leave_out(held: dict[K, Ordered], key: K, piece: str) -> None:
    if (found := held.get(key)) is not None:
        _take(found, piece)
        if not found:
            del held[key]
