"""A relay's TLS connections under strangers, broken members, slow readers, and when they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from limpet.base.bounds.members import RELAY_TLS_NODES, RELAY_UNREAD
from limpet.base.bounds.strangers import RELAY_GREETING, RELAY_GREETING_OF_ONE
from limpet.base.errors import LimpetError
from limpet.base.process.lifetime import allow_many_files
from limpet.base.rate_limit import SourceRates
from limpet.cli.doctor.cluster.relays import relay_tls_findings
from limpet.cli.doctor.findings import Level
from limpet.cluster.topology import transports
from limpet.datapath.event import RelayTlsPortChanged
from limpet.relay.client import link as relay_link
from limpet.relay.client import tls_client as relay_tls_client
from limpet.relay.server import streams as relayed_node
from limpet.relay.server import tls_server as relay_tls_server
from limpet.relay.stream.codec import (
    FrameParser,
    Open,
    Opened,
    Ping,
    Pong,
    encode_control,
    encode_frame,
    parse_control,
)
from tests.relay.relay_tls_bed import (
    RELAY,
    Cluster,
    Relay,
    Site,
    patient_cluster,
    play,
    relay_of,
    site_of,
    tls_client,
    uid,
)
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with patient_cluster(tmp_path, monkeypatch) as made:
        yield made


# What strangers and broken members send


def test_garbage_before_tls_is_counted_and_members_get_through(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        at = str(relay.address[0]), relay.address[1]
        for said in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01\xff\xff" + bytes(400)):
            reader, writer = await asyncio.open_connection(*at)
            writer.write(said)
            async with asyncio.timeout(PATIENCE_S):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()
        assert relay.counters["failed_handshake"] == 3
        await one.end_for(other, relay)

    play(cluster, scenario)


def test_a_thousand_idle_connections_are_bounded_and_a_site_with_members_gets_through(
    cluster: Cluster,
) -> None:
    allow_many_files()

    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await other.end_for(one, relay)
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            for number in range(1000):
                idle = undo.enter_context(socket.socket())
                idle.setblocking(False)
                idle.bind((f"127.0.1.{number % 50 + 1}", 0))
                await loop.sock_connect(idle, (str(relay.address[0]), relay.address[1]))
            await one.end_for(other, relay)
            told = relay.server.report()
            assert told.greeting == RELAY_GREETING.most
            refused = told.refused
            assert refused.get("too_often", 0) + refused.get("too_many", 0) >= 800

    play(cluster, scenario)


def test_one_address_has_few_of_the_places_of_those_who_have_proven_nothing(
    cluster: Cluster,
) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await other.end_for(one, relay)
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            for number in range(RELAY_GREETING_OF_ONE.most + 5):
                idle = undo.enter_context(socket.socket())
                idle.setblocking(False)
                idle.bind(("127.0.1.1", 0))
                await loop.sock_connect(idle, (str(relay.address[0]), relay.address[1]))
                places = min(number + 1, RELAY_GREETING_OF_ONE.most)
                await until(lambda: relay.server.report().greeting == places)  # noqa: B023

    play(cluster, scenario)


def test_a_site_that_members_have_come_from_is_not_held_up_by_strangers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_at_all = SourceRates(each=(20.0, 100.0), strangers=(0.0, 1.0), members=None, most=100)
    monkeypatch.setattr(relay_tls_server, "handshake_rates", lambda: one_at_all)

    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        at = str(relay.address[0]), relay.address[1]
        reader, writer = await asyncio.open_connection(*at, local_addr=("127.0.1.1", 0))
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()
        await other.end_for(one, relay)
        assert relay.counters == {"too_often": 1}

    play(cluster, scenario)


def test_of_more_nodes_than_a_relay_takes_over_tls_one_is_let_go(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one: a thousand would take minutes."""
    monkeypatch.setattr(relay_tls_server, "RELAY_TLS_NODES", replace(RELAY_TLS_NODES, most=1))

    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        assert list(relay.server.report().nodes) == [one.uid]
        second = asyncio.create_task(other.end_for(one, relay))
        await until(lambda: relay.counters.get("full", 0) > 0)
        assert list(relay.server.report().nodes) == [one.uid]
        second.cancel()
        await asyncio.wait([second])

    play(cluster, scenario)


def test_who_shows_no_certificate_gets_no_further_than_the_handshake(cluster: Cluster) -> None:
    async def scenario(relay: Relay, _one: Site, _other: Site) -> None:
        def nobody() -> None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            at = str(relay.address[0]), relay.address[1]
            with (
                socket.create_connection(at, timeout=PATIENCE_S) as plain,
                context.wrap_socket(plain) as tls,
                pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
            ):
                tls.recv(100)

        await asyncio.to_thread(nobody)
        assert relay.counters == {"failed_handshake": 1}

    play(cluster, scenario)


def test_a_node_that_does_not_read_what_it_is_told_is_let_go(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        for _ in range(1000):
            relay.server.tell_wanted(one.uid, other.uid)
        assert relay.server.report().nodes == {}

    play(cluster, scenario)


def test_a_member_that_says_nothing_is_let_go(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_tls_server, "GREETING_S", 1.0)

    async def scenario(relay: Relay, _one: Site, _other: Site) -> None:
        def silent() -> None:
            with tls_client(cluster, 1, relay.address) as tls:
                assert tls.recv(100) == b""

        await asyncio.to_thread(silent)
        assert relay.counters["silent"] == 1

    play(cluster, scenario)


def test_a_frame_of_a_channel_that_was_not_opened_goes_nowhere(cluster: Cluster) -> None:
    async def scenario(relay: Relay, _one: Site, other: Site) -> None:
        await other.end_for(_one, relay)

        def intrude() -> None:
            with tls_client(cluster, 1, relay.address) as tls:
                tls.sendall(encode_frame(1, b"for whom?") + encode_control(Ping()))
                assert tls.recv(100) == encode_control(Pong())

        await asyncio.to_thread(intrude)
        assert relay.counters["no_channel"] == 1
        with pytest.raises(BlockingIOError):
            other.tunnel.recv(100)

    play(cluster, scenario)


@pytest.mark.parametrize(
    "said",
    [
        encode_frame(0, b"\x63"),
        encode_control(Pong()),
        encode_control(Open(1, uid(2))) * 2,
        b"\xff\xff\x00\x01",
        encode_control(Ping()) * 600,
    ],
    ids=["no-control", "a-relays", "twice", "too-long", "floods"],
)
def test_what_no_node_says_ends_its_connection_and_no_others(cluster: Cluster, said: bytes) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        there = await other.end_for(one, relay)

        def misbehave() -> None:
            with tls_client(cluster, 3, relay.address) as tls:
                tls.sendall(encode_control(Ping()) + said)
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    while tls.recv(1 << 14):
                        pass

        await asyncio.to_thread(misbehave)
        assert list(relay.server.report().nodes) == [other.uid]
        assert await other.end_for(one, relay) == there

    play(cluster, scenario)


def test_a_slow_reader_loses_the_newest_packets_and_holds_up_nobody(cluster: Cluster) -> None:
    count = 20_000

    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        heard = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> list[bytes]:
            with tls_client(cluster, 3, relay.address) as tls:
                tls.sendall(encode_control(Open(7, one.uid)))
                parser = FrameParser()
                ((_, opened),) = parser.feed(tls.recv(100))
                assert parse_control(opened) == Opened(7)
                loop.call_soon_threadsafe(heard.set)
                asyncio.run_coroutine_threadsafe(done.wait(), loop).result(PATIENCE_S)
                tls.sendall(encode_control(Ping()))
                found: list[bytes] = []
                while True:
                    for channel, body in parser.feed(tls.recv(1 << 14)):
                        if channel == 0:
                            found.append(body)
                            return found
                        found.append(body)

        done = asyncio.Event()
        reading = asyncio.create_task(asyncio.to_thread(slow))
        async with asyncio.timeout(PATIENCE_S):
            await heard.wait()
        taker = relay.board.ends[uid(3), one.uid].on_packet
        for number in range(count):
            taker(number.to_bytes(4) + bytes(1396))
            if number % 100 == 0:
                await asyncio.sleep(0)
        dropped = relay.server.report().refused["dropped"]
        assert dropped * 1400 > count * 1400 - RELAY_UNREAD.most - (8 << 20)
        there, back = await one.end_for(other, relay), await other.end_for(one, relay)
        one.tunnel.sendto(b"not held up", there)
        assert await other.receive() == (b"not held up", back)
        done.set()
        async with asyncio.timeout(PATIENCE_S):
            *packets, pong = await reading
        assert parse_control(pong) == Pong()
        numbers = [int.from_bytes(packet[:4]) for packet in packets]
        assert numbers == sorted(numbers)
        assert numbers[: len(numbers) // 2] == list(range(len(numbers) // 2))

    play(cluster, scenario)


# What is lost, and comes again


def test_a_relay_that_ends_is_told_and_serves_again_when_it_is_back(cluster: Cluster) -> None:
    async def main() -> None:
        async with site_of(cluster, 1) as one, site_of(cluster, 2) as other:
            async with relay_of(cluster) as relay:
                await one.end_for(other, relay)
                port = relay.address[1]
            await until(lambda: one.lost == [uid(RELAY)])
            with pytest.raises(LimpetError, match=r"127.0.0.1:[0-9]+: Connection refused"):
                await one.end_for(other, relay)
            async with relay_of(cluster, port=port) as again:
                there, back = await one.end_for(other, again), await other.end_for(one, again)
                one.tunnel.sendto(b"again", there)
                assert await other.receive() == (b"again", back)

    asyncio.run(main())


def test_a_relay_that_falls_silent_is_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_link, "PING_EVERY_S", 1.0)
    monkeypatch.setattr(relay_link, "PONG_WITHIN_S", 1.0)

    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        stream = relay.server._nodes[one.uid].session
        asyncio.get_running_loop().remove_reader(stream._connection.fileno())
        await until(lambda: one.lost == [uid(RELAY)])

    play(cluster, scenario)


def test_a_node_that_falls_silent_is_let_go(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_tls_server, "_SWEEP_S", 0.05)

    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        monkeypatch.setattr(relayed_node, "IDLE_S", 0.1)
        await until(lambda: not relay.board.ends)
        assert relay.counters["gone"] == 1
        await until(lambda: one.lost == [uid(RELAY)])

    play(cluster, scenario)


def test_a_node_that_connects_anew_takes_the_place_of_its_old_connection(
    cluster: Cluster,
) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        back = await other.end_for(one, relay)
        async with site_of(cluster, 1) as anew:
            there = await anew.end_for(other, relay)
            await until(lambda: one.lost == [uid(RELAY)])
            other.tunnel.sendto(b"to the new one", back)
            assert await anew.receive() == (b"to the new one", there)

    play(cluster, scenario)


def test_a_connection_that_nobody_needs_is_closed_without_alarm(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_link, "PING_EVERY_S", 1.0)
    monkeypatch.setattr(relay_link, "PONG_WITHIN_S", 1.0)

    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        one.relays.release(other.uid)
        await until(lambda: not relay.server.report().nodes)
        assert one.lost == []

    play(cluster, scenario)


def test_of_several_addresses_the_one_that_answers_is_taken(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            silent = ip_address("127.0.0.1"), mute.getsockname()[1]
            closed = ip_address("127.0.0.1"), 1
            end = await one.relays.end_for(uid(RELAY), (closed, silent, relay.address), other.uid)
        assert end.rung is transports.RELAY_TLS
        assert 0 < end.rtt_s < PATIENCE_S

    play(cluster, scenario)


def test_where_nobody_answers_a_person_is_told_what_to_look_at(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_tls_client, "PATIENCE_S", 0.3)

    async def scenario(_relay: Relay, one: Site, other: Site) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            silent = ip_address("127.0.0.1"), mute.getsockname()[1]
            with pytest.raises(LimpetError) as told:
                await one.relays.end_for(uid(RELAY), (silent,), other.uid)
        assert str(told.value) == (
            f"reach node-2 over TLS by relay node-9: no answer from 127.0.0.1:{silent[1]} within "
            "0.3 s (does the site's firewall let TCP out to there? Where neither UDP nor TCP gets "
            "out, no way is left)"
        )
        with pytest.raises(LimpetError, match="node-9: no address of it is known"):
            await one.relays.end_for(uid(RELAY), (), other.uid)

    play(cluster, scenario)


def test_a_port_that_is_taken_is_told_and_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_tls_server, "_RETRY_S", 0.05)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            relay = Relay(cluster, port=taken.getsockname()[1])
            await relay.server.start()
            try:
                assert relay.told == []
                assert list(relay.server.listeners.troubles.values()) == ["Address already in use"]
                (found,) = relay_tls_findings(relay.server.report())
                assert found.level is Level.ERROR
                assert f"(process {os.getpid()}) has: Address already in use" in found.what
                taken.close()
                await until(lambda: bool(relay.server.listeners.addresses))
                assert relay.server.listeners.troubles == {}
                (found,) = relay_tls_findings(relay.server.report())
                assert found.level is Level.OK
                assert relay.told == [RelayTlsPortChanged(relay.address[1])]
            finally:
                await relay.server.stop()

    asyncio.run(main())
