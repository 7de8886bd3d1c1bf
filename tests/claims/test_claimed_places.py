"""Addresses, endpoints and ports: where probes and answers go, and what they prove."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from ipaddress import ip_address, ip_network
from typing import TypeVar

import pytest

from limpet.base.addresses import Address
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec
from limpet.cluster.datagrams.unproven_budget import (
    ADDRESS_BURST,
    ADDRESS_PER_S,
    PEER_BURST,
    PEER_PER_S,
)
from limpet.cluster.documents import Source
from limpet.cluster.exchange.exchange import Exchange
from limpet.cluster.exchange.inner_traffic import InnerTraffic
from limpet.cluster.exchange.messages import BUCKETS, Digest, Listing, Push, decode, encode
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.replica import Outcome
from limpet.cluster.topology import transports
from limpet.cluster.topology.transports import ProbeKind
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.packets.raw_frames import RawFrames
from limpet.linux.underlay import read_underlay
from limpet.paths.probe.codec import encode_probe, udp_packet
from limpet.paths.probe.messages import Probe
from tests.beds.namespaces import Netns, connect_namespaces
from tests.claims.claims_bed import counting
from tests.paths.probing_bed import PORT, Node, PathBed
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    network,
    node_key,
    presence,
    seal_grant,
    seal_network,
    seal_presence,
)
from tests.waiting import PATIENCE_S, until

T = TypeVar("T")
SERVICES = ip_network("10.96.0.0/16")
NOBODY = ip_address("192.0.2.200")
"""On the link, and no host's: probes to it say that a claim was taken up."""
THIRD = ip_address("192.0.2.9")
"""A host on the link that is no node: the gateway, the controller, a printer."""
TO_NOBODY = f"ip daddr {NOBODY} udp dport {PORT}"
TUNNEL = 51820


class Places(PathBed):
    """A watcher and a victim that run, a claimant that says what a test has it say, and a host of
    nobody's, on one switch."""

    def __init__(self) -> None:
        super().__init__()
        switch = self.switch()
        self.watcher, self.victim, self.claimant = (self.node(number) for number in (1, 2, 3))
        for node in self.nodes:
            node.plug("eth0", switch, f"{address_of(node)}/24")
        self.third: Netns = self.namespace("third")
        connect_namespaces(self.third, "eth0", switch, "third")
        switch.ip("link set third master br0")
        self.third.ip(f"addr add {THIRD}/24 dev eth0")
        self.sequence = 0
        """That the claimant has signed last: the watcher's disk outlives a test."""
        self.watcher.netns.ip(f"route add default via {THIRD}")

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Watcher and victim have proven a path to each other when it begins."""

        async def running() -> None:
            both = (self.watcher, self.victim)
            for node in both:
                node.start(tunnel_port=TUNNEL)
            try:
                self.watcher.tell(self.victim)
                self.victim.tell(self.watcher)
                told = [
                    seal_network(network(2, service_cidrs=(SERVICES,)), CLUSTER_KEY),
                    seal_grant(self.claimant.grant, CLUSTER_KEY),
                ]
                self.watcher.membership.offer(told, source=Source.CLOUD)
                await self.watcher.until(self._is_settled)
                await scenario()
            finally:
                for node in both:
                    await node.stop()

        asyncio.run(running())

    def _is_settled(self) -> bool:
        path = self.watcher.path(self.victim)
        return path is not None and path.rung is transports.ROUTE

    def claim(self, **claims: object) -> None:
        """The watcher hears that the claimant's presence is so."""
        self.sequence += 1
        values = {"port": PORT, "tunnel_port": TUNNEL, "vtep_macs": {4: "0e:4c:00:00:04:03"}}
        said = presence(self.claimant.number, self.sequence, **{**values, **claims})
        assert self.hear(said, signer=self.claimant) is Outcome.FRESH

    def hear(self, said: Presence, *, signer: Node) -> Outcome:
        sealed = seal_presence(said, node_key(signer.number))
        (outcome,) = self.watcher.membership.offer([sealed], source=Source.NEIGHBOUR)
        return outcome


def address_of(node: Node) -> Address:
    return ip_address(f"192.0.2.{node.number}")


@pytest.fixture(scope="module")
def bed() -> Iterator[Places]:
    with contextlib.closing(Places()) as made:
        yield made


def test_an_address_and_endpoint_of_another_node_prove_no_way_to_who_names_them(
    bed: Places,
) -> None:
    victim = address_of(bed.victim)

    async def scenario() -> None:
        before = bed.watcher.path(bed.victim)
        foreign = bed.victim.courier.counters["not_for_us"]
        words = f"ip daddr {victim} udp dport {{ {PORT}, {TUNNEL} }}"
        with counting(bed.watcher.netns, words, TO_NOBODY, hook="output") as seen:
            bed.claim(addresses=(victim, NOBODY), endpoints=((victim, TUNNEL),))
            # It was asked there, and the victim, for whom the question is not, says nothing.
            await until(lambda: bed.victim.courier.counters["not_for_us"] >= foreign + 2)
            await until(lambda: seen(1) >= 2)
        assert bed.watcher.path(bed.claimant) is None
        assert bed.watcher.path(bed.victim) == before

    bed.run(scenario)


def test_nothing_is_sent_to_an_address_that_is_no_other_nodes(bed: Places) -> None:
    """Loopback, multicast, broadcast, of a pod, of a Service, our own, of a link alone."""
    texts = (
        *("127.0.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.255", "192.0.2.0", "0.0.0.0"),
        *("10.244.2.7", "10.244.1.1", "10.96.0.10", "192.0.2.1", "169.254.169.254", "240.0.0.1"),
    )
    claimed = tuple(map(ip_address, texts))

    async def scenario() -> None:
        words = f"ip daddr {{ {', '.join(texts)} }} udp dport {{ 7, {PORT}, {TUNNEL} }}"
        with counting(bed.watcher.netns, words, TO_NOBODY, hook="output") as seen:
            for some in (claimed[:6], claimed[6:]):
                before = seen(1)
                bed.claim(addresses=(*some, NOBODY), endpoints=tuple((at, 7) for at in some))
                await until(lambda before=before: seen(1) >= before + 2)  # type: ignore[misc]
                # The exchange writes to where a member says that it is, through the same socket.
                contact = bed.watcher.membership.contact(bed.claimant.uid)
                assert contact is not None
                for each in set(contact.addresses) - {address_of(bed.watcher)}:
                    bed.watcher.courier.send(
                        BodyKind.EXCHANGE,
                        b"",
                        to_uid=bed.claimant.uid,
                        address=each,
                        port=contact.port,
                    )
            assert seen() == 0

    bed.run(scenario)


def test_a_host_that_a_member_names_gets_few_probes_whatever_port_and_how_often(
    bed: Places,
) -> None:
    async def scenario() -> None:
        begun_s = time.monotonic()
        with counting(bed.third, f"ip daddr {THIRD} meta l4proto udp") as seen:
            number = 0
            while bed.watcher.probing.counters["held_back"] < 20:
                number += 1
                ends = tuple((THIRD, 1000 + number * 6 + each) for each in range(6))
                bed.claim(addresses=(THIRD,), port=1 + number, endpoints=ends)
                await asyncio.sleep(0)
                bed.watcher.probing._tick()
            found = seen()
        took_s = time.monotonic() - begun_s
        assert 0 < found <= ADDRESS_BURST + ADDRESS_PER_S * took_s

    bed.run(scenario)


def test_another_member_gets_no_more_because_it_is_named(bed: Places) -> None:
    victim = address_of(bed.victim)

    async def scenario() -> None:
        begun_s = time.monotonic()
        words = f"ip daddr {victim} udp dport 10000-40000"
        with counting(bed.victim.netns, words) as seen:
            number = 0
            while bed.watcher.probing.counters["held_back"] < 20:
                number += 1
                ends = tuple((victim, 10000 + number * 6 + each) for each in range(6))
                bed.claim(addresses=(), endpoints=ends)
                await asyncio.sleep(0)
                bed.watcher.probing._tick()
            found = seen()
        took_s = time.monotonic() - begun_s
        assert 0 < found <= PEER_BURST + PEER_PER_S * took_s

    bed.run(scenario)


def test_an_overlay_probe_is_answered_to_who_asks_and_nowhere_else(bed: Places) -> None:
    claimant, watcher = address_of(bed.claimant), address_of(bed.watcher)
    codec = Codec(bed.claimant.identity.private_key, PINNED)

    def send(kind: ProbeKind, answer_at: Address | None, nonce: int) -> None:
        """From the claimant's node; of the overlay, as it would be over the link."""
        probe = Probe(bytes([nonce] * 8), kind, 1, answer_at=answer_at)
        data = codec.encode(BodyKind.PROBE, encode_probe(probe), to_uid=bed.watcher.uid)
        over = kind is ProbeKind.OVERLAY
        ends = (ip_address("10.244.3.1"), ip_address("10.244.1.1")) if over else (claimant, watcher)
        with bed.claimant.netns.entered(), RouteSocket() as route:
            (link,) = read_underlay(route, patterns=("eth*",))
            with contextlib.closing(RawFrames()) as frames:
                assert frames.send(link, watcher, udp_packet(*ends, PORT, PORT, data))

    async def scenario() -> None:
        counters = bed.watcher.probing.counters
        overlay, link = counters["answered_overlay"], counters["answered_link"]
        bed.claimant.netns.run("ping", "-c", "1", str(watcher))  # who it is on the link
        bed.claim(addresses=(claimant,))
        from_watcher = f"ip saddr {watcher} udp dport {PORT}"
        with (
            counting(bed.third, from_watcher) as strays,
            counting(bed.claimant.netns, from_watcher) as answers,
        ):
            # Before anything was heard of it in clear not even its own address counts.
            wrong = (THIRD, address_of(bed.victim), ip_address("198.51.100.7"), None, claimant)
            for nonce, at in enumerate(wrong):
                refused = counters["refused_overlay"]
                send(ProbeKind.OVERLAY, at, nonce)
                await until(lambda before=refused: counters["refused_overlay"] > before)  # type: ignore[misc]
            assert strays() == 0
            send(ProbeKind.LINK, None, 100)
            await until(lambda: counters["answered_link"] > link)
            known = answers()
            send(ProbeKind.OVERLAY, claimant, 101)
            await until(lambda: counters["answered_overlay"] > overlay and answers() > known)
            # To say that it is there is not to be there.
            bed.claim(addresses=(claimant, THIRD))
            refused = counters["refused_overlay"]
            send(ProbeKind.OVERLAY, THIRD, 102)
            await until(lambda: counters["refused_overlay"] > refused)

    bed.run(scenario)


def test_an_answer_in_the_exchange_from_an_address_that_is_forged_proves_nothing_there(
    bed: Places,
) -> None:
    """The claimant hears what it is asked where it is, and answers in a third party's name: else
    the watcher would send there all that it knows."""
    claimant, watcher = address_of(bed.claimant), address_of(bed.watcher)
    codec = Codec(bed.claimant.identity.private_key, PINNED)

    def answer(source: Address, digest: Digest) -> None:
        """It says to know nothing; from its own node, as if it came from there."""
        # What was heard before is no second time: each has a number of its own.
        nothing = Listing(digest.nonce, os.urandom(8), False, frozenset(range(BUCKETS)), ())
        data = codec.encode(BodyKind.EXCHANGE, encode(nothing), to_uid=bed.watcher.uid)
        with bed.claimant.netns.entered(), RouteSocket() as route:
            (link,) = read_underlay(route, patterns=("eth*",))
            with contextlib.closing(RawFrames()) as frames:
                packet = udp_packet(source, watcher, PORT, PORT, data)
                assert frames.send(link, watcher, packet)

    async def scenario() -> None:
        exchange = Exchange(bed.watcher.membership, bed.watcher.courier, InnerTraffic())
        with (
            contextlib.closing(bed.claimant.netns.open_socket(4, socket.SOCK_DGRAM)) as here,
            counting(bed.third, f"ip daddr {THIRD} meta l4proto udp") as strays,
        ):
            here.bind((str(claimant), PORT))
            here.setblocking(False)
            bed.claimant.netns.run("ping", "-c", "1", str(watcher))  # who it is on the link
            bed.claim(addresses=(claimant,))

            async def told(kind: type[T]) -> T:
                while True:
                    data = await asyncio.get_running_loop().sock_recv(here, 65_536)
                    read = codec.parse(data)
                    if read.kind == BodyKind.EXCHANGE:
                        message = decode(read.body)
                        if isinstance(message, kind):
                            return message

            exchange.start()
            try:
                exchange.compare_with(bed.claimant.uid)
                async with asyncio.timeout(PATIENCE_S):
                    digest = await told(Digest)
                    unasked = exchange.counters["unasked"]
                    answer(THIRD, digest)
                    await until(lambda: exchange.counters["unasked"] > unasked)
                    assert exchange.heard.get(bed.claimant.uid) is None
                    answer(claimant, digest)
                    assert (await told(Push)).documents
            finally:
                await exchange.stop()
            assert strays() == 0

    bed.run(scenario)


def test_a_presence_of_another_that_one_signs_is_nothing(bed: Places) -> None:
    async def scenario() -> None:
        before = bed.watcher.path(bed.victim)
        stolen = presence(bed.victim.number, 99, addresses=(address_of(bed.claimant),))
        assert bed.hear(stolen, signer=bed.claimant) is Outcome.BAD
        assert bed.watcher.path(bed.victim) == before

    bed.run(scenario)
