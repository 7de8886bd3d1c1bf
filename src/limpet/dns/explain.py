"""What is answered to a name, and from where: for `limpet dns query` and `limpet dns status`."""

from __future__ import annotations

import asyncio
import os
import time

import dns.exception
import dns.name
import dns.rcode
import dns.rdatatype

from limpet import __version__
from limpet.base.errors import LimpetError
from limpet.base.text.few import few
from limpet.dns import wire
from limpet.dns.address_names import reversed_address
from limpet.dns.names import ClusterNames, Found
from limpet.dns.render import describe_response
from limpet.dns.resolver import Resolver
from limpet.dns.server import Client, DnsServer
from limpet.dns.status.answers import NameAnswered, NamesStatus, Upstream

_ANSWER_S = 6.0
_MOST_SLICES = 3
"""EndpointSlices that are named to a person: an answer may be made of a thousand."""


async def explain(
    resolver: Resolver[Client], server: DnsServer, name: str, kind: str
) -> NameAnswered:
    """Raises: LimpetError."""
    question = _question(name, kind)
    query = wire.write_query(1, question, 0, dnssec=False, edns=False)
    labels, type_ = wire.split_name(question), int.from_bytes(question[-4:-2], "big")
    found = resolver.find(labels, type_)
    if found is None:
        because = resolver.forwarder.explain(question, time.monotonic())
    elif found.target is not None:
        try:
            asked = wire.join_name(found.target) + question[-4:]
        except ValueError as error:
            because = f"{found.because}, which leads to what is no name: {error}"
        else:
            from_where = resolver.forwarder.explain(asked, time.monotonic())
            because = (
                f"{found.because}, which leads to a name that is not the cluster's: {from_where}"
            )
    else:
        because = found.because or "there is no such name in the cluster"
    if found is not None and resolver.names is not None:
        because += _told_by(slices_of(found, resolver.names))
    response = await _ask(resolver, server, query)
    try:
        records = describe_response(response)
    except dns.exception.DNSException as error:
        raise LimpetError(f"read what an upstream answers: {error}") from error
    return NameAnswered(
        name=wire.text_of(labels) or ".",
        type=dns.rdatatype.to_text(dns.rdatatype.RdataType(type_)),
        code=dns.rcode.to_text(dns.rcode.Rcode(response[3] & 0xF)),
        records=records,
        because=because,
    )


def slices_of(found: Found, names: ClusterNames) -> list[str]:
    """EndpointSlices that have the addresses that are answered, or the names of an address: of
    other names than those of headless Services' endpoints none are asked."""
    slices = set[str]()
    for record in (*found.records, *found.further):
        if record.type == wire.PTR:
            address = str(reversed_address(record.name) or "")
            name = tuple(record.value.rstrip(".").encode().split(b"."))
        elif record.type in (wire.A, wire.AAAA):
            address, name = record.value, record.name
        else:
            continue
        key = names.service_named(name)
        headless = names.headless(key) if key is not None else None
        if headless is not None:
            slices.update(each.piece for each in headless.by_address.get(address, ()))
    return sorted(slices)


def _told_by(slices: list[str]) -> str:
    if not slices:
        return ""
    return f", EndpointSlice {few(slices, _MOST_SLICES)}"


async def _ask(resolver: Resolver[Client], server: DnsServer, query: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    told: asyncio.Future[bytes] = loop.create_future()

    def tell(message: bytes) -> None:
        if not told.done():
            told.set_result(message)

    at_once = resolver.take(query, tell, time.monotonic(), by_tcp=True)
    server.carry_out()
    if at_once is not None:
        return at_once
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await told
    except TimeoutError as error:
        raise LimpetError("ask the upstreams: no answer came in time") from error


def _question(name: str, kind: str) -> bytes:
    try:
        parsed = dns.name.from_text(name or ".")
        type_ = dns.rdatatype.from_text(kind)
        encoded = parsed.to_wire()
    except (dns.exception.DNSException, ValueError) as error:
        raise LimpetError(f"ask for {name} {kind}: {error or type(error).__name__}") from error
    assert encoded is not None
    return encoded + int(type_).to_bytes(2, "big") + b"\0\1"


def status(resolver: Resolver[Client], pod: str, trouble: str) -> NamesStatus:
    """Counts since the start, and how upstreams do.

    `pod`: of this process; empty: none. `trouble`: what cannot be done just now.
    """
    counts, now_s, cache = resolver.counts, time.monotonic(), resolver.forwarder.cache
    return NamesStatus(
        version=__version__,
        pid=os.getpid(),
        pod=pod,
        trouble=trouble,
        services=resolver.services,
        silent=len(resolver.here.silent),
        gone=len(resolver.here.gone),
        kept=len(cache),
        kept_bytes=cache.size_bytes,
        questions={
            "cluster": counts.cluster,
            "ready": counts.ready,
            "forwarded": counts.forwarded,
            "dropped": counts.dropped,
            "sent_to_tcp": counts.sent_to_tcp,
            "stale": counts.stale,
            "refused": counts.refused,
            "failed": counts.failed,
        },
        upstreams=[
            Upstream(address=str(upstream), state=health.state(now_s))
            for upstream, health in resolver.forwarder.with_health
        ],
    )
