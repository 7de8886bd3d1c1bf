"""The DNS-based service discovery specification 1.1, line by line, and what it leaves open."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.reversename
import pytest
from msgspec import structs

from limpet.base.bounds.strangers import DNS_ADDRESSES
from limpet.dns import wire
from limpet.dns.explain import slices_of
from limpet.dns.names import ClusterNames, Found
from limpet.dns.render import render, render_no
from limpet.services.catalog import Catalog
from limpet.services.rotation import Here
from limpet.services.values import (
    DOUBTED,
    READY,
    SERVING,
    TERMINATING,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Service,
    ServicePort,
)
from tests.fuzz.proportion import lines_of

HTTP = ServicePort("http", "TCP", 80)
ITEMS = (
    Service("default", "web", cluster_ips=("10.96.0.10", "fd00:96::10"), ports=(HTTP,)),
    Service("default", "plain", cluster_ips=("10.96.0.11",), ports=(ServicePort("", "UDP", 53),)),
    Service("default", "db", cluster_ips=("None",)),
    EndpointSlice(
        "default", "db-4", "db", 4, (EndpointPort("sql", "TCP", 5432),),
        (
            Endpoint("10.1.0.2", hostname="db-0"),
            Endpoint("10.1.0.3", hostname="DB-1"),
            Endpoint("10.1.0.4"),
            Endpoint("10.1.0.5", SERVING | TERMINATING, hostname="db-9"),
        ),
    ),
    EndpointSlice(
        "default", "db-6", "db", 6, (EndpointPort("sql", "TCP", 5432),),
        (Endpoint("fd00:1::2", hostname="db-0"),),
    ),
    Service("default", "cold", cluster_ips=("None",)),
    EndpointSlice("default", "cold-1", "cold", 4, (), (Endpoint("10.1.0.7", 0),)),
    Service("default", "early", cluster_ips=("None",), publish_not_ready=True),
    EndpointSlice("default", "early-1", "early", 4, (), (Endpoint("10.1.0.8", 0),)),
    Service("default", "out", type="ExternalName", external_name="www.example.com"),
    Service("other", "in", type="ExternalName", external_name="web.default.svc.cluster.local"),
    Service("other", "loop", type="ExternalName", external_name="pool.other.svc.cluster.local"),
    Service("other", "pool", type="ExternalName", external_name="loop.other.svc.cluster.local"),
)  # fmt: skip
NO_ERROR, NO_NAME = "NOERROR", "NXDOMAIN"


def names(*items: Service | EndpointSlice) -> tuple[Catalog, ClusterNames]:
    catalog = Catalog()
    for each in items or ITEMS:
        catalog.put(each)
    return catalog, ClusterNames(catalog, "cluster.local", (ip_address("169.254.20.10"),))


def asked(known: ClusterNames, name: str, kind: str) -> tuple[str, list[str]]:
    """The code and the answering records, as a client of another hand reads them."""
    query = dns.message.make_query(name, kind, use_edns=0, payload=4096)
    parsed = wire.parse_query(query.to_wire())
    found = known.look_up(parsed.name, parsed.type)
    assert found is not None, f"{name} {kind} is left to upstreams"
    answer = render(parsed.question, found, render_no(known.soa()))
    response = dns.message.from_wire(wire.write_response(parsed, answer, size=4096))
    assert query.is_response(response)
    lines = [
        " ".join((rrset.name.to_text(), *line.split()[3:]))
        for rrset in response.answer
        for line in rrset.to_text().splitlines()
    ]
    has_soa = any(each.rdtype == dns.rdatatype.SOA for each in response.authority)
    fits = [each for each in response.answer if each.rdtype in (parsed.type, wire.ANY)]
    assert has_soa == (not fits), "exactly a no has the SOA that says how long it holds"
    return dns.rcode.to_text(response.rcode()), lines


WEB, DB = "web.default.svc.cluster.local.", "db.default.svc.cluster.local."


@pytest.mark.parametrize(
    ("name", "kind", "code", "lines"),
    [
        ("dns-version.cluster.local", "TXT", NO_ERROR, ['dns-version.cluster.local. TXT "1.1.0"']),
        (WEB, "A", NO_ERROR, [f"{WEB} A 10.96.0.10"]),
        (WEB, "AAAA", NO_ERROR, [f"{WEB} AAAA fd00:96::10"]),
        ("WEB.Default.SVC.cluster.LOCAL", "A", NO_ERROR,
         ["WEB.Default.SVC.cluster.LOCAL. A 10.96.0.10"]),
        (f"_http._tcp.{WEB}", "SRV", NO_ERROR, [f"_http._tcp.{WEB} SRV 0 100 80 {WEB}"]),
        (f"_http._udp.{WEB}", "SRV", NO_NAME, []),
        (f"_tcp.{WEB}", "A", NO_ERROR, []),
        ("plain.default.svc.cluster.local", "AAAA", NO_ERROR, []),
        ("_._udp.plain.default.svc.cluster.local", "SRV", NO_NAME, []),
        ("10.0.96.10.in-addr.arpa", "PTR", NO_ERROR, [f"10.0.96.10.in-addr.arpa. PTR {WEB}"]),
        (DB, "A", NO_ERROR, [f"{DB} A 10.1.0.2", f"{DB} A 10.1.0.3", f"{DB} A 10.1.0.4"]),
        (DB, "AAAA", NO_ERROR, [f"{DB} AAAA fd00:1::2"]),
        (DB, "MX", NO_ERROR, []),
        (f"db-0.{DB}", "A", NO_ERROR, [f"db-0.{DB} A 10.1.0.2"]),
        (f"db-0.{DB}", "AAAA", NO_ERROR, [f"db-0.{DB} AAAA fd00:1::2"]),
        (f"db-1.{DB}", "A", NO_ERROR, [f"db-1.{DB} A 10.1.0.3"]),
        (f"db-1.{DB}", "AAAA", NO_ERROR, []),
        (f"10-1-0-4.{DB}", "A", NO_ERROR, [f"10-1-0-4.{DB} A 10.1.0.4"]),
        (f"db-9.{DB}", "A", NO_NAME, []),
        (f"_sql._tcp.{DB}", "SRV", NO_ERROR,
         [f"_sql._tcp.{DB} SRV 0 100 5432 db-0.{DB}", f"_sql._tcp.{DB} SRV 0 100 5432 db-1.{DB}",
          f"_sql._tcp.{DB} SRV 0 100 5432 10-1-0-4.{DB}"]),
        ("2.0.1.10.in-addr.arpa", "PTR", NO_ERROR, [f"2.0.1.10.in-addr.arpa. PTR db-0.{DB}"]),
        ("cold.default.svc.cluster.local", "A", NO_NAME, []),
        ("early.default.svc.cluster.local", "A", NO_ERROR,
         ["early.default.svc.cluster.local. A 10.1.0.8"]),
        ("in.other.svc.cluster.local", "A", NO_ERROR,
         [f"in.other.svc.cluster.local. CNAME {WEB}", f"{WEB} A 10.96.0.10"]),
        ("10-1-2-3.default.pod.cluster.local", "A", NO_ERROR,
         ["10-1-2-3.default.pod.cluster.local. A 10.1.2.3"]),
        ("fd00--1.default.pod.cluster.local", "AAAA", NO_ERROR,
         ["fd00--1.default.pod.cluster.local. AAAA fd00::1"]),
        ("10-1-2-3.default.pod.cluster.local", "AAAA", NO_ERROR, []),
        ("10-1-2.default.pod.cluster.local", "A", NO_NAME, []),
        ("none.default.svc.cluster.local", "A", NO_NAME, []),
        ("web.none.svc.cluster.local", "A", NO_NAME, []),
        ("default.svc.cluster.local", "A", NO_ERROR, []),
        ("none.svc.cluster.local", "A", NO_NAME, []),
        ("svc.cluster.local", "A", NO_ERROR, []),
        ("example.com.default.svc.cluster.local", "A", NO_NAME, []),
        ("example.com.cluster.local", "A", NO_NAME, []),
        ("ns.dns.cluster.local", "A", NO_ERROR, ["ns.dns.cluster.local. A 169.254.20.10"]),
    ],
)  # fmt: skip
def test_the_specification(name: str, kind: str, code: str, lines: list[str]) -> None:
    _, known = names()

    assert asked(known, name, kind) == (code, lines)


def test_endpoints_of_a_service_with_a_cluster_address_have_names_too() -> None:
    """As pods of a StatefulSet have whose governing Service is no headless one."""
    sql = ServicePort("sql", "TCP", 5432)
    catalog, known = names(
        Service("default", "db", cluster_ips=("10.96.0.9",), ports=(sql,)),
        *(each for each in ITEMS if isinstance(each, EndpointSlice)),
        EndpointSlice("default", "db-names", "db", 0, (), (Endpoint("a:b", hostname="db-8"),)),
    )

    for name, kind, addresses in (
        (f"db-0.{DB}", "A", ["10.1.0.2"]),
        (f"DB-0.{DB}", "AAAA", ["fd00:1::2"]),
        (f"db-1.{DB}", "A", ["10.1.0.3"]),
        (f"10-1-0-4.{DB}", "A", ["10.1.0.4"]),
        (DB, "A", ["10.96.0.9"]),
    ):
        assert asked(known, name, kind) == (
            NO_ERROR,
            [f"{name} {kind} {each}" for each in addresses],
        )
    for none in (f"db-9.{DB}", f"db-8.{DB}", f"10-1-0-2.{DB}", f"db-0.db-0.{DB}"):
        assert asked(known, none, "A") == (NO_NAME, [])
    known.changed(catalog.remove_slice("default", "db-4"))
    assert asked(known, f"db-1.{DB}", "A") == (NO_NAME, [])


def test_records_that_name_others_bring_their_addresses_along() -> None:
    _, known = names()

    found = known.look_up(wire.split_name(_wire(f"_http._tcp.{WEB}")), wire.SRV)

    assert found is not None
    assert [each.value for each in found.further] == ["10.96.0.10", "fd00:96::10"]


@pytest.mark.parametrize("name", ["example.com", "local", "9.9.9.9.in-addr.arpa", "in-addr.arpa"])
def test_names_of_others_are_left_to_upstreams(name: str) -> None:
    _, known = names()

    assert known.look_up(wire.split_name(_wire(name)), wire.A) is None


def test_a_name_of_the_cluster_with_a_search_domain_behind_it_is_nobodys() -> None:
    """C libraries ask for it before they ask for the name itself: an upstream that is away, or has
    a wildcard, would be in its way."""
    _, known = names()
    for name in (
        "web.default.svc.cluster.local.lan",
        "db-0.db.default.svc.cluster.local.site.example",
        "1-2-3-4.a.pod.cluster.local.x",
    ):
        found = known.look_up(tuple(name.encode().split(b".")), wire.A)
        assert found is not None
        assert (found.code, found.records) == (wire.NXDOMAIN, ())
    for name in ("svc.cluster.example", "cluster.local.lan", "pod.lan", "web.svc.lan"):
        assert known.look_up(tuple(name.encode().split(b".")), wire.A) is None
    short = ClusterNames(Catalog(), "local")
    assert short.look_up((b"web", b"svc", b"local", b"example"), wire.A) is None


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("none.default.svc.cluster.local", "SERVFAIL"),
        ("db-0.bare.default.svc.cluster.local", "SERVFAIL"),
        ("bare.default.svc.cluster.local", "SERVFAIL"),
        ("none.db.default.svc.cluster.local", NO_NAME),
        ("in.other.default.svc.cluster.local", NO_NAME),
        ("plc.lan.default.svc.cluster.local", NO_NAME),
        ("plc.lan.svc.cluster.local", NO_NAME),
        ("plc.lan.cluster.local", NO_NAME),
        ("www.example.com.svc.cluster.local", NO_NAME),
        ("www.example.com.cluster.local", NO_NAME),
        (WEB, NO_ERROR),
    ],
)
def test_only_what_may_be_a_service_that_was_lost_is_left_open(name: str, code: str) -> None:
    """A pod's search list is tried before the name itself, and musl ends at the first failure."""
    _, known = names(*ITEMS, Service("default", "bare", cluster_ips=("None",)))
    known.is_partial = True
    query = wire.parse_query(dns.message.make_query(name, "A").to_wire())

    found = known.look_up(query.name, query.type)

    assert found is not None
    assert dns.rcode.to_text(dns.rcode.Rcode(found.code)) == code


def test_a_service_whose_endpoints_alone_are_known_is_one_that_was_lost() -> None:
    _, known = names(*(each for each in ITEMS if isinstance(each, EndpointSlice)))
    known.is_partial = True

    found = known.look_up(wire.split_name(_wire(DB)), wire.A)

    assert found is not None
    assert found.code == wire.SERVFAIL


def test_an_alias_out_of_the_cluster_says_where_to_ask_on() -> None:
    _, known = names()

    found = known.look_up(wire.split_name(_wire("out.default.svc.cluster.local")), wire.A)

    assert found is not None
    assert found.target == (b"www", b"example", b"com")


def test_aliases_that_lead_to_each_other_end() -> None:
    _, known = names()

    found = known.look_up(wire.split_name(_wire("loop.other.svc.cluster.local")), wire.A)

    assert found == Found(wire.SERVFAIL, because="aliases that lead to each other")


@pytest.mark.parametrize(
    ("name", "kind", "slices"),
    [
        (DB, "A", ["db-4"]),
        (DB, "ANY", ["db-4", "db-6"]),
        (f"db-0.{DB}", "AAAA", ["db-6"]),
        (f"_sql._tcp.{DB}", "SRV", ["db-4", "db-6"]),
        ("2.0.1.10.in-addr.arpa", "PTR", ["db-4"]),
        (DB, "MX", []),
        ("cold.default.svc.cluster.local", "A", []),
        (WEB, "A", []),
        ("10.0.96.10.in-addr.arpa", "PTR", []),
        ("out.default.svc.cluster.local", "A", []),
        ("10-1-2-3.default.pod.cluster.local", "A", []),
    ],
)
def test_slices_are_named_that_a_headless_services_answer_is_of(
    name: str, kind: str, slices: list[str]
) -> None:
    _, known = names()
    query = wire.parse_query(dns.message.make_query(name, kind).to_wire())
    found = known.look_up(query.name, query.type)
    assert found is not None
    assert slices_of(found, known) == slices


def test_a_service_that_goes_takes_its_names_along() -> None:
    catalog, known = names()

    known.changed(catalog.remove_service("default", "web"))
    known.changed(catalog.remove_slice("default", "db-4"))

    assert asked(known, WEB, "A") == (NO_NAME, [])
    assert asked(known, DB, "A") == (NO_ERROR, [])
    assert known.look_up(wire.split_name(_wire("2.0.1.10.in-addr.arpa")), wire.PTR) is None
    for key in ("plain", "db", "cold", "early", "out"):
        known.changed(catalog.remove_service("default", key))
    assert asked(known, "default.svc.cluster.local", "A") == (NO_NAME, [])


def rotation(*endpoints: Endpoint, publish_not_ready: bool = False) -> ClusterNames:
    """Of a headless Service of these."""
    service = Service("default", "db", cluster_ips=("None",), publish_not_ready=publish_not_ready)
    ports = (EndpointPort("sql", "TCP", 5432),)
    by_family: dict[int, list[Endpoint]] = {4: [], 6: []}
    for each in endpoints:
        by_family[6 if ":" in each.address else 4].append(each)
    slices = [
        EndpointSlice("default", f"db-{version}", "db", version, ports, tuple(found))
        for version, found in by_family.items()
    ]
    return names(service, *slices)[1]


def told(known: ClusterNames, name: str = DB, kind: str = "A") -> list[str]:
    return [line.split()[-1] for line in asked(known, name, kind)[1]]


NEAR = Here("here", distances={"near": 1, "far": 4})
SPREAD = (
    Endpoint("10.1.0.1", node="unknown", hostname="u"),
    Endpoint("10.1.0.2", node="far", hostname="f"),
    Endpoint("10.1.0.3", node="near", hostname="n"),
    Endpoint("10.1.0.4", node="here", hostname="h"),
)


def test_many_addresses_of_one_family_leave_room_for_those_of_the_other() -> None:
    ports = (EndpointPort("sql", "TCP", 5432),)
    many = tuple(Endpoint(f"10.2.{n >> 8}.{n & 255}") for n in range(DNS_ADDRESSES.most + 1))
    _, known = names(
        Service("default", "db", cluster_ips=("None",)),
        EndpointSlice("default", "db-4", "db", 4, ports, many),
        EndpointSlice("default", "db-6", "db", 6, ports, (Endpoint("fd00:1::2"),)),
    )

    found = known.look_up((b"db", b"default", b"svc", b"cluster", b"local"), wire.A)
    assert found is not None
    assert len(found.records) == DNS_ADDRESSES.most
    assert told(known, kind="AAAA") == ["fd00:1::2"]


def test_near_endpoints_come_first() -> None:
    known = rotation(*SPREAD)

    known.set_here(NEAR)

    assert told(known) == ["10.1.0.4", "10.1.0.3", "10.1.0.2", "10.1.0.1"]
    assert told(known, f"_sql._tcp.{DB}", "SRV") == [f"{x}.{DB}" for x in ("h", "n", "f", "u")]


def test_endpoints_that_are_known_to_be_dead_are_left_out_but_keep_their_own_names() -> None:
    known = rotation(*SPREAD)

    known.set_here(replace(NEAR, silent=frozenset({"near"}), gone=frozenset({"10.1.0.4"})))

    assert told(known) == ["10.1.0.2", "10.1.0.1"]
    assert told(known, f"_sql._tcp.{DB}", "SRV") == [f"f.{DB}", f"u.{DB}"]
    assert told(known, f"n.{DB}") == ["10.1.0.3"]
    reverse = "3.0.1.10.in-addr.arpa."
    assert told(known, reverse, "PTR") == [f"n.{DB}"]


def test_where_nothing_but_doubt_is_left_all_are_told_and_each_family_by_itself() -> None:
    known = rotation(Endpoint("10.1.0.2", node="a"), Endpoint("fd00::3", node="b"))

    known.set_here(Here("here", silent=frozenset({"a"})))

    assert told(known) == ["10.1.0.2"]
    assert told(known, DB, "AAAA") == ["fd00::3"]


def test_those_a_server_could_not_hear_are_told_where_none_is_ready_and_keep_their_own_names() -> (
    None
):
    heard, unheard = SPREAD[0], structs.replace(SPREAD[1], conditions=DOUBTED)
    known = rotation(heard, unheard, Endpoint("fd00::3", DOUBTED, node="far"))

    assert told(known) == ["10.1.0.1"]
    assert told(known, DB, "AAAA") == ["fd00::3"]
    assert told(known, f"f.{DB}") == ["10.1.0.2"]
    assert told(rotation(unheard, structs.replace(heard, conditions=0))) == ["10.1.0.2"]


def test_a_service_that_wants_its_endpoints_in_any_state_has_doubtful_ones_last() -> None:
    known = rotation(*SPREAD, publish_not_ready=True)

    known.set_here(replace(NEAR, silent=frozenset({"near"})))

    assert told(known) == ["10.1.0.4", "10.1.0.2", "10.1.0.1", "10.1.0.3"]


def test_only_what_has_endpoints_of_its_own_changes_with_who_is_near() -> None:
    _, known = names()

    assert known.set_here(NEAR) == {("default", "db"), ("default", "early")}
    assert known.set_here(NEAR) == set()


def test_addresses_that_are_written_in_another_way_are_the_same() -> None:
    known = rotation(Endpoint("FD00:0:0::9"))

    assert told(known, DB, "AAAA") == ["fd00::9"]
    reverse = dns.reversename.from_address("fd00::9").to_text()
    (name,) = told(known, reverse, "PTR")
    assert told(known, name, "AAAA") == ["fd00::9"]


def test_an_endpoint_that_comes_is_found_both_ways() -> None:
    catalog, known = names()
    more = EndpointSlice(
        "default", "cold-2", "cold", 6, (), (Endpoint("fd00:1::9", READY, hostname="c"),)
    )

    known.changed(catalog.put(more))

    cold = "cold.default.svc.cluster.local."
    assert asked(known, cold, "AAAA") == (NO_ERROR, [f"{cold} AAAA fd00:1::9"])
    reverse = dns.reversename.from_address("fd00:1::9").to_text()
    assert asked(known, reverse, "PTR") == (NO_ERROR, [f"{reverse} PTR c.{cold}"])


def _wire(name: str) -> bytes:
    encoded = dns.name.from_text(name).to_wire()
    assert encoded is not None
    return encoded


def test_an_address_with_two_names_has_both_and_both_go() -> None:
    catalog = Catalog()
    catalog.put(Service("default", "db", cluster_ips=("None",)))
    endpoints = (Endpoint("10.1.0.2", hostname="one"), Endpoint("10.1.0.2", hostname="two"))
    catalog.put(EndpointSlice("default", "db-4", "db", 4, (), endpoints))
    known = ClusterNames(catalog, "cluster.local")
    reverse = "2.0.1.10.in-addr.arpa."
    assert told(known, reverse, "PTR") == [f"one.{DB}", f"two.{DB}"]

    known.changed(catalog.remove_slice("default", "db-4"))

    assert known.look_up(wire.split_name(_wire("2.0.1.10.in-addr.arpa")), wire.PTR) is None


def large(count: int) -> tuple[Catalog, ClusterNames]:
    """A headless Service of so many endpoints, a hundred a slice."""
    ports = (EndpointPort("sql", "TCP", 5432),)
    slices = [
        EndpointSlice(
            "default", f"db-{piece:04}", "db", 4, ports,
            tuple(
                Endpoint(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", hostname=f"h{n}")
                for n in range(piece * 100, piece * 100 + 100)
            ),
        )
        for piece in range(count // 100)
    ]  # fmt: skip
    return names(Service("default", "db", cluster_ips=("None",)), *slices)


ASKED = [
    (DB, wire.A),
    (f"_sql._tcp.{DB}", wire.SRV),
    (f"_none._tcp.{DB}", wire.SRV),
    (f"h7.{DB}", wire.A),
    (f"none.{DB}", wire.A),
]


@pytest.mark.parametrize(("name", "kind"), ASKED)
def test_what_is_asked_costs_the_same_however_many_endpoints_there_are(
    name: str, kind: int
) -> None:
    """More than an answer holds are not looked at."""

    def lines(count: int) -> int:
        known = large(count)[1]
        known.look_up(wire.split_name(_wire(name)), kind)
        return lines_of(lambda: known.look_up(wire.split_name(_wire(name)), kind))

    few, many = DNS_ADDRESSES.most + 904, 2 * DNS_ADDRESSES.most + 1808
    assert lines(many) < 1.1 * lines(few)


def test_targets_of_ports_bring_their_addresses_along_without_a_look_at_the_others() -> None:
    """A port's 512 targets cost 512 looks, whatever there is."""

    def lines(count: int) -> int:
        known = large(count)[1]
        name = wire.split_name(_wire(f"_sql._tcp.{DB}"))
        found = known.look_up(name, wire.SRV)
        assert found is not None
        assert len(found.records) == len(found.further) == min(count, 512)
        return lines_of(lambda: known.look_up(name, wire.SRV))

    assert lines(400) < 3 * lines(200)


def test_a_change_costs_what_has_changed_however_many_endpoints_there_are() -> None:
    def lines(count: int) -> int:
        catalog, known = large(count)
        (piece,) = [each for each in catalog.slices("default", "db") if each.name == "db-0001"]
        changed = catalog.put(structs.replace(piece, endpoints=piece.endpoints[1:]))
        return lines_of(lambda: known.changed(changed))

    # A few lines for each slice, of which some have changed.
    assert lines(4000) < 1.5 * lines(2000)


class _ComparedName(str):
    """A name of a slice whose comparisons run a line each, so that sorting them is counted."""

    def __lt__(self, other: str) -> bool:
        return str(self) < str(other)


def small_slices(count: int) -> tuple[Catalog, ClusterNames, list[EndpointSlice]]:
    """One endpoint in each slice; the last one alone has a port `odd`."""
    ports = (EndpointPort("sql", "TCP", 5432),)
    odd = (*ports, EndpointPort("odd", "TCP", 5433))
    slices = [
        EndpointSlice(
            "default", _ComparedName(f"db-{n:05}"), "db", 4, odd if n == count - 1 else ports,
            (Endpoint(f"10.0.{n >> 8}.{n & 255}"),),
        )
        for n in range(count)
    ]  # fmt: skip
    return *names(Service("default", "db", cluster_ips=("None",)), *slices), slices


@pytest.mark.parametrize("port", ["sql", "odd", "none"])
def test_what_is_asked_costs_the_same_however_many_slices_there_are(port: str) -> None:
    """More than the 512 targets of an answer are not looked at, and no names of slices sorted."""

    def lines(count: int) -> int:
        known = small_slices(count)[1]
        name = wire.split_name(_wire(f"_{port}._tcp.{DB}"))
        return lines_of(lambda: known.look_up(name, wire.SRV))

    assert lines(8000) < lines(600) + 100


def test_a_change_costs_what_has_changed_however_many_slices_there_are() -> None:
    def lines(count: int) -> int:
        catalog, known, slices = small_slices(count)
        changed = catalog.put(structs.replace(slices[7], endpoints=(Endpoint("10.9.9.9"),)))
        return lines_of(lambda: known.changed(changed))

    assert lines(1600) < 1.1 * lines(400) + 20


@pytest.mark.parametrize("others", [0, 5000])
def test_a_change_that_is_told_late_is_taken_all_the_same(others: int) -> None:
    """Also behind more changes than anybody remembers."""
    catalog, known, slices = small_slices(3)
    catalog.put(structs.replace(slices[0], endpoints=(Endpoint("10.9.9.9"),)))
    catalog.remove_slice("default", slices[1].name)
    for number in range(others):
        catalog.put(EndpointSlice("other", "in", "in", 4, (), (Endpoint(f"10.8.0.{number % 9}"),)))
    known.changed([("other", "in")])
    catalog.put(structs.replace(slices[2], endpoints=(Endpoint("10.9.9.8"),)))

    known.changed([("default", "db")])

    assert asked(known, DB, "A")[1] == [f"{DB} A {each}" for each in ("10.9.9.9", "10.9.9.8")]
