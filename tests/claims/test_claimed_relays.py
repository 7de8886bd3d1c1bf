"""A relay says itself where it is: hellos over UDP and connections over TLS go where it claims."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from ipaddress import ip_address, ip_network

import pytest

from limpet.base.addresses import Address, Endpoint, endpoint_text
from limpet.base.errors import LimpetError
from limpet.cluster.datagrams.peer_datagram import Codec
from limpet.cluster.datagrams.unproven_budget import ADDRESS_BURST, ADDRESS_PER_S
from limpet.cluster.documents import Source
from limpet.relay import messages as relay_messages
from limpet.relay.messages import KIND_OF, Hello, Seen
from tests.beds.namespaces import Netns
from tests.claims.claims_bed import counting
from tests.relay.relay_bed import PORT
from tests.relay.relays_bed import TLS_PORT, TUNNEL_PORT, NamespacesLoop, RelaysBed
from tests.unit.cluster_values import CLUSTER_KEY, network, seal_network
from tests.waiting import PATIENCE_S, until

SERVICES = ip_network("10.96.0.0/16")
NOBODY = ip_address("203.0.113.200")
"""On the link, and no host's: what is sent to it says that a claim was taken up."""
THIRD = ip_address("203.0.113.9")
"""A host on the link that is no node."""


class Claimed(RelaysBed):
    """A watcher that needs a relay for a peer, a relay that says what a test has it say and does
    not run, and a host of nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.watcher, self.peer, self.claimant = self.public(21), self.public(22), self.relay(11)
        self.third: Netns = self.namespace("third")
        self.plug(self.third, "eth0", str(THIRD))
        self.watcher.netns.ip(f"route add default via {THIRD}")

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def running() -> None:
            self.peer.do(self.peer.open)
            self.claimant.do(self.claimant.open)
            try:
                await self.begin(self.watcher)
                services = seal_network(network(2, service_cidrs=(SERVICES,)), CLUSTER_KEY)
                self.watcher.membership.offer([services], source=Source.CLOUD)
                self.watcher.do(lambda: self.watcher.hear([self.peer.told]))
                await scenario()
            finally:
                await self.stop()
                self.peer.membership.close()
                self.claimant.membership.close()

        with asyncio.Runner(loop_factory=NamespacesLoop) as runner:
            runner.run(running())

    def claim(self, addresses: tuple[Address, ...], endpoints: tuple[Endpoint, ...]) -> None:
        """The watcher hears that the relay is there."""
        self.claimant.membership.announce(
            addresses=addresses,
            port=PORT,
            vtep_macs={},
            link_mtu_bytes=1500,
            tunnel_port=TUNNEL_PORT,
            endpoints=endpoints,
            relay_tls_port=TLS_PORT,
        )
        told = self.claimant.told
        self.watcher.do(lambda: self.watcher.membership.offer(told, source=Source.CLOUD))


@pytest.fixture(name="bed")
def _bed() -> Iterator[Claimed]:
    with contextlib.closing(Claimed()) as made:
        yield made


def test_nothing_is_sent_to_where_a_relay_cannot_be(bed: Claimed) -> None:
    """Pods, Services, ourselves, everybody on the link, loopback, multicast."""
    texts = (
        *("10.244.2.7", "10.244.21.1", "10.96.0.10", "10.96.0.1"),
        *("203.0.113.21", "203.0.113.255", "127.0.0.1", "224.0.0.1"),
    )
    claimed = tuple(map(ip_address, texts))
    words = (
        f"ip daddr {{ {', '.join(texts)} }} udp dport {{ 7, {TUNNEL_PORT} }}",
        f"ip daddr {{ {', '.join(texts)} }} tcp dport {TLS_PORT}",
        f"ip daddr {NOBODY} udp dport {{ 7, {TUNNEL_PORT} }}",
        f"ip daddr {NOBODY} tcp dport {TLS_PORT}",
    )

    async def scenario() -> None:
        with counting(bed.watcher.netns, *words, hook="output") as seen:
            bed.watcher.need(bed.peer)
            for some in (claimed[:4], claimed[4:]):
                before = seen(2), seen(3)
                places = (*some, NOBODY)
                bed.claim(places, tuple((at, 7) for at in places))
                # NOBODY is the last of them in both, and each is tried before the next.
                await until(
                    lambda before=before: (  # type: ignore[misc]
                        seen(2) >= before[0] + 2 and seen(3) > before[1]
                    )
                )
            assert (seen(0), seen(1)) == (0, 0)

    bed.run(scenario)


def test_a_host_that_a_relay_names_gets_few_hellos_whatever_port_and_how_often(
    bed: Claimed,
) -> None:
    async def scenario() -> None:
        begun_s = time.monotonic()
        with counting(bed.third, f"ip daddr {THIRD} meta l4proto udp") as seen:
            for number in range(30):
                bed.claim((), tuple((THIRD, 1000 + number * 6 + each) for each in range(6)))
                await asyncio.sleep(0)
                bed.watcher.do(bed.watcher.relays._tick)
            found = seen()
        took_s = time.monotonic() - begun_s
        assert 0 < found <= ADDRESS_BURST + ADDRESS_PER_S * took_s

    bed.run(scenario)


def test_a_host_that_a_relay_names_gets_few_connections(bed: Claimed) -> None:
    watcher = bed.watcher

    async def open_all() -> None:
        for number in range(12):
            ports = range(1000 + number * 8, 1008 + number * 8)
            with pytest.raises(LimpetError, match=r"refused|tried often"):
                await watcher.relays.streams.end_for(
                    bed.claimant.uid, [(THIRD, port) for port in ports], bed.peer.uid
                )

    async def scenario() -> None:
        bed.claim((THIRD,), ())
        begun_s = time.monotonic()
        with counting(bed.third, f"ip daddr {THIRD} tcp dport 1000-1999 tcp flags syn") as seen:
            await watcher.do(lambda: asyncio.get_running_loop().create_task(open_all()))
            found = seen()
        took_s = time.monotonic() - begun_s
        assert 0 < found <= ADDRESS_BURST + ADDRESS_PER_S * took_s

    bed.run(scenario)


def test_who_answers_a_hello_from_an_address_that_it_forges_proves_nothing_there(
    bed: Claimed,
) -> None:
    """Else all that has no other way would be sent to who is there, and hears of nothing."""
    watcher, claimant, there = bed.watcher, bed.claimant, (THIRD, 7777)
    # On the loopback device, and silent about it on the link: the third host keeps its packets.
    claimant.netns.sysctl("net/ipv4/conf/all/arp_ignore", "1")
    claimant.netns.sysctl("net/ipv4/conf/all/arp_announce", "2")
    claimant.netns.ip(f"addr add {THIRD}/32 dev lo")

    def heard() -> int:
        return watcher.relays.counters["heard_seen"]

    def relay() -> tuple[bool, str | None]:
        (found,) = watcher.do(watcher.relays.report).relays
        return found.answers, found.endpoint

    async def scenario() -> None:
        codec = Codec(claimant.identity.private_key, claimant.identity.pinned_key)
        with (
            claimant.netns.open_socket(4, socket.SOCK_DGRAM) as own,
            claimant.netns.open_socket(4, socket.SOCK_DGRAM) as forged,
            counting(watcher.netns, f"ip saddr {THIRD} udp sport {there[1]}") as arrived,
        ):
            for each, at in ((own, claimant.endpoint), (forged, there)):
                each.bind((str(at[0]), at[1]))
                each.setblocking(False)

            async def answer(by: socket.socket) -> None:
                """The next hello that comes to the claimant itself."""
                async with asyncio.timeout(PATIENCE_S):
                    data, source = await asyncio.get_running_loop().sock_recvfrom(own, 2000)
                datagram, before = codec.parse(data), heard()
                hello = relay_messages.parse(datagram.kind, datagram.body)
                assert isinstance(hello, Hello)
                seen = Seen(hello.nonce, (ip_address(source[0]), source[1]), 3)
                kind, words = KIND_OF[Seen], relay_messages.encode(seen)
                by.sendto(codec.encode(kind, words, to_uid=watcher.uid), source)
                await until(lambda: heard() > before)

            watcher.need(bed.peer)
            bed.claim((), (there, claimant.endpoint))
            for number in range(3):
                await answer(forged)
                assert (arrived(), relay()) == (number + 1, (False, None))
            await answer(own)
            assert relay() == (True, endpoint_text(claimant.endpoint))

    bed.run(scenario)
