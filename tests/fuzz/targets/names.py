"""DNS: questions of pods, answers of upstreams, and the files that say whom to ask."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from ipaddress import ip_address
from itertools import count

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from limpet.cni.resolv_conf import parse_resolv_conf
from limpet.dns import wire
from limpet.dns.forward.cache import Cache
from limpet.dns.forward.effects import AskUpstream
from limpet.dns.forward.forwarder import Forwarder
from limpet.dns.forward.health import Upstream
from limpet.dns.forward.upstreams import read_upstreams
from limpet.dns.names import ClusterNames
from limpet.dns.resolver import Asker, Resolver
from limpet.services.catalog import Catalog
from limpet.services.values import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort
from tests.fuzz.scratch import in_file
from tests.fuzz.target import Shape, fuzzed

_DOMAIN = "cluster.local"
_ASKED = (
    ("web.shop.svc.cluster.local", "A"),
    ("web.shop.svc.cluster.local", "AAAA"),
    ("_http._tcp.web.shop.svc.cluster.local", "SRV"),
    ("10-1-0-1.db.shop.svc.cluster.local", "A"),
    ("db.shop.svc.cluster.local", "ANY"),
    ("alias.shop.svc.cluster.local", "A"),
    ("7.0.96.10.in-addr.arpa", "PTR"),
    ("1.0.0.0" + ".0" * 24 + ".d.f.ip6.arpa", "PTR"),
    ("dns-version.cluster.local", "TXT"),
    ("example.org", "MX"),
)


@cache
def _resolver() -> Resolver[str]:
    catalog = Catalog()
    catalog.put(
        Service("shop", "web", cluster_ips=("10.96.0.7",), ports=(ServicePort("http", "TCP", 80),))
    )
    catalog.put(Service("shop", "db", cluster_ips=("None",)))
    catalog.put(Service("shop", "alias", type="ExternalName", external_name="example.org"))
    ends = tuple(Endpoint(f"10.1.0.{number}", hostname=f"h{number}") for number in range(1, 40))
    catalog.put(EndpointSlice("shop", "db-1", "db", 4, (EndpointPort("p", "TCP", 80),), ends))
    numbers = count()
    forwarder: Forwarder[Asker[str]] = Forwarder(
        Cache(most_bytes=1000, stale_s=0), lambda: next(numbers) & 0xFFFF
    )
    resolver: Resolver[str] = Resolver(forwarder)
    resolver.serve(_DOMAIN)
    resolver.know(ClusterNames(catalog, _DOMAIN))
    resolver.use([Upstream(ip_address("192.0.2.1"))], 0.0)
    return resolver


def _queries() -> Iterator[bytes]:
    for name, kind in _ASKED:
        query = dns.message.make_query(name, kind, id=7)
        yield query.to_wire()
        query.use_edns(0, dns.flags.DO, payload=1232)
        yield query.to_wire()


@fuzzed(seeds=_queries, errors=(wire.QueryRefused,), most_bytes=1024)
def dns_query(data: bytes) -> None:
    query = wire.parse_query(data)
    wire.text_of(query.name)
    question = wire.parse_query(wire.write_query(7, query.question, 0, dnssec=False, edns=True))
    assert question.name == query.name


@fuzzed(seeds=_queries, most_bytes=1024)
def dns_question_answered(data: bytes) -> None:
    """By the names of a cluster, or by asking on."""
    resolver = _resolver()
    for by_tcp in (False, True):
        answer = resolver.take(data, "client", 0.0, by_tcp=by_tcp, who="192.0.2.9")
        if answer is not None:
            assert len(answer) <= (wire.LARGEST_TCP if by_tcp else wire.LARGEST_UDP)
    for each in resolver.effects:
        if isinstance(each, AskUpstream):
            resolver.failed(each.attempt, 0.0)
    resolver.due(100.0)
    resolver.effects.clear()


_NAME = "web.example.org."


def _asked() -> bytes:
    return dns.message.make_query(_NAME, "A", id=7).to_wire()


def _responses() -> Iterator[bytes]:
    response = dns.message.make_response(dns.message.from_wire(_asked()))
    yield response.to_wire()
    response.answer.append(dns.rrset.from_text(_NAME, 300, "IN", "CNAME", "a.example.org."))
    response.answer.append(
        dns.rrset.from_text("a.example.org.", 60, "IN", "A", "192.0.2.7", "192.0.2.8")
    )
    yield response.to_wire()
    response.use_edns(0, 0, payload=1232)
    yield response.to_wire()
    negative = dns.message.make_response(dns.message.from_wire(_asked()))
    soa = "ns.example.org. host.example.org. 1 2 3 4 300"
    negative.authority.append(dns.rrset.from_text("example.org.", 900, "IN", "SOA", soa))
    negative.set_rcode(dns.rcode.NXDOMAIN)
    yield negative.to_wire()
    # A name of 60 labels, and as many records as a message has room for that point to it.
    head, question = _asked()[:12], _asked()[12:]
    many = b"\xc0\x0c" + b"\0\1\0\1" + b"\0\0\0\1" + b"\0\4\1\2\3\4"
    yield head[:2] + b"\x81\x80\0\1" + (300).to_bytes(2, "big") + bytes(4) + question + many * 300


@fuzzed(seeds=_responses, errors=(ValueError,), most_bytes=16_384)
def dns_answer_of_an_upstream(data: bytes) -> None:
    query = wire.parse_query(_asked())
    answer = wire.parse_response(data, query.number, query.question)
    if answer is None:
        return
    assert len(answer.records) <= len(data)
    for size in (wire.PLAIN_UDP, wire.LARGEST_TCP):
        written = wire.write_response(query, answer, size=size, age_s=5)
        assert len(written) <= size
        wire.parse_response(written, query.number, query.question)


_RESOLV_CONF = b"""\
# by the installer
domain example.org
search a.example.org b.example.org ; more
nameserver 192.0.2.1
nameserver 2001:db8::1
nameserver fe80::1%eth0
nameserver ::ffff:192.0.2.3
options ndots:2 edns0
"""


@fuzzed(seeds=lambda: [_RESOLV_CONF], shape=Shape.TEXT)
def resolv_conf(data: bytes) -> None:
    parse_resolv_conf(data.decode(errors="replace"))


@fuzzed(seeds=lambda: [_RESOLV_CONF], shape=Shape.TEXT)
def resolv_conf_of_upstreams(data: bytes) -> None:
    assert len(read_upstreams(in_file(data), (ip_address("192.0.2.3"),))) <= 6
