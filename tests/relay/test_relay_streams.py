"""TLS connections as ends of a relay's pairs: here without TLS, which is its server's part."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from limpet.relay.messages import Hello, Pair, Refusal, Seen
from limpet.relay.server.streams import RelayRefused
from limpet.relay.stream.packet_socket import nowhere
from tests.relay.relay_agents import SETTINGS, Agent, Cluster, Relay, hears, nonce, run
from tests.relay.relay_bed import Host, RelayBed
from tests.unit.cluster_values import grant
from tests.waiting import PATIENCE_S, until

SIZES = (1, 1200, 1200, 1200, 1199, 1200, 700, 700, 1, 65_000, 0, 90, 1200)


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Two, and the relay's."""
    bed = RelayBed(3)
    for host in bed.hosts:
        # A packet of any size goes out whole.
        host.netns.ip("link set eth0 mtu 65535")
        bed.middle.ip(f"link set port{host.number} mtu 65535")
    yield bed.hosts
    bed.close()


class Stream:
    """A node's connection, as the TLS server has it."""

    def __init__(self, relay: Relay, agent: Agent, peer: Agent) -> None:
        self.got: list[bytes] = []
        self._changed = asyncio.Event()
        self.end = relay.service.attach_stream(agent.uid, peer.uid, self._take, lambda: None)

    def _take(self, packet: bytes) -> None:
        self.got.append(packet)
        self._changed.set()

    async def receives(self, packets: list[bytes]) -> None:
        """In this order. Raises: TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.got) < len(packets):
                self._changed.clear()
                await self._changed.wait()
        assert self.got == packets
        self.got.clear()


def times_told(agent: Agent) -> Counter[str]:
    """How often the relay has said of each peer that it waits."""
    return Counter(message.peer for _, message in agent.got if isinstance(message, Pair))


def packets_of(start: int) -> list[bytes]:
    return [bytes([start + n]) * size for n, size in enumerate(SIZES)]


@pytest.mark.parametrize("version", [4, 6])
def test_a_stream_and_an_address_get_each_others_packets_as_they_were(
    hosts: list[Host], version: int
) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other), relay = cluster.agents, cluster.relay
            other.say(relay, Hello(nonce()), version=version)
            await other.hears(Seen)
            stream = Stream(relay, one, other)
            # The other end hears of it unasked, and comes.
            port = (await other.hears(Pair)).port
            await other.bind(relay, port, version=version)
            here = (str(relay.host.address(version)), port)
            with other.host.open_udp(version) as opened:
                for packet in packets_of(0):
                    stream.end.onward(packet)
                for packet in packets_of(0):
                    assert await hears(opened) == (packet, here)
                for packet in packets_of(100):
                    opened.sendto(packet, here)
                await stream.receives(packets_of(100))

    run(hosts[-1], scenario)


def test_two_streams_get_each_others_packets(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other), relay = cluster.agents, cluster.relay
            first = Stream(relay, one, other)
            first.end.onward(b"nobody is there yet")
            second = Stream(relay, other, one)
            for packet in packets_of(0):
                first.end.onward(packet)
            await second.receives(packets_of(0))
            second.end.onward(b"back")
            await first.receives([b"back"])
            assert relay.service.counters["lost"] == 1

            anew = Stream(relay, one, other)
            first.end.onward(b"of a connection that was replaced")
            first.end.close()
            anew.end.onward(b"anew")
            await second.receives([b"anew"])
            second.end.close()
            anew.end.onward(b"nobody is there any more")
            assert relay.service.counters["lost"] == 3

    run(hosts[-1], scenario)


def test_an_end_that_gets_through_by_udp_again_is_spoken_to_there_and_heard_by_both(
    hosts: list[Host],
) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other), relay = cluster.agents, cluster.relay
            port, its_port = await cluster.join()
            here = str(relay.host.address())
            with one.host.open_udp() as opened, other.host.open_udp() as its:

                async def sends(data: bytes) -> None:
                    its.sendto(data, (here, its_port))

                stream = Stream(relay, one, other)
                await sends(b"into the stream")
                await stream.receives([b"into the stream"])
                opened.sendto(b"by udp", (here, port))
                assert await hears(its) == (b"by udp", (here, its_port))

                await one.bind(relay, port)
                await sends(b"by udp again")
                assert await asyncio.to_thread(opened.recv, 100) == b"by udp again"
                stream.end.onward(b"the last of the stream")
                assert await hears(its) == (b"the last of the stream", (here, its_port))

                stream.end.close()
                before = relay.counted("forwarded")
                opened.sendto(b"by udp only", (here, port))
                assert await hears(its) == (b"by udp only", (here, its_port))
                assert relay.counted("forwarded") == before + 1
                assert relay.service.counters["lost"] == 0

    run(hosts[-1], scenario)


def test_a_node_hears_with_its_hellos_of_all_streams_that_wait_for_it(hosts: list[Host]) -> None:
    """More than one hello brings: a stream asks once, and what was said of it may be lost."""
    numbers = range(11, 20)

    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            one, relay = cluster.agents[0], cluster.relay

            async def greets() -> None:
                one.say(relay, Hello(mine := nonce()))
                await one.hears(Seen, lambda seen: seen.nonce == mine)

            async def waited_for(number: int) -> None:
                """Its end is bound."""
                peer = grant(number).uid
                relay.learn(number)
                relay.service.attach_stream(peer, one.uid, nowhere, lambda: None)
                told = await one.hears(Pair, lambda pair: pair.peer == peer)
                await one.bind(relay, told.port)

            await greets()
            for number in numbers:
                await waited_for(number)
            # Also what the relay repeats by itself, since it had not seen the node bind the end.
            await until(lambda: min(times_told(one).values()) >= 2)
            before = times_told(one)
            await greets()
            await greets()
            await until(
                lambda: all(count > before[peer] for peer, count in times_told(one).items())
            )

    run(hosts[-1], scenario)


def test_a_stream_ends_with_its_pair_and_is_refused_like_any_end(hosts: list[Host]) -> None:
    async def scenario() -> None:
        settings = replace(SETTINGS, pairs_per_node=0)
        async with Cluster(hosts, settings=settings) as cluster:
            one, other = cluster.agents
            with pytest.raises(RelayRefused, match="as many pairs there as it may") as refused:
                Stream(cluster.relay, one, other)
            assert refused.value.refusal is Refusal.QUOTA
        async with Cluster(hosts) as cluster:
            (one, other), relay = cluster.agents, cluster.relay
            first, second = Stream(relay, one, other), Stream(relay, other, one)
            relay.learn(other.host.number, generation=2, tombstone=True)
            first.end.onward(b"to whom was removed")
            second.end.onward(b"of whom was removed")
            assert (first.got, second.got) == ([], [])
            first.end.close()
            with pytest.raises(
                RelayRefused, match="the two nodes share no community, or one was removed"
            ) as refused:
                Stream(relay, one, other)
            assert refused.value.refusal is Refusal.MAY_NOT_TALK
            relay.learn(relay.host.number, generation=2)
            with pytest.raises(RelayRefused, match="it is no relay"):
                Stream(relay, one, other)

    run(hosts[-1], scenario)


def test_a_stream_is_no_faster_than_the_relay_allows_its_node(hosts: list[Host]) -> None:
    settings = replace(SETTINGS, bytes_per_s=100_000)

    async def scenario() -> None:
        async with Cluster(hosts, settings=settings) as cluster:
            (one, other), relay = cluster.agents, cluster.relay
            first, second = Stream(relay, one, other), Stream(relay, other, one)
            began_s = time.monotonic()
            for _ in range(400):
                first.end.onward(bytes(1000))
            most = 65_536 + 100_000 * (time.monotonic() - began_s)  # the least burst, and its rate
            assert 65 <= len(second.got) <= most / 1000
            assert len(second.got) + relay.service.counters["over_rate"] == 400

    run(hosts[-1], scenario)
