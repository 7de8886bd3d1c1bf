"""Packets of tunnels in TLS connections to a relay: on loopback, with a cluster's certificates."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.base.errors import LimpetError
from limpet.cli.install.units.service import CAPABILITIES
from limpet.cluster.kinds.grant import Role
from limpet.relay.client.peer import StreamFailed, StreamWanted
from limpet.relay.stream.codec import MAX_PACKET_BYTES
from tests.beds.namespaces import NetnsFactory
from tests.beds.overlay_bed import ping
from tests.relay.relay_bed import send_bulk
from tests.relay.relay_tls_bed import (
    RELAY,
    Cluster,
    Relay,
    Site,
    lost,
    patient_cluster,
    play,
    site_of,
    tell,
    uid,
)
from tests.relay.relay_tls_sites import FarSite, RealRelay
from tests.waiting import until

DATA = b"\x04\x00\x00\x00"
"""First word of what a tunnel sends."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with patient_cluster(tmp_path, monkeypatch) as made:
        yield made


def test_what_a_tunnel_sends_to_its_end_comes_to_the_peers_tunnel_from_its_end(
    cluster: Cluster,
) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        there = await one.end_for(other, relay)
        back = await other.end_for(one, relay)
        for size in (1, 32, 1500, MAX_PACKET_BYTES):
            one.tunnel.sendto(bytes(size), there)
            assert await other.receive() == (bytes(size), back)
            other.tunnel.sendto(bytes(size), back)
            assert await one.receive() == (bytes(size), there)

    play(cluster, scenario)


def test_packets_keep_their_bounds_and_order_in_whatever_batches_they_travel(
    cluster: Cluster,
) -> None:
    # Of one size, of others in between, and some that no batch may hold: they are no tunnel's data.
    packets = [
        (DATA if number % 7 else b"Lmp\x01") + number.to_bytes(2) + bytes(1200 - number % 5 // 4)
        for number in range(120)
    ]

    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        there = await one.end_for(other, relay)
        await other.end_for(one, relay)
        for packet in packets:
            one.tunnel.sendto(packet, there)
        assert [(await other.receive())[0] for _ in packets] == packets

    play(cluster, scenario)


def test_a_packet_that_is_too_large_is_counted_and_the_next_one_passes(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        there = await one.end_for(other, relay)
        await other.end_for(one, relay)
        one.tunnel.sendto(bytes(MAX_PACKET_BYTES + 1), there)
        one.tunnel.sendto(b"next", there)
        assert (await other.receive())[0] == b"next"
        assert one.relays.report()[uid(RELAY)].lost == 1

    play(cluster, scenario)


def test_one_connection_serves_all_peers_and_a_peer_that_is_released_is_closed_alone(
    cluster: Cluster,
) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        async with site_of(cluster, 3) as third:
            ends = await asyncio.gather(
                one.end_for(other, relay), one.end_for(third, relay), one.end_for(other, relay)
            )
            assert ends[0] == ends[2] != ends[1]
            back = await other.end_for(one, relay)
            assert relay.server.report().nodes[one.uid] == sorted([other.uid, third.uid])
            one.relays.release(third.uid)
            await until(lambda: relay.server.report().nodes[one.uid] == [other.uid])
            other.tunnel.sendto(b"still", back)
            assert await one.receive() == (b"still", ends[0])
            assert len(relay.server.report().nodes) == 2

    play(cluster, scenario)


def test_a_node_hears_which_peer_waits_for_it_at_the_relay(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        async with site_of(cluster, 3) as third:
            await one.end_for(third, relay)
        assert relay.server.tell_wanted(one.uid, other.uid)
        assert not relay.server.tell_wanted(other.uid, one.uid)
        await until(lambda: one.told == [StreamWanted(other.uid, uid(RELAY))])

    play(cluster, scenario)


def test_tunnels_and_probes_of_two_sites_get_through_where_nothing_gets_out_but_tcp_443(
    cluster: Cluster, make_netns: NetnsFactory, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as undo:
        relay = RealRelay(cluster, make_netns("relay"), tmp_path, undo)
        # The relay has both IP versions: one site comes by this, the other by that.
        one = FarSite(cluster, 1, relay, make_netns("one"), tmp_path, undo)
        other = FarSite(cluster, 2, relay, make_netns("other"), tmp_path, undo)
        ends = [
            one.end_for(other, "192.0.2.6"),
            other.end_for(one, "2001:db8:2::2"),
        ]
        one.tunnel.send_to({other.tunnel: ends[0]})
        other.tunnel.send_to({one.tunnel: ends[1]})

        ping(one.netns, other.tunnel.inner, "-W", "20")
        ping(other.netns, one.tunnel.inner, "-W", "20", "-s", "1300")
        for client, server in ((one, other), (other, one)):
            send_bulk(client.tunnel, server.tunnel)
        assert one.probed(other, ends[0]) == ends[1]
        assert other.probed(one, ends[1]) == ends[0]

        told = relay.report()
        assert told.pairs[0].ways == ["tls", "tls"]
        relay.tell(2, generation=2, tombstone=True)
        problem = "the relay takes no packets for it any more"
        one.until(lambda: StreamFailed(uid(2), uid(RELAY), problem) in one.told)
        other.until(lambda: lost(other.told) == [uid(RELAY)])


@pytest.mark.parametrize("size", [0, MAX_PACKET_BYTES + 1, 65507])
def test_what_a_peer_sends_to_the_relay_by_udp_cannot_break_a_nodes_connection(
    cluster: Cluster, size: int
) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        there = await one.end_for(other, relay)
        taker = relay.board.ends[one.uid, other.uid].on_packet
        taker(bytes(size))
        taker(b"next")
        assert await one.receive() == (b"next", there)
        assert relay.server.report().refused["dropped"] == 1

    play(cluster, scenario)


# Who may


def test_a_removed_node_is_cut_off_at_once(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        await other.end_for(one, relay)
        tell(relay.membership, 1, generation=2, tombstone=True)
        assert list(relay.board.ends) == [(other.uid, one.uid)]
        await until(lambda: one.lost == [uid(RELAY)])
        with pytest.raises(LimpetError, match="it closed the connection"):
            await one.end_for(other, relay)
        assert relay.counters["stranger"] == 1

    play(cluster, scenario)


def test_a_relay_that_was_removed_or_is_none_any_more_is_left_at_once(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        await other.end_for(one, relay)
        tell(one.membership, RELAY, generation=2, tombstone=True)
        tell(other.membership, RELAY, generation=2, roles=frozenset({Role.EDGE}))
        for site, peer in ((one, other), (other, one)):
            assert site.lost == [uid(RELAY)]
            with pytest.raises(LimpetError, match=r"node-9: node .* is no relay of this cluster"):
                await site.end_for(peer, relay)
        await until(lambda: not relay.board.ends)

    play(cluster, scenario)


def test_a_relay_that_learns_that_it_is_none_any_more_lets_all_go(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        tell(relay.membership, RELAY, generation=2, roles=frozenset({Role.EDGE}))
        await until(lambda: one.lost == [uid(RELAY)])
        with pytest.raises(LimpetError, match="it closed the connection"):
            await one.end_for(other, relay)

    play(cluster, scenario)


def test_a_node_of_another_cluster_is_refused_by_its_certificate(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    stranger = Cluster(tmp_path / "other")
    with stranger.undo:
        # Each trusts its own CA only, so it is told apart by the one that has to prove itself.
        async def scenario(relay: Relay, one: Site, other: Site) -> None:
            async with site_of(stranger, 1) as foreign:
                with pytest.raises(LimpetError, match="it is not of this node's cluster"):
                    await foreign.end_for(other, relay)
            identity, own = stranger.identity(1), cluster.identity(1)
            (identity.folder / "ca.pem").write_bytes(own.ca_path.read_bytes())
            async with site_of(stranger, 1) as foreign:
                with pytest.raises(LimpetError, match="over TLS by relay node-9: TLS: "):
                    await foreign.end_for(other, relay)
            assert relay.counters["failed_handshake"] == 2
            assert relay.board.ends == {}

        play(cluster, scenario)


def test_another_node_of_the_cluster_is_not_taken_for_the_relay(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        tell(one.membership, 3, generation=2, roles=frozenset({Role.RELAY}))
        with pytest.raises(LimpetError, match=f"it is node {uid(RELAY)} that answers there"):
            await one.relays.end_for(uid(3), (relay.address,), other.uid)

    play(cluster, scenario)


def test_a_pair_that_may_not_talk_is_refused_in_words(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        relay.board.apart = {other.uid}
        with pytest.raises(LimpetError, match="the two nodes share no community, or one was"):
            await one.end_for(other, relay)
        assert relay.counters["refused_may_not_talk"] == 1
        relay.board.apart = set()
        await one.end_for(other, relay)

    play(cluster, scenario)


def test_a_pair_that_is_no_more_is_told_and_the_others_stay(cluster: Cluster) -> None:
    async def scenario(relay: Relay, one: Site, other: Site) -> None:
        await one.end_for(other, relay)
        async with site_of(cluster, 3) as third:
            there = await one.end_for(third, relay)
            relay.board.ends[one.uid, other.uid].on_gone()
            problem = "the relay takes no packets for it any more"
            await until(lambda: one.told == [StreamFailed(other.uid, uid(RELAY), problem)])
            assert await one.end_for(third, relay) == there
            assert list(relay.board.ends) == [(one.uid, third.uid)]

    play(cluster, scenario)


def test_the_agents_service_may_listen_on_port_443(make_netns: NetnsFactory) -> None:
    listen = "from limpet.relay.server.tls_server import _listener as listen; listen(('::', 443))"
    may = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in CAPABILITIES)
    command = [
        "setpriv",
        f"--bounding-set=-all,{may}",
        sys.executable,
        "-W",
        "ignore",
        "-c",
        listen,
    ]
    make_netns("relay").run(*command)
