"""What the cluster's names lead to, by the DNS-based service discovery of Kubernetes, version 1.1.

Source: docs/specification.md of the project kubernetes/dns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import islice

from limpet.base.addresses import Address
from limpet.base.bounds.strangers import DNS_ADDRESSES, DNS_NAMES, DNS_PORTS
from limpet.base.bounds.tenants import DNS_ALIASES
from limpet.dns import wire
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from limpet.services.values import Endpoint, EndpointSlice, Service, ServiceName

Labels = tuple[bytes, ...]

SCHEMA_VERSION = "1.1.0"
TTL_S = 5
"""An endpoint that has gone is asked for no longer than that."""
_PROTOCOLS = (b"_tcp", b"_udp", b"_sctp")
_SVC, _POD = b"svc", b"pod"
_REVERSE = {4: (b"in-addr", b"arpa"), 6: (b"ip6", b"arpa")}


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
        self._here = Here()
        self._endpoints_of: dict[ServiceName, dict[str, tuple[str, ...]]] = {}
        """Names below that of a Service, by Service and by the address that has them."""
        self._namespaces: Counter[str] = Counter()
        self._named: dict[str, set[ServiceName]] = {}
        """Services by the address that has a name below theirs."""
        self.changed(service.key for service in catalog)

    def __len__(self) -> int:
        """Services."""
        return len(self._catalog)

    @property
    def zone(self) -> Labels:
        return self._zone

    def changed(self, services: Iterable[ServiceName]) -> None:
        """These may be there, be others, or be gone."""
        for key in services:
            for address in self._endpoints_of.get(key, ()):
                self._named[address].discard(key)
                if not self._named[address]:
                    del self._named[address]
            was_there = self._endpoints_of.pop(key, None) is not None
            service = self._catalog.service(*key)
            if service is not None:
                names: dict[str, tuple[str, ...]] = {}
                for each in self._named_endpoints(service):
                    address = _as_usual(each.address)
                    names[address] = (*names.get(address, ()), _hostname(each))
                self._endpoints_of[key] = names
                for address in names:
                    self._named.setdefault(address, set()).add(key)
            self._namespaces[key[0]] += (service is not None) - was_there
            if not self._namespaces[key[0]]:
                del self._namespaces[key[0]]

    def set_here(self, here: Here) -> set[ServiceName]:
        """Who is near, and who is known to be dead, from now on; Services that this may change."""
        if here == self._here:
            return set()
        self._here = here
        return {key for key, addresses in self._endpoints_of.items() if addresses}

    def look_up(self, name: Labels, kind: int) -> Found | None:
        """None: upstreams are asked, it is no name of the cluster."""
        if name[-len(self._zone) :] == self._zone:
            return self._below_zone(name, kind)
        if name[-2:] in _REVERSE.values():
            return self._reverse(name, kind)
        return None

    # Below the cluster's domain

    def _below_zone(self, name: Labels, kind: int) -> Found:
        found: list[Record] = []
        aliased = name
        for _ in range(DNS_ALIASES.most):
            there = self._at(aliased)
            if there is None:
                of = None if found else self._service_named(name)
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

    def _at(self, name: Labels) -> tuple[list[Record], ServiceName | None, str] | None:
        """All records of one name, whose they are, and why. None: there is no such name."""
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
                address = _undashed(dashed)
                if address is None:
                    return None
                return [_address_record(name)(address)], None, "an address, written as a pod's name"
            case (namespace, b"svc"):
                there = namespace.decode("ascii", "replace") in self._namespaces
                return ([], None, f"namespace {namespace.decode()}") if there else None
            case (*below, _, _, b"svc"):
                return self._at_service(name, tuple(below))
        return None

    def _service_named(self, name: Labels) -> ServiceName | None:
        parts = name[: -len(self._zone)]
        if len(parts) < 3 or parts[-1] != _SVC:
            return None
        return parts[-2].decode("ascii", "replace"), parts[-3].decode("ascii", "replace")

    def _at_service(
        self, name: Labels, below: Labels
    ) -> tuple[list[Record], ServiceName | None, str] | None:
        key = self._service_named(name)
        service = self._catalog.service(*key) if key is not None else None
        if service is None:
            return None
        records = self._of_service(service, name, below)
        if records is None:
            return None
        return records, service.key, f"Service {service.namespace}/{service.name}"

    def _of_service(self, service: Service, name: Labels, below: Labels) -> list[Record] | None:
        if service.external_name:
            target = service.external_name.rstrip(".") + "."
            return None if below else [Record(name, wire.CNAME, target)]
        if not below:
            if not service.is_headless:
                return [_address_record(name)(ip_address(each)) for each in service.addresses]
            endpoints = self._in_rotation(service, self._named_endpoints(service))
            return self._records_of(name, endpoints) if endpoints else None
        if below[-1] in _PROTOCOLS and len(below) <= 2:
            return self._of_ports(service, name, below)
        if len(below) > 1 or not service.is_headless:
            return None
        wanted = below[0].decode("ascii", "replace")
        named = (each for each in self._named_endpoints(service) if _hostname(each) == wanted)
        endpoints = self._in_rotation(service, named)
        return self._records_of(name, endpoints) if endpoints else None

    def _of_ports(self, service: Service, name: Labels, below: Labels) -> list[Record] | None:
        """SRV records; a protocol alone is a name without records."""
        protocol = below[-1][1:].decode().upper()
        base = wire.text_of(self._name_of(service))
        found: list[tuple[str, int, str]] = []
        if service.is_headless:
            ready = [*self._ready(service)]
            used = set(self._in_rotation(service, (endpoint for _, endpoint in ready)))
            for each, endpoint in sorted(ready, key=lambda one: self._here.distance(one[1])):
                for port in each.ports if endpoint in used else ():
                    if port.protocol == protocol and port.name:
                        target = f"{_hostname(endpoint)}.{base}."
                        found.append((port.name, port.port, target))
        else:
            found = [
                (port.name, port.port, f"{base}.")
                for port in service.ports
                if port.protocol == protocol and port.name
            ]
        if len(below) == 1:
            return [] if found else None
        wanted = below[0]
        fitting = dict.fromkeys(
            (port, target) for each, port, target in found if b"_" + each.encode() == wanted
        )
        return [
            Record(name, wire.SRV, f"0 100 {port} {target}")
            for port, target in islice(fitting, DNS_PORTS.most)
        ] or None

    # Endpoints

    def _ready(self, service: Service) -> Iterator[tuple[EndpointSlice, Endpoint]]:
        """Those too that were ready before the server could not hear their nodes."""
        for each in self._catalog.slices(*service.key):
            if each.version:
                for endpoint in each.endpoints:
                    if endpoint.is_ready or endpoint.is_doubted or service.publish_not_ready:
                        yield each, endpoint

    def _named_endpoints(self, service: Service) -> Iterator[Endpoint]:
        """Those that have a name of their own; each address once."""
        if not service.is_headless or service.external_name:
            return
        seen = set()
        for _, endpoint in self._ready(service):
            if (endpoint.address, endpoint.hostname) not in seen:
                seen.add((endpoint.address, endpoint.hostname))
                yield endpoint

    def _in_rotation(self, service: Service, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
        """The nearest first, and none that is known to be dead, unless all are: a doubt is no
        reason to say nothing. Whose Service wants them in any state, gets those last."""
        here = self._here
        found = sorted(endpoints, key=here.distance)
        if any(each.is_doubted for each in found) and not service.publish_not_ready:
            served = {":" in each.address for each in found if each.is_ready}
            found = [x for x in found if x.is_ready or (":" in x.address) not in served]
        if not (here.silent or here.gone):
            return found
        doubted = [each for each in found if here.doubts(each)]
        sound = [each for each in found if not here.doubts(each)]
        if service.publish_not_ready:
            return sound + doubted
        # What asks for addresses of one family is helped by none of the other.
        versions = {":" in each.address for each in sound}
        return sound + [each for each in doubted if (":" in each.address) not in versions]

    def _turns(self, of: ServiceName | None, records: list[Record]) -> int:
        """How many of a headless Service's first addresses are equally near."""
        service = self._catalog.service(*of) if of is not None else None
        if service is None or not service.is_headless or len(records) < 2:
            return 1
        distances = {
            ip_address(each.address): (self._here.doubts(each), self._here.distance(each))
            for each in self._named_endpoints(service)
        }
        if any(each.type not in (wire.A, wire.AAAA) for each in records):
            return 1
        places = [distances[ip_address(each.value)] for each in records]
        return next((n for n, place in enumerate(places) if place != places[0]), len(places))

    def _records_of(self, name: Labels, endpoints: Iterable[Endpoint]) -> list[Record]:
        addresses = dict.fromkeys(ip_address(each.address) for each in endpoints)
        return list(map(_address_record(name), addresses))

    def _addresses_of(self, records: list[Record]) -> tuple[Record, ...]:
        """Addresses of the targets of SRV records, and of name servers."""
        found: dict[Record, None] = {}
        for each in records:
            if each.type in (wire.SRV, wire.NS):
                target = tuple(each.value.split()[-1].rstrip(".").lower().encode().split(b"."))
                there = self._at(target)
                for record in there[0] if there is not None else ():
                    if record.type in (wire.A, wire.AAAA):
                        found[record] = None
        return tuple(found)

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
            keys = sorted(self._named.get(str(address), ()))
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
            for hostname in self._endpoints_of[key][address]:
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


def _as_usual(address: str) -> str:
    """One address in one spelling."""
    return str(ip_address(address)) if ":" in address else address


def _hostname(endpoint: Endpoint) -> str:
    """Its own, in small letters, or one made of its address."""
    address = endpoint.address.lower()
    return endpoint.hostname.lower() or address.replace(".", "-").replace(":", "-")


def _address_record(name: Labels) -> Callable[[Address], Record]:
    def record(address: Address) -> Record:
        return Record(name, wire.A if address.version == 4 else wire.AAAA, str(address))

    return record


def _undashed(label: bytes) -> Address | None:
    text = label.decode("ascii", "replace")
    for separator in (".", ":"):
        try:
            return ip_address(text.replace("-", separator))
        except ValueError:
            continue
    return None


def reversed_address(name: Labels) -> Address | None:
    """The address that a name below in-addr.arpa or ip6.arpa stands for."""
    text = [label.decode("ascii", "replace") for label in reversed(name[:-2])]
    try:
        if name[-2:] == _REVERSE[4]:
            return ip_address(".".join(text)) if len(text) == 4 else None
        digits = "".join(text)
        if len(text) != 32 or any(len(each) != 1 for each in text):
            return None
        return ip_address(int(digits, 16).to_bytes(16, "big"))
    except ValueError:
        return None
