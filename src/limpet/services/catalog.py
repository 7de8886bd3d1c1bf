"""Every Service and EndpointSlice that the node knows of, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice

from limpet.base.bounds.words import LEFT_OUT_OBJECTS
from limpet.services.recent_slices import RecentSlices
from limpet.services.targets import Targets
from limpet.services.values import EndpointSlice, Service, ServiceName

Item = Service | EndpointSlice
_NO_SLICES: dict[str, EndpointSlice] = {}
_FEW = 3


class Catalog:
    """Changes by one object cost what that object costs, however many there are.

    Not for several threads. What changes it tells which Services are others now.
    """

    def __init__(self) -> None:
        self._services: dict[ServiceName, Service] = {}
        self._slices: dict[ServiceName, dict[str, EndpointSlice]] = {}
        """By their Service, then by their own name."""
        self._service_of: dict[ServiceName, ServiceName] = {}
        """By the slice's own name."""
        self._by_address: dict[str, ServiceName] = {}
        self._zoned, self._zone = "", ""
        """The node whose zone was asked for, and what endpoints there have said last."""
        self._incomplete: dict[tuple[type[Item], ServiceName], Item] = {}
        """What of them no node can use; few, if any."""
        self._targets = Targets()
        self.recent = RecentSlices()
        self.damage = ""
        """Why there may be more than what was read from the disk, until an API server has told all;
        empty: there is not."""
        self.has_part = False
        """Some of a damaged file could be read, and may stand in its place."""
        self.is_part_served = False
        """What the kernel has was made of that."""

    # Asking

    def __len__(self) -> int:
        """Services."""
        return len(self._services)

    def __iter__(self) -> Iterator[Service]:
        return iter(self._services.values())

    def service(self, namespace: str, name: str) -> Service | None:
        return self._services.get((namespace, name))

    def slices(self, namespace: str, name: str) -> Iterable[EndpointSlice]:
        """Slices of a Service, also of one that is not there (yet), in the order of their names."""
        found = self._slices.get((namespace, name), _NO_SLICES)
        return [found[each] for each in sorted(found)]

    def piece(self, service: ServiceName, name: str) -> EndpointSlice | None:
        """One slice of the Service."""
        return self._slices.get(service, _NO_SLICES).get(name)

    def all_slices(self) -> Iterator[EndpointSlice]:
        for slices in self._slices.values():
            yield from slices.values()

    def by_address(self, address: str) -> Service | None:
        """The Service that has the cluster address, as it is written there."""
        key = self._by_address.get(address)
        return None if key is None else self._services.get(key)

    def zone_of(self, node: str) -> str:
        """Empty: no endpoint has said so far in which zone that node is. Of one node it is known at
        once: of all, whoever may write slices could have any number kept."""
        if node != self._zoned:
            self._zoned, self._zone = node, ""
            for each in self.all_slices():
                self._hear_zone(each)
        return self._zone

    @property
    def incomplete(self) -> Mapping[tuple[type[Item], ServiceName], Item]:
        """Those of which something is left out, since no node can use it."""
        return self._incomplete

    def incomplete_of(self, service: Service) -> list[Item]:
        """It and its slices, those of which something is left out."""
        if not self._incomplete:
            return []
        found: list[Item] = [service, *self.slices(*service.key)]
        return [each for each in found if each.left_out]

    def has(self, kind: type[Item], key: ServiceName) -> bool:
        """Whether there is one of that name, whatever it is like."""
        return key in (self._services if kind is Service else self._service_of)

    def knows(self, item: Item) -> bool:
        """It is there, just as it is."""
        if isinstance(item, Service):
            return self._services.get(item.key) == item
        service = self._service_of.get(item.key)
        return service is not None and self._slices[service].get(item.name) == item

    def refusal(self, item: Item) -> str:
        """Why there is no room for it beside the others, in words; empty: there is."""
        if isinstance(item, Service):
            return self._targets.refusal(item)
        before = self._slices.get(item.service_key, _NO_SLICES).get(item.name)
        return self._targets.refusal_of_slice(item, before)

    @property
    def targets(self) -> int:
        """How much room all of it takes, as bounds count it."""
        return self._targets.in_all

    # Changing

    def put(self, item: Item) -> tuple[ServiceName, ...]:
        """Services that are others by this; empty: it was known."""
        if self.knows(item):
            return ()
        if isinstance(item, Service):
            self._forget_addresses(item.key)
            self._services[item.key] = item
            self._targets.put(item)
            self._note_left_out(item)
            for address in item.addresses:
                self._by_address[address] = item.key
            return (item.key,)
        before = self.remove_slice(*item.key)
        self._slices.setdefault(item.service_key, {})[item.name] = item
        self._service_of[item.key] = item.service_key
        self.recent.note(item.service_key, item.name)
        self._targets.put_slice(item)
        self._note_left_out(item)
        if self._zoned:
            self._hear_zone(item)
        return tuple({*before, item.service_key})

    def remove_service(self, namespace: str, name: str) -> tuple[ServiceName, ...]:
        """As `put`. Its slices stay: they go by themselves, or another Service gets them."""
        key = (namespace, name)
        self._forget_addresses(key)
        self._incomplete.pop((Service, key), None)
        self._targets.remove(key)
        return () if self._services.pop(key, None) is None else (key,)

    def remove_slice(self, namespace: str, name: str) -> tuple[ServiceName, ...]:
        """As `put`."""
        service = self._service_of.pop((namespace, name), None)
        if service is None:
            return ()
        self._incomplete.pop((EndpointSlice, (namespace, name)), None)
        self.recent.note(service, name)
        slices = self._slices[service]
        self._targets.remove_slice(slices.pop(name))
        if not slices:
            del self._slices[service]
        return (service,)

    def _hear_zone(self, item: EndpointSlice) -> None:
        for endpoint in item.endpoints:
            if endpoint.node == self._zoned and endpoint.zone:
                self._zone = endpoint.zone

    def _note_left_out(self, item: Item) -> None:
        if item.left_out:
            self._incomplete[type(item), item.key] = item
        else:
            self._incomplete.pop((type(item), item.key), None)

    def _forget_addresses(self, key: ServiceName) -> None:
        old = self._services.get(key)
        for address in old.addresses if old is not None else ():
            if self._by_address.get(address) == key:
                del self._by_address[address]


def called(item: Item) -> str:
    """For a person: `EndpointSlice shop/web-1`."""
    return f"{type(item).__name__} {'/'.join(item.key)}"


def left_out_in_words(items: Iterable[Item], unread: Iterable[str] = ()) -> list[str]:
    """A sentence for each object of which something is left out, behind those that cannot be read
    at all; the first so many."""
    found = sorted(
        (each for each in items if each.left_out), key=lambda each: (each.key, called(each))
    )
    words = (f"of {called(each)} is left out: {'; '.join(each.left_out)}" for each in found)
    return list(islice(chain(unread, words), LEFT_OUT_OBJECTS.most))


def left_out_in_short(items: Collection[Item], unread: Collection[str] = ()) -> tuple[str, ...]:
    """The first few of these sentences, and how many objects there are more."""
    more = len(items) + len(unread) - _FEW
    words = left_out_in_words(items, unread)[:_FEW]
    objects = "object" if more == 1 else "objects"
    return (*words, f"and of {more} more {objects}") if more > 0 else tuple(words)
