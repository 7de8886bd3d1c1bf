"""Answers of the cluster's names as bytes, against a library of another hand."""

from __future__ import annotations

import contextlib
import itertools
import struct
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import dns.message
import dns.rrset
import pytest
from dns.rdatatype import RdataType
from hypothesis import example, given
from hypothesis import strategies as st

from limpet.base.bounds.servers import DNS_BEHIND_ALIAS
from limpet.dns import wire
from limpet.dns.names import TTL_S, Found, Record
from limpet.dns.render import render, render_alias, render_no
from limpet.dns.wire import DnsAnswer
from tests.fuzz.proportion import lines_of

NAME = (b"web", b"default", b"svc", b"cluster", b"local")
ZONE = NAME[2:]
NO = render_no(Record(ZONE, wire.SOA, f"ns.x. h.x. 1 7200 1800 86400 {TTL_S}"))
QUERY = dns.message.make_query("Web.Default.svc.cluster.local", "ANY", use_edns=0, payload=1232)


def told(records: tuple[Record, ...], **more: int) -> dns.message.Message:
    query = wire.parse_query(QUERY.to_wire())
    answer = render(query.question, Found(wire.NOERROR, records), NO)
    response = wire.write_response(query, answer, size=wire.LARGEST_TCP, **more)
    return dns.message.from_wire(response, one_rr_per_rrset=True)


@given(st.lists(st.ip_addresses(), min_size=1, max_size=20, unique=True), st.integers(0, 9))
def test_addresses_are_told_as_they_are_in_their_order_and_grow_old(
    addresses: list[IPv4Address | IPv6Address], age_s: int
) -> None:
    records = tuple(
        Record(NAME, wire.A if each.version == 4 else wire.AAAA, str(each)) for each in addresses
    )

    response = told(records, age_s=age_s)

    expected = [
        dns.rrset.from_text(QUERY.question[0].name, 0, "IN", RdataType(each.type), each.value)
        for each in records
    ]
    assert response.answer == expected
    assert {rrset.ttl for rrset in response.answer} == {max(TTL_S - age_s, 0)}
    assert response.question[0].name.to_text() == "Web.Default.svc.cluster.local."
    assert response.authority == response.additional == []


def test_an_address_behind_an_alias_is_not_the_askers() -> None:
    target = (b"other", *NAME[1:])
    alias = Record(NAME, wire.CNAME, f"{wire.text_of(target)}.")

    response = told((alias, Record(target, wire.A, "10.96.0.1")))

    names = [rrset.name.to_text().lower() for rrset in response.answer]
    assert names == [f"{wire.text_of(NAME)}.", f"{wire.text_of(target)}."]


@given(
    st.lists(st.sampled_from(["a", "b.default", "C" * 63, "x.example"]), max_size=4),
    st.lists(st.ip_addresses(), min_size=1, max_size=9),
    st.integers(0, 60),
)
def test_addresses_behind_aliases_stand_in_an_answer_as_the_library_has_them(
    aliases: list[str], addresses: list[IPv4Address | IPv6Address], age_s: int
) -> None:
    names = [NAME, *((*alias.encode().split(b"."), *ZONE) for alias in aliases)]
    chain = tuple(
        Record(tuple(label.lower() for label in one), wire.CNAME, f"{wire.text_of(other)}.")
        for one, other in itertools.pairwise(names)
    )
    last = tuple(label.lower() for label in names[-1])
    found = tuple(
        Record(last, wire.A if each.version == 4 else wire.AAAA, str(each)) for each in addresses
    )

    response = told((*chain, *found), age_s=age_s)

    expected = [
        dns.rrset.from_text(
            f"{wire.text_of(each.name)}.", 0, "IN", RdataType(each.type), each.value
        )
        for each in (*chain, *found)
    ]
    assert response.answer == expected
    assert {rrset.ttl for rrset in response.answer} == {max(TTL_S - age_s, 0)}


@pytest.mark.parametrize(("kind", "has_soa"), [("AAAA", True), ("A", False), ("CNAME", False)])
def test_where_an_alias_leads_to_nothing_of_the_kind_it_is_said_for_how_long(
    kind: str, has_soa: bool
) -> None:
    """RFC 2308 section 2.2: else nobody remembers that there is none."""
    target = (b"other", *NAME[1:])
    alias = Record(NAME, wire.CNAME, f"{wire.text_of(target)}.")
    query = dns.message.make_query(wire.text_of(NAME), kind)
    question = wire.parse_query(query.to_wire())

    records = (alias, Record(target, wire.A, "10.96.0.1")) if kind == "A" else (alias,)
    answer = render(question.question, Found(wire.NOERROR, records), NO)
    response = dns.message.from_wire(wire.write_response(question, answer, size=wire.LARGEST_TCP))

    assert [each.rdtype for each in response.authority] == [RdataType.SOA] * has_soa
    assert len(response.answer) == len(records)


def test_an_alias_does_not_grow_old_with_what_others_say_of_its_target() -> None:
    leads_to = (b"db", b"example", b"com")
    alias = Found(wire.NOERROR, (Record(NAME, wire.CNAME, "db.example.com."),), target=leads_to)
    asked = dns.message.make_query("db.example.com", "A")
    told = dns.message.make_response(asked)
    told.answer.append(dns.rrset.from_text("db.example.com.", 300, "IN", "A", "192.0.2.80"))
    target_question = wire.parse_query(asked.to_wire()).question
    target = wire.parse_response(told.to_wire(), asked.id, target_question)
    assert target is not None
    query = wire.parse_query(dns.message.make_query(wire.text_of(NAME), "A").to_wire())

    answer = render_alias(query.question, alias, target, target_question)

    for age_s, ttl_s, ttls in ((40, None, [TTL_S, 260]), (0, 30, [TTL_S, 30])):
        response = wire.write_response(
            query, answer, size=wire.LARGEST_TCP, age_s=age_s, ttl_s=ttl_s
        )
        assert [each.ttl for each in dns.message.from_wire(response).answer] == ttls


_ENDS = st.tuples(st.sampled_from(["a", "B", "c" * 63]), st.integers(1, 65535), st.ip_addresses())


@given(st.lists(_ENDS, min_size=1, max_size=9), st.booleans())
@example(ends=[("c" * 63, port, IPv4Address(port)) for port in range(1, 601)], has_further=True)
@example(ends=[("c" * 63, port, IPv4Address(port)) for port in range(1, 201)], has_further=True)
def test_ports_and_where_they_are_stand_in_an_answer_as_the_library_has_them(
    ends: list[tuple[str, int, IPv4Address | IPv6Address]], has_further: bool
) -> None:
    """Also where a pointer does not lead any more, and what has no room in a message is cut."""
    name = (b"_http", b"_tcp", *NAME)
    ports = [f"0 100 {port} {host}.{wire.text_of(NAME)}." for host, port, _ in ends]
    further = [
        Record((host.lower().encode(), *NAME), wire.A if at.version == 4 else wire.AAAA, str(at))
        for host, _, at in ends
    ]
    found = Found(
        wire.NOERROR,
        tuple(Record(name, wire.SRV, each) for each in ports),
        tuple(further) if has_further else (),
    )
    query = wire.parse_query(dns.message.make_query(wire.text_of(name), "SRV").to_wire())

    message = wire.write_response(
        query, render(query.question, found, NO), size=wire.LARGEST_TCP, age_s=3
    )

    response = dns.message.from_wire(message, one_rr_per_rrset=True)
    told = [each.to_text().partition(" SRV ")[2] for each in response.answer]
    assert told == ports[: len(told)]
    assert len(told) == len(ports) or len(message) > wire.LARGEST_TCP - 400
    expected = [
        dns.rrset.from_text(
            f"{wire.text_of(each.name)}.", 0, "IN", RdataType(each.type), each.value
        )
        for each in further[: len(response.additional)]
    ]
    assert response.additional == expected
    assert {each.ttl for each in (*response.answer, *response.additional)} == {TTL_S - 3}


_LABELS = ["db", "example", "com", "www", "a" * 60]
_HOSTS = st.lists(st.sampled_from(_LABELS), min_size=1, max_size=4).map(".".join)
_TOLD = st.one_of(
    _HOSTS.map(lambda host: ("CNAME", f"{host}.")),
    _HOSTS.map(lambda host: ("NS", f"{host}.")),
    _HOSTS.map(lambda host: ("MX", f"10 {host}.")),
    st.tuples(_HOSTS, _HOSTS).map(lambda two: ("SOA", f"{two[0]}. {two[1]}. 1 2 3 4 60")),
    _HOSTS.map(lambda host: ("SRV", f"0 100 80 {host}.")),
    st.just(("A", "192.0.2.1")),
    st.just(("TXT", '"words"')),
)


@given(
    st.lists(st.tuples(_HOSTS, _TOLD), max_size=12),
    st.lists(st.tuples(_HOSTS, _TOLD), max_size=3),
    st.sampled_from(["db.example.com", "example.com", "www"]),
    st.integers(0, 3),
)
def test_what_stands_behind_an_alias_is_what_was_said_of_its_target(
    said: list[tuple[str, tuple[str, str]]],
    also: list[tuple[str, tuple[str, str]]],
    name: str,
    between: int,
) -> None:
    """Names that are compressed in the answer lead to the same names, against the library."""
    target = tuple(name.encode().split(b"."))
    told = dns.message.make_response(dns.message.make_query(name, "ANY", use_edns=False))
    for section, records in ((told.answer, said), (told.authority, also)):
        section += [
            dns.rrset.from_text(f"{owner}.", 60, "IN", *record) for owner, record in records
        ]
    question = wire.join_name(target) + struct.pack("!HH", wire.ANY, wire.IN)
    answer = wire.parse_response(told.to_wire(), told.id, question)
    assert answer is not None
    names = [NAME, *((b"alias%d" % each, *ZONE) for each in range(between)), target]
    aliases = tuple(
        Record(one, wire.CNAME, f"{wire.text_of(other)}.")
        for one, other in itertools.pairwise(names)
    )
    query = wire.parse_query(dns.message.make_query(wire.text_of(NAME), "ANY").to_wire())

    found = Found(wire.NOERROR, aliases, target=target)
    moved = render_alias(query.question, found, answer, question)
    message = wire.write_response(query, moved, size=wire.LARGEST_TCP)

    response = dns.message.from_wire(message, one_rr_per_rrset=True)
    lines = [
        *(f"{wire.text_of(each.name)}. {TTL_S} IN CNAME {each.value}" for each in aliases),
        *(rrset.to_text() for rrset in told.answer),
    ]
    assert [rrset.to_text() for rrset in response.answer] == lines
    assert [each.to_text() for each in response.authority] == [e.to_text() for e in told.authority]
    older = dns.message.from_wire(
        wire.write_response(query, moved, size=wire.LARGEST_TCP, age_s=10), one_rr_per_rrset=True
    )
    assert [rrset.ttl for rrset in older.answer] == [
        *(TTL_S for _ in aliases),
        *(50 for _ in told.answer),
    ]


@given(st.binary(max_size=300), st.integers(0, 9), st.integers(0, 4))
def test_behind_an_alias_nonsense_is_refused_or_told_within_its_bound(
    junk: bytes, answers: int, authorities: int
) -> None:
    target = (b"db", b"example", b"com")
    question = wire.join_name(NAME) + struct.pack("!HH", wire.A, wire.IN)
    asked = wire.join_name(target) + question[-4:]
    found = Found(wire.NOERROR, (Record(NAME, wire.CNAME, "db.example.com."),), target=target)
    said = DnsAnswer(wire.NOERROR, (answers, authorities, 0), junk, (), 60)
    with contextlib.suppress(ValueError):
        assert len(render_alias(question, found, said, asked).records) <= len(junk) + 30


def _hostile(target: tuple[bytes, ...], count: int) -> DnsAnswer:
    """As many records of ports: each has a host of 250 letters, which is in the answer once."""
    question = wire.join_name(target) + struct.pack("!HH", wire.SRV, wire.IN)
    host = wire.join_name((b"a" * 61,) * 4)
    first = host + struct.pack("!HHIH", wire.A, wire.IN, 60, 4) + bytes(4)
    points = struct.pack("!H", 0xC000 | wire.HEADER_BYTES + len(question))
    further = [
        b"\xc0\x0c" + struct.pack("!HHIHHHH", wire.SRV, wire.IN, 60, 8, 0, 0, port) + points
        for port in range(count)
    ]
    counts = struct.pack("!HHHHHH", 7, wire.QR, 1, 1 + count, 0, 0)
    answer = wire.parse_response(counts + question + b"".join([first, *further]), 7, question)
    assert answer is not None
    return answer


@pytest.mark.parametrize("count", [300, 3000])
def test_behind_an_alias_there_is_no_more_than_may_be_said_whatever_others_answer(
    count: int,
) -> None:
    """Written out, as the library does, 300 of these records fit into no message; it took 15 ms for
    each who asks, of whom 256 may wait for one answer."""
    target = (b"db", b"example", b"com")
    question = wire.join_name(NAME) + struct.pack("!HH", wire.SRV, wire.IN)
    asked = wire.join_name(target) + question[-4:]
    alias = Found(wire.NOERROR, (Record(NAME, wire.CNAME, "db.example.com."),), target=target)

    answer = render_alias(question, alias, _hostile(target, count), asked)

    assert 2 < answer.counts[0] < 150
    assert len(answer.records) < DNS_BEHIND_ALIAS.most + 100
    query = wire.Query(7, 0, question, wire.LARGEST_UDP, has_edns=False, wants_dnssec=False)
    response = dns.message.from_wire(wire.write_response(query, answer, size=wire.LARGEST_TCP))
    assert response.answer[0].to_text() == f"{wire.text_of(NAME)}. {TTL_S} IN CNAME db.example.com."


def test_a_record_of_an_answer_costs_some_lines_of_ours_and_not_the_librarys_hundreds() -> None:
    """Addresses behind an alias, ports with their addresses, and what stands behind an alias that
    leads out: each is asked for by pods, of which one keeps the others waiting."""
    target = (b"db", *NAME[1:])
    alias = Record(NAME, wire.CNAME, f"{wire.text_of(target)}.")
    addresses = tuple(Record(target, wire.A, f"10.1.0.{number}") for number in range(100))
    port = (b"_http", b"_tcp", *NAME)
    ports = tuple(Record(port, wire.SRV, f"0 100 {each} h.x.") for each in range(1, 101))
    hosts = tuple(replace(each, name=(b"h", b"x")) for each in addresses)
    question = wire.join_name(NAME) + struct.pack("!HH", wire.A, wire.IN)
    asked_port = wire.join_name(port) + struct.pack("!HH", wire.SRV, wire.IN)
    out = Found(wire.NOERROR, (alias,), target=target)
    asked = wire.join_name(target) + struct.pack("!HH", wire.SRV, wire.IN)

    behind = lines_of(lambda: render(question, Found(wire.NOERROR, (alias, *addresses)), NO))
    with_hosts = lines_of(lambda: render(asked_port, Found(wire.NOERROR, ports, hosts), NO))
    said = _hostile(target, 99)
    moved = lines_of(lambda: render_alias(question, out, said, asked))

    assert behind < 80 * 101
    assert with_hosts < 80 * 200
    assert moved < 80 * 100


def test_names_in_a_port_s_record_are_not_compressed() -> None:
    """RFC 2782: the target; who reads records of types that it does not know cannot undo it."""
    name = (b"_http", b"_tcp", *NAME)
    query = dns.message.make_query(wire.text_of(name), "SRV")
    question = wire.parse_query(query.to_wire()).question
    record = Record(name, wire.SRV, f"0 100 80 {wire.text_of(NAME)}.")

    answer = render(question, Found(wire.NOERROR, (record,)), NO)

    data = struct.pack("!HHH", 0, 100, 80) + wire.join_name(NAME)
    assert answer.records.endswith(len(data).to_bytes(2, "big") + data)


@pytest.mark.parametrize("name", ["a b.c.", "a..b.", "(.", '".', f"{'x' * 64}.y.", "\\300."])
def test_what_is_no_name_is_told_as_such(name: str) -> None:
    question = wire.join_name(NAME) + b"\0\x01\0\x01"

    with pytest.raises(ValueError, match="cannot be told"):
        render(question, Found(wire.NOERROR, (Record(NAME, wire.CNAME, name),)), NO)


def test_a_name_that_is_not_there_needs_no_records() -> None:
    question = wire.join_name(NAME) + b"\0\x01\0\x01"

    answer = render(question, Found(wire.NXDOMAIN), NO)

    assert answer == DnsAnswer(wire.AA | wire.NXDOMAIN, (0, 1, 0), NO.records, NO.ttls, TTL_S)
