"""Answers that are kept as bytes, against those that are made anew."""

from __future__ import annotations

from itertools import count, product

import dns.message
from hypothesis import given
from hypothesis import strategies as st

from limpet.dns.forward.cache import Cache
from limpet.dns.forward.forwarder import Forwarder, Send
from limpet.dns.names import ClusterNames
from limpet.dns.resolver import Asker, Reply, Resolver
from limpet.services.catalog import Catalog
from limpet.services.kept import Item
from limpet.services.values import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort

DOMAIN = "cluster.local"
NAMES = [
    *(f"{name}.{namespace}.svc.{DOMAIN}" for name, namespace in product("ab", "xy")),
    *(f"_p._tcp.a.{namespace}.svc.{DOMAIN}" for namespace in "xy"),
    *(f"h.{name}.x.svc.{DOMAIN}" for name in "ab"),
    f"x.svc.{DOMAIN}",
    "1.0.96.10.in-addr.arpa",
    "1.0.1.10.in-addr.arpa",
]
MESSAGES = [
    dns.message.make_query(name, kind, use_edns=False, id=7).to_wire()
    for name, kind in product(NAMES, ("A", "SRV", "PTR"))
]

PLACES = st.tuples(st.sampled_from("xy"), st.sampled_from("ab"))


@st.composite
def services(draw: st.DrawFn) -> Item:
    namespace, name = draw(PLACES)
    match draw(st.sampled_from(["cluster", "headless", "alias", "slice"])):
        case "cluster":
            address = f"10.96.0.{1 + 'xy'.index(namespace) * 2 + 'ab'.index(name)}"
            ports = (ServicePort("p", "TCP", draw(st.integers(1, 3))),)
            return Service(namespace, name, cluster_ips=(address,), ports=ports)
        case "headless":
            return Service(namespace, name, cluster_ips=("None",))
        case "alias":
            to = ".".join((*reversed(draw(PLACES)), "svc", DOMAIN))
            return Service(namespace, name, type="ExternalName", external_name=to)
    ends = draw(st.lists(st.sampled_from(["10.1.0.1", "10.1.0.2"]), unique=True))
    endpoints = tuple(Endpoint(each, hostname=draw(st.sampled_from(["", "h"]))) for each in ends)
    return EndpointSlice(
        namespace, f"{name}-1", name, 4, (EndpointPort("p", "TCP", 80),), endpoints
    )


def resolver_of(catalog: Catalog) -> Resolver[str]:
    numbers = count()
    forwarder: Forwarder[Asker[str]] = Forwarder(
        Cache(most_bytes=1000, stale_s=0), lambda: next(numbers) & 0xFFFF
    )
    resolver: Resolver[str] = Resolver(forwarder)
    resolver.serve(DOMAIN)
    resolver.know(ClusterNames(catalog, DOMAIN))
    return resolver


def answers(resolver: Resolver[str]) -> list[bytes]:
    found = []
    for message in MESSAGES:
        told = resolver.take(message, "client", 0.0)
        late = [each.message for each in resolver.effects if isinstance(each, Reply)]
        resolver.effects.clear()
        found.append(told if told is not None else late[0])
    return found


@given(st.lists(st.one_of(services(), PLACES), max_size=8))
def test_whatever_changes_kept_answers_are_those_that_would_be_made_now(
    changes: list[Item | tuple[str, str]],
) -> None:
    catalog = Catalog()
    warm = resolver_of(catalog)
    for change in changes:
        answers(warm)
        if isinstance(change, tuple):
            namespace, name = change
            changed = catalog.remove_service(namespace, name)
        else:
            changed = catalog.put(change)
        warm.changed(changed)

    assert answers(warm) == answers(resolver_of(catalog))


def test_the_same_question_again_is_answered_by_bytes_with_its_own_number() -> None:
    catalog = Catalog()
    catalog.put(Service("x", "a", cluster_ips=("10.96.0.1",)))
    resolver = resolver_of(catalog)
    message = dns.message.make_query(f"a.x.svc.{DOMAIN}", "A").to_wire()

    first = resolver.take(message, "client", 0.0)
    again = resolver.take(b"\x12\x34" + message[2:], "client", 0.0)

    assert first is not None
    assert again == b"\x12\x34" + first[2:]
    assert resolver.counts.ready == 1


def test_a_question_of_another_class_is_refused_and_sent_nowhere() -> None:
    resolver = resolver_of(Catalog())
    query = dns.message.make_query("version.bind", "TXT", "CH")

    told = resolver.take(query.to_wire(), "client", 0.0)

    assert told is not None
    assert dns.message.from_wire(told).rcode() == dns.rcode.REFUSED
    assert not any(isinstance(each, Send) for each in resolver.effects)
