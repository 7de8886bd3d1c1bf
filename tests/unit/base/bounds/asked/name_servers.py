"""Probes of what name servers answer to the names' process, and of which there are."""

from __future__ import annotations

import asyncio
import tempfile
from ipaddress import ip_address
from pathlib import Path

import dns.message
import dns.rrset

from limpet.base.bounds import servers
from limpet.base.settings import DnsSettings
from limpet.dns import wire
from limpet.dns.forward.cache import _ENTRY_BYTES, Cache
from limpet.dns.forward.effects import AskUpstream, Deliver
from limpet.dns.forward.forwarder import Forwarder
from limpet.dns.forward.health import Upstream
from limpet.dns.forward.upstreams import read_upstreams
from limpet.dns.names import Found, Record
from limpet.dns.process import _Process
from limpet.dns.render import render_alias
from limpet.dns.wire import DnsAnswer
from tests.unit.base.bounds.probes import probe


@probe(servers.DNS_UPSTREAMS)
def _(amount: int) -> bool:
    with tempfile.NamedTemporaryFile("w") as file:
        file.writelines(f"nameserver 192.0.2.{number}\n" for number in range(amount))
        file.flush()
        return len(read_upstreams(Path(file.name), ())) == amount


@probe(servers.DNS_TTL_S)
def _(amount: int) -> bool:
    query = dns.message.make_query("www.example.com", "A", use_edns=False, id=7)
    response = dns.message.make_response(query)
    response.answer.append(dns.rrset.from_text("www.example.com.", amount, "IN", "A", "192.0.2.1"))
    question = query.to_wire()[wire.HEADER_BYTES :]
    answer = wire.parse_response(response.to_wire(), 7, question)
    assert answer is not None
    return answer.ttl_s == amount


@probe(servers.DNS_NO_TTL_S)
def _(amount: int) -> bool:
    query = dns.message.make_query("www.example.com", "A", use_edns=False, id=7)
    response = dns.message.make_response(query)
    soa = f"ns.example.com. h.example.com. 1 2 3 4 {amount}"
    response.authority.append(dns.rrset.from_text("example.com.", amount, "IN", "SOA", soa))
    answer = wire.parse_response(response.to_wire(), 7, query.to_wire()[wire.HEADER_BYTES :])
    assert answer is not None
    return answer.ttl_s == amount


def _cache() -> Cache:
    """That of the names' process."""

    async def make(folder: Path) -> Cache:
        process = _Process(DnsSettings(), folder, folder)
        try:
            return process._resolver.forwarder.cache
        finally:
            process.close()

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(make(Path(folder)))


@probe(servers.DNS_CACHE)
def _(amount: int) -> bool:
    """The first of two answers is still there."""
    cache = _cache()
    small, rest = bytes(100), bytes(amount - 2 * (_ENTRY_BYTES + 1) - 100)
    for name, records in ((b"a", small), (b"b", rest)):
        cache.put((name, 0), DnsAnswer(wire.NOERROR, (1, 0, 0), records, ttl_s=60), 0.0)
    return cache.get((b"a", 0), 1.0) is not None


@probe(servers.DNS_RECORDS)
def _(amount: int) -> bool:
    question = wire.join_name((b"a", b"x")) + b"\0\1\0\1"
    head = bytes((0, 7, 0x80, 0, 0, 1, *amount.to_bytes(2, "big"), 0, 0, 0, 0))
    record = b"\xc0\x0c" + b"\0\1\0\1\0\0\0\x3c" + b"\0\4" + bytes(4)
    answer = wire.parse_response(head + question + amount * record, 7, question)
    assert answer is not None
    assert answer.records == answer.counts[0] * record
    return answer.counts == (amount, 0, 0)


@probe(servers.DNS_BEHIND_ALIAS)
def _(amount: int) -> bool:
    """All that was said stands behind the alias."""
    question = wire.join_name((b"a", b"x")) + b"\0\1\0\1"
    target = (b"b", b"y")
    asked = wire.join_name(target) + question[-4:]
    room = amount - wire.HEADER_BYTES - len(asked)
    count, rest = divmod(room, 17)
    head = b"\xc0\x0c" + b"\0\x10\0\1\0\0\0\x3c"  # TXT, each of four letters, the last of more
    records = [
        head + (5 + more).to_bytes(2, "big") + bytes((4 + more,)) + b"%04d" % number + b"x" * more
        for number in range(count)
        for more in (rest if number == count - 1 else 0,)
    ]
    said = DnsAnswer(wire.NOERROR, (count, 0, 0), b"".join(records), ttl_s=60)
    assert len(said.records) == room
    alias = Found(wire.NOERROR, (Record((b"a", b"x"), wire.CNAME, "b.y."),), target=target)
    return render_alias(question, alias, said, asked).counts[0] == 1 + count


@probe(servers.DNS_GUESSES)
def _(amount: int) -> bool:
    """The right answer comes behind so many guesses, and is heard; else it is asked by TCP."""
    forwarder: Forwarder[str] = Forwarder(Cache(most_bytes=1 << 20, stale_s=0.0), lambda: 7)
    for probing in forwarder.use([Upstream(ip_address("192.0.2.1"))], 0.0):
        assert isinstance(probing, AskUpstream)
        forwarder.failed(probing.attempt, 0.0)
    query = dns.message.make_query("www.example.com", "A", use_edns=False, id=7)
    (asked,) = forwarder.ask(wire.parse_query(query.to_wire()), "client", 0.0, "10.1.0.2")
    assert isinstance(asked, AskUpstream)
    response = dns.message.make_response(query)
    response.answer.append(dns.rrset.from_text("www.example.com.", 60, "IN", "A", "192.0.2.1"))
    right = response.to_wire()
    effects = [
        effect
        for number in range(amount)
        for effect in forwarder.heard(asked.attempt, (1000 + number).to_bytes(2) + right[2:], 0.0)
    ]
    told = forwarder.heard(asked.attempt, right, 0.0)
    is_told = any(isinstance(each, Deliver) for each in told)
    assert is_told is not any(isinstance(each, AskUpstream) and each.by_tcp for each in effects)
    return is_told
