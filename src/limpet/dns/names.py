"""What the cluster's names lead to, by the DNS-based service discovery of Kubernetes, version 1.1.

Source: docs/specification.md of the project kubernetes/dns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from ipaddress import ip_address
from itertools import islice, takewhile

from limpet.base.addresses import Address
from limpet.base.bounds.strangers import DNS_ADDRESSES, DNS_NAMES, DNS_PORTS
from limpet.base.bounds.tenants import DNS_ALIASES
from limpet.dns import wire
from limpet.dns.address_names import REVERSE_ZONES, reversed_address, undashed_address
from limpet.services.catalog import Catalog
from limpet.services.headless import FAMILIES, HeadlessService, is_indexed, named_among
from limpet.services.rotation import Here
from limpet.services.values import Endpoint, Service, ServiceName

Labels = tuple[bytes, ...]

SCHEMA_VERSION = "1.1.0"
TTL_S = 5
"""An endpoint that has gone is asked for no longer than that."""
_PROTOCOLS = (b"_tcp", b"_udp", b"_sctp")
_SVC, _POD = b"svc", b"pod"


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a zone file has it; names in `value` end in a dot."""

    name: Labels
    type: int
    value: str


@dataclass(frozen=True, slots=True)
class Found:
    """What there is under a name of the cluster, and why."""

    code: int
    records: tuple[Record, ...] = ()
    """Without any, and no error: the name is there, with records of other types."""
    further: tuple[Record, ...] = ()
    """Addresses of what the records name."""
    of: ServiceName | None = None
    """The Service that says it; another answer is possible when that one changes. None: any."""
    because: str = ""
    """In words, for a person."""
    target: Labels | None = None
    """The alias in `records` leads out of the cluster: an upstream knows the rest."""
    turns: int = 1
    """So many of the first records are as good as each other: each should be the first at times."""


class ClusterNames:
    """Answers from a catalog; whoever changes that tells `changed` which Services are others."""

    def __init__(self, catalog: Catalog, domain: str, own: tuple[Address, ...] = ()) -> None:
        """`own`: where this node answers."""
        self._catalog = catalog
        self._zone = tuple(label.encode() for label in domain.lower().split("."))
        self._own = own
        self.is_partial = False
        """There may be Services, and endpoints, that are not in the catalog."""
        self._here = Here()
        self._headless: dict[ServiceName, HeadlessService | None] = {}
        """Every Service, and endpoints of those that have names below theirs."""
        self._namespaces: Counter[str] = Counter()
        self._named: dict[str, set[ServiceName]] = {}
        """Services by the address that has a name below theirs."""
        self._seen = catalog.recent.count
        """Changes of slices that were looked at."""
        self._late: set[ServiceName] = set()
        """Services with such changes that nobody has told."""
        self.changed(service.key for service in catalog)

    def __len__(self) -> int:
        """Services."""
        return len(self._catalog)

    @property
    def zone(self) -> Labels:
        return self._zone

    def changed(self, services: Iterable[ServiceName]) -> None:
        """These may be there, be others, or be gone."""
        told = dict.fromkeys(services)
        recent = self._catalog.recent.since(self._seen)
        self._seen = self._catalog.recent.count
        for key in told:
            names = None if recent is None or key in self._late else recent.get(key, ())
            was_there = key in self._headless
            before = self._headless.pop(key, None)
            service = self._catalog.service(*key)
            if service is not None:
                self._headless[key] = self._endpoints(service, before, names)
            if before is not None and self._headless.get(key) is None:
                self._forget_named(key, before.by_address)
            self._namespaces[key[0]] += (service is not None) - was_there
            if not self._namespaces[key[0]]:
                del self._namespaces[key[0]]
        self._late |= self._headless.keys() if recent is None else recent.keys()
        self._late -= told.keys()

    def _endpoints(
        self, service: Service, before: HeadlessService | None, names: Iterable[str] | None
    ) -> HeadlessService | None:
        """`before`: corrected by what has changed, where it is one of the same kind. `names`: of
        slices that may be others than there; None: any."""
        if not is_indexed(service):
            return None
        found = before
        if found is None or found.in_any_state != service.publish_not_ready:
            if before is not None:
                self._forget_named(service.key, before.by_address)
            found = HeadlessService(in_any_state=service.publish_not_ready)
            names = None
        if names is None:
            come, gone = found.update(self._catalog.slices(*service.key))
        else:
            key = service.key
            come, gone = found.change({name: self._catalog.piece(key, name) for name in names})
        self._forget_named(service.key, gone)
        for address in come:
            self._named.setdefault(address, set()).add(service.key)
        return found

    def _forget_named(self, key: ServiceName, addresses: Iterable[str]) -> None:
        for address in addresses:
            if (of := self._named.get(address)) is not None:
                of.discard(key)
                if not of:
                    del self._named[address]

    def set_here(self, here: Here) -> set[ServiceName]:
        """Who is near, and who is known to be dead, from now on; Services that this may change."""
        if here == self._here:
            return set()
        self._here = here
        return {key for key, found in self._headless.items() if found and found.by_address}

    def look_up(self, name: Labels, kind: int) -> Found | None:
        """None: upstreams are asked, it is no name of the cluster."""
        if name[-len(self._zone) :] == self._zone:
            return self._below_zone(name, kind)
        if name[-2:] in REVERSE_ZONES.values():
            return self._reverse(name, kind)
        if self._is_searched(name):
            return Found(wire.NXDOMAIN, because="a cluster's name with a search domain behind it")
        return None

    def _is_searched(self, name: Labels) -> bool:
        """With `ndots:5` a C library asks for `db.shop.svc.cluster.local.lan` before it asks for
        the name itself; musl asks for nothing more where an upstream that is away has failed it.
        A domain of one label may well stand amid others' names."""
        count = len(self._zone)
        return count > 1 and any(
            label in (_SVC, _POD) and name[at : at + count] == self._zone
            for at, label in enumerate(name, 1)
        )

    # Below the cluster's domain

    def _below_zone(self, name: Labels, kind: int) -> Found:
        found: list[Record] = []
        aliased = name
        for _ in range(DNS_ALIASES.most):
            there = self._at(aliased)
            if there is None:
                if self.is_partial and self._may_be_lost(aliased):
                    return Found(wire.SERVFAIL, because="not all Services are known on this node")
                of = None if found else self.service_named(name)
                return Found(wire.NXDOMAIN, tuple(found), of=of)
            records, of, because = there
            if found:
                of = None  # each Service on the way has its say
            alias = next((each for each in records if each.type == wire.CNAME), None)
            if alias is None:
                fits = (each for each in records if kind in (each.type, wire.ANY))
                fitting = list(islice(fits, DNS_ADDRESSES.most))
                further = self._addresses_of(fitting)
                turns = 1 if found else self._turns(of, fitting)
                return Found(wire.NOERROR, (*found, *fitting), further, of, because, turns=turns)
            found.append(alias)
            if kind == wire.CNAME:
                return Found(wire.NOERROR, (alias,), of=of, because=because)
            aliased = tuple(alias.value.lower().rstrip(".").encode().split(b"."))
            if aliased[-len(self._zone) :] != self._zone:
                return Found(wire.NOERROR, tuple(found), of=of, because=because, target=aliased)
        return Found(wire.SERVFAIL, because="aliases that lead to each other")

    def _may_be_lost(self, name: Labels) -> bool:
        """Every other name is denied: musl ends its search list at the first that is failed."""
        if (key := self.service_named(name)) is None:
            return False
        has_endpoints = bool(self._catalog.slices(*key))
        if len(name) == len(self._zone) + 3:
            return has_endpoints or key[0] in self._namespaces
        return key in self._headless and not has_endpoints

    def _at(
        self, name: Labels, most: int = DNS_ADDRESSES.most
    ) -> tuple[list[Record], ServiceName | None, str] | None:
        """Records of one name, whose they are, and why. None: there is no such name. `most`: so
        many endpoints of each family are looked at."""
        match name[: -len(self._zone)]:
            case ():
                return [self.soa(), self._name_server()], None, "the cluster's domain"
            case (b"dns-version",):
                text = Record(name, wire.TXT, f'"{SCHEMA_VERSION}"')
                return [text], None, "the version of the specification"
            case (b"svc",) | (b"pod",) | (b"dns",):
                return [], None, "the cluster's domain"
            case (b"ns", b"dns"):
                return list(map(_address_record(name), self._own)), None, "this node's DNS"
            case (_, b"pod"):
                return [], None, "pods by address"
            case (dashed, _, b"pod"):
                address = undashed_address(dashed)
                if address is None:
                    return None
                return [_address_record(name)(address)], None, "an address, written as a pod's name"
            case (namespace, b"svc"):
                there = namespace.decode("ascii", "replace") in self._namespaces
                return ([], None, f"namespace {namespace.decode()}") if there else None
            case (*below, _, _, b"svc"):
                return self._at_service(name, tuple(below), most)
        return None

    def headless(self, key: ServiceName) -> HeadlessService | None:
        """Endpoints with names below the Service's; None: there are none, or no such Service."""
        return self._headless.get(key)

    def service_named(self, name: Labels) -> ServiceName | None:
        parts = name[: -len(self._zone)]
        if len(parts) < 3 or parts[-1] != _SVC:
            return None
        return parts[-2].decode("ascii", "replace"), parts[-3].decode("ascii", "replace")

    def _at_service(
        self, name: Labels, below: Labels, most: int
    ) -> tuple[list[Record], ServiceName | None, str] | None:
        key = self.service_named(name)
        service = self._catalog.service(*key) if key is not None else None
        if service is None:
            return None
        records = self._of_service(service, name, below, most)
        if records is None:
            return None
        return records, service.key, f"Service {service.namespace}/{service.name}"

    def _of_service(
        self, service: Service, name: Labels, below: Labels, most: int
    ) -> list[Record] | None:
        if service.external_name:
            target = service.external_name.rstrip(".") + "."
            return None if below else [Record(name, wire.CNAME, target)]
        if below and below[-1] in _PROTOCOLS and len(below) <= 2:
            return self._of_ports(service, name, below)
        found = self._headless.get(service.key)
        if found is None and len(below) == 1:
            found = named_among(
                self._catalog.slices(*service.key),
                below[0].decode("ascii", "replace"),
                most,
                in_any_state=service.publish_not_ready,
            )
        if found is None:
            if below or service.is_headless:
                return None
            return [_address_record(name)(ip_address(each)) for each in service.addresses]
        if len(below) > 1:
            return None
        endpoints = (
            found.named(below[0].decode("ascii", "replace"), self._here, most)
            if below
            else found.nearest(self._here, most)
        )
        return self._records_of(name, (each.endpoint for each in endpoints)) or None

    def _of_ports(self, service: Service, name: Labels, below: Labels) -> list[Record] | None:
        """SRV records; a protocol alone is a name without records."""
        protocol = below[-1][1:].decode().upper()
        base = wire.text_of(self._name_of(service))
        wanted = below[0][1:].decode("ascii", "replace") if below[0][:1] == b"_" else ""
        found = self._headless.get(service.key)
        fitting: Iterable[tuple[int, str]]
        if found is None:
            ports = [each for each in service.ports if each.protocol == protocol and each.name]
            is_there = bool(ports)
            fitting = ((each.port, f"{base}.") for each in ports if each.name == wanted)
        else:
            is_there = found.has_ports(protocol)
            of_slices = found.ports(protocol, wanted)
            most = DNS_PORTS.most
            fitting = (
                (port, f"{each.hostname}.{base}.")
                for each in (found.nearest(self._here, most, of_slices) if of_slices else ())
                for port in of_slices[each.piece]
            )
        if len(below) == 1:
            return [] if is_there else None
        # The same may be there for each family.
        some = dict.fromkeys(islice(fitting, len(FAMILIES) * DNS_PORTS.most))
        return [
            Record(name, wire.SRV, f"0 100 {port} {target}")
            for port, target in islice(some, DNS_PORTS.most)
        ] or None

    # Endpoints

    def _turns(self, of: ServiceName | None, records: list[Record]) -> int:
        """How many of a headless Service's first addresses are equally near."""
        found = self._headless.get(of) if of is not None else None
        if found is None or len(records) < 2:
            return 1
        if any(each.type not in (wire.A, wire.AAAA) for each in records):
            return 1
        places = (found.place(each.value, self._here) for each in records)
        first = next(places)
        return 1 + sum(1 for _ in takewhile(first.__eq__, places))

    def _records_of(self, name: Labels, endpoints: Iterable[Endpoint]) -> list[Record]:
        addresses = dict.fromkeys(ip_address(each.address) for each in endpoints)
        return list(map(_address_record(name), addresses))

    def _addresses_of(self, records: list[Record]) -> tuple[Record, ...]:
        """Addresses of the targets of SRV records, and of name servers."""
        targets = dict.fromkeys(
            tuple(each.value.split()[-1].rstrip(".").lower().encode().split(b"."))
            for each in records
            if each.type in (wire.SRV, wire.NS)
        )
        of_one = DNS_ADDRESSES.most // max(len(targets), 1)
        found = (
            record
            for target in targets
            if (there := self._at(target, of_one)) is not None
            for record in there[0]
            if record.type in (wire.A, wire.AAAA)
        )
        return tuple(dict.fromkeys(islice(found, DNS_ADDRESSES.most)))

    # Names of addresses

    def _reverse(self, name: Labels, kind: int) -> Found | None:
        address = reversed_address(name)
        if address is None:
            return None
        service = self._catalog.by_address(str(address))
        if service is not None:
            names = [self._name_of(service)]
            because, of = f"Service {service.namespace}/{service.name}", service.key
        else:
            keys = nsmallest(DNS_NAMES.most, self._named.get(str(address), ()))
            if not keys:
                return None
            names = list(islice(self._names_of_endpoint(str(address), keys), DNS_NAMES.most))
            because, of = f"Service {keys[0][0]}/{keys[0][1]}", None
        records = tuple(Record(name, wire.PTR, f"{wire.text_of(each)}.") for each in names)
        fits = kind in (wire.PTR, wire.ANY)
        return Found(wire.NOERROR, records if fits else (), of=of, because=because)

    def _names_of_endpoint(self, address: str, keys: Iterable[ServiceName]) -> Iterator[Labels]:
        for key in keys:
            name = self._name_of(self._catalog.service(*key))
            found = self._headless[key]
            endpoints = [] if found is None else found.by_address.get(address, [])
            first = nsmallest(DNS_NAMES.most, endpoints, key=lambda each: each[:2])
            for hostname in dict.fromkeys(each.hostname for each in first):
                yield (hostname.encode(), *name)

    # The domain itself

    def _name_of(self, service: Service | None) -> Labels:
        assert service is not None
        return (service.name.encode(), service.namespace.encode(), _SVC, *self._zone)

    def _name_server(self) -> Record:
        return Record(self._zone, wire.NS, f"ns.dns.{wire.text_of(self._zone)}.")

    def soa(self) -> Record:
        """What says how long a no may be remembered."""
        zone = wire.text_of(self._zone)
        times = f"1 7200 1800 86400 {TTL_S}"
        return Record(self._zone, wire.SOA, f"ns.dns.{zone}. hostmaster.{zone}. {times}")


def _address_record(name: Labels) -> Callable[[Address], Record]:
    def record(address: Address) -> Record:
        return Record(name, wire.A if address.version == 4 else wire.AAAA, str(address))

    return record
