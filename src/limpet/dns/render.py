"""Records of the cluster as an answer's bytes, by dnspython; each is made once and then kept."""

from __future__ import annotations

import struct
from dataclasses import replace
from ipaddress import ip_address

import dns.exception
import dns.message
import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from limpet.base.bounds.servers import DNS_BEHIND_ALIAS
from limpet.dns import wire
from limpet.dns.names import TTL_S, Found, Record
from limpet.dns.wire import DnsAnswer

_MOST_TURNS = 16
_NAME_ASKED_FOR = b"\xc0\x0c"
"""A pointer to the question's name, behind the header."""
_ADDRESS_BYTES = (16, 28)
"""Bytes of a whole A and a whole AAAA record with such a name."""
_TTL_AT = 6
"""Offset of the TTL: behind such a name, its type and its class."""


def render(question: bytes, found: Found, no: DnsAnswer) -> DnsAnswer:
    """The answer to a question of the cluster's own names; `no` says that there is nothing.

    Raises: ValueError where an object names what no message can have.
    """
    if not found.records:
        return replace(no, flags=wire.AA | found.code)
    if found.code == wire.NOERROR and not found.further:
        addresses = _render_addresses(question, found.records)
        if addresses is not None:
            return addresses
    if found.code == wire.NOERROR and _are_ports(question, found):
        return _render_ports(question, found)
    message = _message(question)
    try:
        _put(message.answer, found.records)
        _put(message.additional, found.further)
        answer = _answer(message, question, wire.AA | found.code)
    except dns.exception.DNSException as error:
        raise ValueError(f"records that cannot be told: {error}") from error
    asked = int.from_bytes(question[-4:-2], "big")
    is_told = asked in (wire.CNAME, wire.ANY) or any(each.type == asked for each in found.records)
    # Of an alias that leads out of the cluster, others say what there is.
    if found.code == wire.NOERROR and (is_told or found.target is not None):
        return answer
    shifted = tuple(at + len(answer.records) for at in no.ttls)
    return replace(
        answer,
        counts=(answer.counts[0], 1, answer.counts[2]),
        records=answer.records + no.records,
        ttls=answer.ttls + shifted,
    )


def _render_addresses(question: bytes, records: tuple[Record, ...]) -> DnsAnswer | None:
    """Answer with addresses of the name that is asked for, or of where its aliases lead: most are
    that, and a library takes 20 times as long for it. None: there is something else."""
    if records[-1].type not in (wire.A, wire.AAAA):
        return None
    rendered: list[bytes] = []
    ttls, at = [], 0
    name, owner = wire.split_name(question), _NAME_ASKED_FOR
    for each in records:
        if each.name != name:
            return None
        if each.type in (wire.A, wire.AAAA):
            data = ip_address(each.value).packed
        elif each.type == wire.CNAME:
            written = tuple(each.value.rstrip(".").encode().split(b"."))
            name, data = tuple(label.lower() for label in written), wire.join_name(written)
        else:
            return None
        head = struct.pack("!HHIH", each.type, wire.IN, TTL_S, len(data))
        rendered.append(owner + head + data)
        ttls.append(at + _TTL_AT)
        at += len(rendered[-1])
        if each.type == wire.CNAME:  # of these there are few: a pointer leads there
            place = wire.HEADER_BYTES + len(question) + at - len(data)
            owner = (wire.POINTER | place).to_bytes(2, "big")
    return DnsAnswer(wire.AA, (len(records), 0, 0), b"".join(rendered), tuple(ttls), TTL_S)


def _are_ports(question: bytes, found: Found) -> bool:
    name = wire.split_name(question)
    return all(each.type == wire.SRV and each.name == name for each in found.records) and all(
        each.type in (wire.A, wire.AAAA) for each in found.further
    )


def _render_ports(question: bytes, found: Found) -> DnsAnswer:
    """Ports of the name that is asked for, and the addresses of where they are: a library takes a
    tenth of a second for 500 of them. What has no room in a message is cut later."""
    start = wire.HEADER_BYTES + len(question)
    records, ttls = bytearray(), []
    places: dict[bytes, int] = {}
    for each in found.records:
        *numbers, host = each.value.split()
        name = wire.join_name(tuple(host.rstrip(".").encode().split(b".")))
        ttls.append(len(records) + _TTL_AT)
        try:
            data = b"".join(int(number).to_bytes(2, "big") for number in numbers) + name
        except OverflowError as error:
            raise ValueError(f"{each.value} is no port") from error
        head = struct.pack("!HHIH", wire.SRV, wire.IN, TTL_S, len(data))
        records += _NAME_ASKED_FOR + head + data
        places.setdefault(name.lower(), start + len(records) - len(name))
    for each in found.further:
        name = wire.join_name(each.name)
        at = places.get(name, wire.FARTHEST + 1)
        owner = name if at > wire.FARTHEST else (wire.POINTER | at).to_bytes(2, "big")
        data = ip_address(each.value).packed
        ttls.append(len(records) + len(owner) + 4)
        records += owner + struct.pack("!HHIH", each.type, wire.IN, TTL_S, len(data)) + data
    counts = (len(found.records), 0, len(found.further))
    return DnsAnswer(wire.AA, counts, bytes(records), tuple(ttls), TTL_S)


def take_turns(answer: DnsAnswer, turns: int) -> list[DnsAnswer]:
    """The same records in so many orders: each of the first `turns` is once before the others."""
    turns = min(turns, _MOST_TURNS, answer.counts[0])
    size, rest = divmod(len(answer.records), answer.counts[0] or 1)
    records = [answer.records[at : at + size] for at in range(0, len(answer.records), size or 1)]
    # Of one length, and each with the name that was asked for: none points into another.
    if turns < 2 or rest or answer.counts[1:] != (0, 0) or not all(map(_is_address, records)):
        return [answer]
    first, others = records[:turns], b"".join(records[turns:])
    return [
        replace(answer, records=b"".join([*first[at:], *first[:at], others])) for at in range(turns)
    ]


def _is_address(record: bytes) -> bool:
    return record[:2] == _NAME_ASKED_FOR and len(record) in _ADDRESS_BYTES


def render_no(soa: Record) -> DnsAnswer:
    """The answer that there is nothing of a name, for how long: the same behind every question."""
    name = dns.name.Name((*soa.name, b"")).to_wire()
    data = dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.SOA, soa.value).to_wire()
    assert name is not None
    assert data is not None
    head = struct.pack("!HHIH", wire.SOA, wire.IN, TTL_S, len(data))
    return DnsAnswer(wire.AA, (0, 1, 0), name + head + data, (len(name) + 4,), TTL_S)


def render_alias(
    question: bytes, found: Found, target: DnsAnswer, target_question: bytes
) -> DnsAnswer:
    """The aliases, and behind them what upstreams say of the name that the last one leads to,
    within `DNS_BEHIND_ALIAS`, as bytes: as many ask at once as wait for one answer.

    Raises: ValueError where that cannot be read, or fits into no message.
    """
    assert found.target is not None
    try:
        for each in found.records:
            dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.CNAME, each.value)
    except dns.exception.DNSException as error:
        raise ValueError(f"an alias that cannot be told: {error}") from error
    owners = [_NAME_ASKED_FOR, *(wire.join_name(each.name) for each in found.records[1:])]
    leads_to = [*owners[1:], wire.join_name(found.target)]
    aliases = b"".join(
        owner + struct.pack("!HHIH", wire.CNAME, wire.IN, TTL_S, len(name)) + name
        for owner, name in zip(owners, leads_to, strict=True)
    )
    before = len(question) + len(aliases)
    name_at = wire.HEADER_BYTES + before - len(leads_to[-1])
    try:
        moved = wire.moved_behind(
            target, len(target_question), DNS_BEHIND_ALIAS.most, to=before, name_at=name_at
        )
    except (IndexError, struct.error):
        raise ValueError("records end before their end") from None
    answers, authorities, _ = moved.counts
    return DnsAnswer(
        target.code,
        (len(owners) + answers, authorities, 0),
        aliases + moved.records,
        # Only what others have told is as old as their answer.
        tuple(at + len(aliases) for at in moved.ttls),
        target.ttl_s,
    )


def describe_response(response: bytes) -> list[str]:
    """Its records as a zone file has them. Raises: DNSException for what no zone file has."""
    message = dns.message.from_wire(response)
    sections = (*message.answer, *message.authority, *message.additional)
    return [line for rrset in sections for line in rrset.to_text().splitlines()]


def _message(question: bytes) -> dns.message.Message:
    message = dns.message.Message(0)
    kind = int.from_bytes(question[-4:-2], "big")
    name = dns.name.from_wire(question, 0)[0]
    message.question.append(dns.rrset.RRset(name, dns.rdataclass.IN, dns.rdatatype.RdataType(kind)))
    return message


def _put(section: list[dns.rrset.RRset], records: tuple[Record, ...]) -> None:
    for each in records:
        # One by one: the library shuffles the records of a set, and what is near comes first.
        name = dns.name.Name((*each.name, b""))
        kind = dns.rdatatype.RdataType(each.type)
        rrset = dns.rrset.RRset(name, dns.rdataclass.IN, kind)
        rrset.add(dns.rdata.from_text(dns.rdataclass.IN, kind, each.value), TTL_S)
        section.append(rrset)


def _answer(message: dns.message.Message, question: bytes, flags: int) -> DnsAnswer:
    bytes_ = message.to_wire(max_size=wire.LARGEST_TCP)
    start = wire.HEADER_BYTES + len(question)
    counts = tuple(int.from_bytes(bytes_[at : at + 2], "big") for at in (6, 8, 10))
    return DnsAnswer(
        flags,
        (counts[0], counts[1], counts[2]),
        bytes_[start:],
        wire.find_ttls(bytes_, start, sum(counts)),
        TTL_S,
    )
