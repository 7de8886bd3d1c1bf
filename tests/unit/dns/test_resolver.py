"""Answers that are kept as bytes, against those that are made anew."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from itertools import chain, count, islice, product

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.bounds.strangers import DNS_READY_BYTES
from limpet.dns.forward.cache import Cache
from limpet.dns.forward.effects import AskUpstream
from limpet.dns.forward.forwarder import Forwarder
from limpet.dns.forward.health import Upstream
from limpet.dns.names import ClusterNames
from limpet.dns.resolver import Asker, Reply, Resolver
from limpet.services.catalog import Catalog, Item
from limpet.services.rotation import Here
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
    endpoints = tuple(
        Endpoint(
            each,
            hostname=draw(st.sampled_from(["", "h"])),
            node=draw(st.sampled_from(["n1", "n2"])),
        )
        for each in ends
    )
    return EndpointSlice(
        namespace, f"{name}-1", name, 4, (EndpointPort("p", "TCP", 80),), endpoints
    )


HERES = st.builds(
    Here,
    node=st.just("n1"),
    silent=st.frozensets(st.sampled_from(["n1", "n2"])),
    gone=st.frozensets(st.just("10.1.0.1")),
    distances=st.dictionaries(st.just("n2"), st.integers(1, 2)),
)


def resolver_of(catalog: Catalog, here: Here | None = None) -> Resolver[str]:
    numbers = count()
    forwarder: Forwarder[Asker[str]] = Forwarder(
        Cache(most_bytes=1000, stale_s=0), lambda: next(numbers) & 0xFFFF
    )
    resolver: Resolver[str] = Resolver(forwarder)
    resolver.serve(DOMAIN)
    resolver.know(ClusterNames(catalog, DOMAIN))
    if here is not None:
        resolver.set_here(here)
    return resolver


def answers(resolver: Resolver[str]) -> list[tuple[str, list[str], list[str]]]:
    """Code and records of each; those that take turns to be the first in any order."""
    found = []
    for message in MESSAGES:
        told = resolver.take(message, "client", 0.0)
        late = [each.message for each in resolver.effects if isinstance(each, Reply)]
        resolver.effects.clear()
        response = dns.message.from_wire(told if told is not None else late[0])
        first, *others = [
            sorted(line for each in section for line in each.to_text().splitlines())
            for section in (response.answer, response.additional)
        ]
        found.append((dns.rcode.to_text(response.rcode()), first, others[0]))
    return found


@given(st.lists(st.one_of(services(), PLACES, HERES), max_size=8))
def test_whatever_changes_kept_answers_are_those_that_would_be_made_now(
    changes: list[Item | Here | tuple[str, str]],
) -> None:
    catalog, here = Catalog(), Here()
    warm = resolver_of(catalog)
    for change in changes:
        answers(warm)
        if isinstance(change, Here):
            here = change
            warm.set_here(here)
            continue
        if isinstance(change, tuple):
            namespace, name = change
            changed = catalog.remove_service(namespace, name)
        else:
            changed = catalog.put(change)
        warm.changed(changed)

    assert answers(warm) == answers(resolver_of(catalog, here))


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


@pytest.mark.parametrize("are_alike", [True, False], ids=["alike", "each with a cookie"])
def test_endpoints_that_are_equally_near_are_the_first_in_turn_and_those_behind_stay_there(
    are_alike: bool,
) -> None:
    catalog = Catalog()
    catalog.put(Service("x", "a", cluster_ips=("None",)))
    places = {"10.1.0.1": "far", "10.1.0.2": "near", "10.1.0.3": "near", "10.1.0.4": "near"}
    endpoints = tuple(Endpoint(address, node=node) for address, node in places.items())
    catalog.put(EndpointSlice("x", "a-1", "a", 4, (), endpoints))
    resolver = resolver_of(catalog, Here("here", distances={"near": 1, "far": 2}))

    told = []
    for number in range(6):
        cookie = dns.edns.CookieOption(bytes((0 if are_alike else number,) * 8), b"")
        query = dns.message.make_query(f"A.x.svc.{DOMAIN}", "A", use_edns=0, options=[cookie])
        response = resolver.take(query.to_wire(), "client", 0.0)
        assert response is not None
        parsed = dns.message.from_wire(response, one_rr_per_rrset=True)
        told.append([rrset[0].to_text()[-1] for rrset in parsed.answer])

    assert told == [list("2341"), list("3421"), list("4231")] * 2


def of_a_large_service() -> tuple[Resolver[str], bytes]:
    """And a question for its 79 addresses, which are too many for an answer by UDP."""
    catalog = Catalog()
    catalog.put(Service("x", "a", cluster_ips=("None",)))
    endpoints = tuple(Endpoint(f"10.1.0.{number}") for number in range(1, 80))
    catalog.put(EndpointSlice("x", "a-1", "a", 4, (), endpoints))
    message = dns.message.make_query(f"a.x.svc.{DOMAIN}", "A", use_edns=False).to_wire()
    return resolver_of(catalog), message


def test_by_tcp_a_kept_answer_is_whole_and_by_udp_it_says_that_it_is_not() -> None:
    resolver, message = of_a_large_service()

    for _ in range(2):
        for by_tcp in (False, True):
            told = resolver.take(message, "client", 0.0, by_tcp=by_tcp)
            assert told is not None
            parsed = dns.message.from_wire(told)
            assert (len(parsed.answer[0]) == 79) == by_tcp
            assert bool(parsed.flags & dns.flags.TC) != by_tcp
    assert resolver.counts.ready == 2


@pytest.mark.parametrize("asks_first_by_tcp", [False, True])
def test_no_message_by_udp_has_or_makes_the_answer_that_is_kept_for_tcp(
    *, asks_first_by_tcp: bool
) -> None:
    resolver, message = of_a_large_service()
    if asks_first_by_tcp:
        resolver.take(message, "client", 0.0, by_tcp=True)

    for byte in range(256):
        told = resolver.take(message + bytes((byte,)), "stranger", 0.0)
        assert told is not None
        assert dns.message.from_wire(told).rcode() == dns.rcode.FORMERR
    whole = resolver.take(message, "client", 0.0, by_tcp=True)
    assert whole is not None
    assert len(dns.message.from_wire(whole).answer[0]) == 79


@pytest.mark.parametrize("name", ["a..b", "x" * 64, "a b", "(", "y." * 130 + "z"])
def test_an_object_that_names_what_is_no_name_fails_by_itself(name: str) -> None:
    catalog = Catalog()
    catalog.put(Service("x", "a", type="ExternalName", external_name=name))
    catalog.put(Service("x", "b", cluster_ips=("10.96.0.1",)))
    resolver = resolver_of(catalog)
    resolver.use([Upstream(ip_address("192.0.2.1"))], 0.0)

    for service, code in (("a", dns.rcode.SERVFAIL), ("b", dns.rcode.NOERROR)):
        resolver.effects.clear()
        query = dns.message.make_query(f"{service}.x.svc.{DOMAIN}", "A")
        told = resolver.take(query.to_wire(), "client", 0.0)
        for each in [each for each in resolver.effects if isinstance(each, AskUpstream)]:
            response = dns.message.make_response(dns.message.from_wire(each.message))
            resolver.heard(each.attempt, response.to_wire(), 0.0)
        late = [each.message for each in resolver.effects if isinstance(each, Reply)]
        (response_bytes,) = late if told is None else [told]
        assert dns.message.from_wire(response_bytes).rcode() == code


def test_a_question_of_another_class_is_refused_and_sent_nowhere() -> None:
    resolver = resolver_of(Catalog())
    query = dns.message.make_query("version.bind", "TXT", "CH")

    told = resolver.take(query.to_wire(), "client", 0.0)

    assert told is not None
    assert dns.message.from_wire(told).rcode() == dns.rcode.REFUSED
    assert not any(isinstance(each, AskUpstream) for each in resolver.effects)


def test_with_other_capitals_it_is_not_looked_for_again_what_there_is() -> None:
    """A Service with 100,000 endpoints costs a second each time, and everybody else waits."""

    class Counting(Catalog):
        asked = 0

        def slices(self, namespace: str, name: str) -> Iterable[EndpointSlice]:
            self.asked += 1
            return super().slices(namespace, name)

    catalog = Counting()
    catalog.put(Service("x", "a", cluster_ips=("None",)))
    ports = (EndpointPort("p", "TCP", 80),)
    catalog.put(EndpointSlice("x", "a-1", "a", 4, ports, (Endpoint("10.1.0.1"),)))
    resolver = resolver_of(catalog)

    def ask(name: str) -> list[str]:
        answer = resolver.take(dns.message.make_query(name, "A").to_wire(), "client", 0.0)
        assert answer is not None
        return [str(each) for each in dns.message.from_wire(answer).answer[0]]

    assert ask(f"a.x.svc.{DOMAIN}") == ["10.1.0.1"]
    before = catalog.asked
    assert ask(f"A.X.svc.{DOMAIN}") == ["10.1.0.1"]
    assert catalog.asked == before

    changed = catalog.put(EndpointSlice("x", "a-1", "a", 4, ports, (Endpoint("10.1.0.2"),)))
    resolver.changed(changed)
    assert ask(f"A.x.svc.{DOMAIN}") == ["10.1.0.2"]


def test_who_asks_by_tcp_for_all_of_a_large_service_with_other_capitals_takes_no_more_memory() -> (
    None
):
    catalog = Catalog()
    catalog.put(Service("x", "a", cluster_ips=("None",)))
    for part in range(4):  # as an API server has them, at most 1,000 each
        ends = tuple(Endpoint(f"10.{part}.{number >> 8}.{number & 255}") for number in range(1000))
        ports = (EndpointPort("p", "TCP", 80),)
        catalog.put(EndpointSlice("x", f"a-{part}", "a", 4, ports, ends))
    resolver = resolver_of(catalog)
    name = f"a.x.svc.{DOMAIN}"
    written = {"".join(each) for each in islice(product(*((c, c.upper()) for c in name)), 20)}
    messages = [dns.message.make_query(each, "A").to_wire() for each in written]

    for message in messages:
        answer = resolver.take(message, "client", 0.0, by_tcp=True)
        assert answer is not None
        assert len(answer) > 60_000

    in_order = [list(islice(each, 16)) for each in resolver._ready.answers.values()]
    assert sum({id(each): len(each) for each in chain(*in_order)}.values()) <= DNS_READY_BYTES.most


def test_with_other_capitals_a_name_has_the_same_answer_which_is_not_made_again() -> None:
    """500 ports took a tenth of a second for each way to write their name."""
    catalog, name = Catalog(), f"_p._tcp.a.x.svc.{DOMAIN}"
    catalog.put(Service("x", "a", cluster_ips=("None",)))
    ends = tuple(Endpoint(f"10.1.0.{number}", hostname=f"h{number}") for number in range(1, 9))
    catalog.put(EndpointSlice("x", "a-1", "a", 4, (EndpointPort("p", "TCP", 80),), ends))
    resolver = resolver_of(catalog)

    for written in (name, name.upper(), name.title()):
        message = dns.message.make_query(written, "SRV", use_edns=0, id=7).to_wire()
        assert resolver.take(message, "c", 1.0) == resolver_of(catalog).take(message, "c", 1.0)
    assert len(resolver._looked.rendered) == 1

    resolver.changed([("x", "a")])
    assert resolver._looked.rendered == {}
