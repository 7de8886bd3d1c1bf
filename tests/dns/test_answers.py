"""Answers of the process as they are on the wire: of every size, and stale ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext

import dns.flags
import dns.message
import dns.rcode
import pytest

from limpet.dns.forward.cache import STALE_TTL_S
from limpet.services.values import Endpoint, EndpointSlice, Service, ServicePort
from tests.dns.test_process import (
    ADDRESS,
    ITEMS,
    KNOWN,
    WEB,
    Place,
    ask,
    make_place,
    place,
    upstream,
    values,
)
from tests.waiting import PATIENCE_S, wait_until

__all__ = ["make_place", "place"]

MANY = [f"10.1.2.{n}" for n in range(1, 51)]
SHORT = "short.example.com"
SHORT_TTL_S, (SHORT_ADDRESS,) = KNOWN["short.example.com."]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("many.default.svc.cluster.local", MANY),
        ("many.example.com", KNOWN["many.example.com."][1]),
    ],
    ids=["of the cluster", "of an upstream"],
)
def test_as_much_comes_by_udp_as_the_asker_says_that_it_takes_and_all_by_tcp(
    place: Place, name: str, wanted: list[str]
) -> None:
    ends = tuple(Endpoint(address) for address in MANY)
    many = Service("default", "many", cluster_ips=("None",))
    place.keep(*ITEMS, many, EndpointSlice("default", "many-1", "many", 4, (), ends))

    def got(*, edns: int = -1, takes_bytes: int = 0, by_tcp: bool = False) -> dns.message.Message:
        return ask(place.node, name, edns=edns, takes_bytes=takes_bytes, by_tcp=by_tcp)

    with upstream(place) if name.endswith(".com") else nullcontext():
        wait_until(lambda: values(got(by_tcp=True)), "it is known")
        for response in (got(edns=0, takes_bytes=1232), got(by_tcp=True), got(by_tcp=True, edns=0)):
            assert sorted(values(response)) == sorted(wanted)
            assert not response.flags & dns.flags.TC
        for edns, takes_bytes in ((-1, 512), (0, 700)):
            response = got(edns=edns, takes_bytes=takes_bytes)
            assert response.flags & dns.flags.TC
            assert 0 < len(values(response)) < len(wanted)
            assert response.wire is not None
            assert len(response.wire) <= takes_bytes
            assert response.edns == edns, "who says nothing of it is told nothing"


@pytest.mark.parametrize("by_tcp", [False, True], ids=["udp", "tcp"])
def test_a_later_version_of_edns_is_told_which_one_is_spoken_here(
    place: Place, by_tcp: bool
) -> None:
    response = ask(place.node, WEB, by_tcp=by_tcp, edns=1, takes_bytes=1232)

    assert response.rcode() == dns.rcode.BADVERS
    assert (response.edns, values(response)) == (0, [])
    assert values(ask(place.node, WEB, by_tcp=by_tcp, edns=0, takes_bytes=1232)) == ["10.96.0.10"]


@pytest.mark.parametrize("stale_s", [86400, 2])
def test_without_an_upstream_an_answer_is_told_on_for_as_long_as_is_set_and_no_longer(
    make_place: Callable[..., Place], stale_s: int
) -> None:
    place = make_place(dns_stale_s=stale_s)
    place.keep(*ITEMS)
    place.start()
    with upstream(place):
        began_s = time.monotonic()
        wait_until(lambda: values(ask(place.node, SHORT)) == [SHORT_ADDRESS], "it is known")
    ended_s = time.monotonic() + SHORT_TTL_S  # of the last answer that the upstream can have given

    def ttl_s() -> int | None:
        """None: there is no answer any more."""
        is_ended = time.monotonic() >= ended_s
        response = ask(place.node, SHORT)
        if response.rcode() == dns.rcode.SERVFAIL:
            assert values(response) == []
            return None
        assert values(response) == [SHORT_ADDRESS]
        told_s = response.answer[0].ttl
        assert told_s == STALE_TTL_S or (told_s <= SHORT_TTL_S and not is_ended)
        return told_s

    if stale_s > PATIENCE_S:
        wait_until(lambda: ttl_s() == STALE_TTL_S, "a stale one is told")
        return
    wait_until(lambda: ttl_s() is None, "nobody is told what has ended for so long")
    assert time.monotonic() >= began_s + SHORT_TTL_S + stale_s
    assert ttl_s() is None


def test_a_service_s_address_among_those_where_names_are_told_is_named(
    make_place: Callable[..., Place],
) -> None:
    """What serves that Service takes the questions: NodeLocal DNSCache's recipe does nothing."""
    place, taken = make_place(), "10.96.0.53"
    with place.config.open("a") as config:
        config.write(f"dns_listen = {json.dumps([ADDRESS, taken])}\n")
    kube_dns = Service(
        "kube-system", "kube-dns", cluster_ips=(taken,), ports=(ServicePort("dns", "UDP", 53),)
    )
    place.keep(*ITEMS, kube_dns)
    place.start()
    words = f"{taken} of dns_listen is the cluster address of Service kube-system/kube-dns"

    assert words in place.run("status").stdout
    assert values(ask(place.node, WEB)) == ["10.96.0.10"]
    place.keep(*ITEMS)
    wait_until(lambda: "dns_listen" not in place.run("status").stdout)
