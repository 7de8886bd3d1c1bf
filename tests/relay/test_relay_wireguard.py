"""Real WireGuard between two sites through a relay that has no key of theirs."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from tests.beds.namespaces import Netns
from tests.relay.relay_agents import Cluster, run
from tests.relay.relay_bed import BULK_BYTES, TUNNEL_PORT, Host, RelayBed, send_bulk
from tests.waiting import PATIENCE_S

WORDS = b"what nobody between the two may read"
ETH_P_ALL = 3


@pytest.fixture
def bed() -> Iterator[RelayBed]:
    """Two sites, a stranger's, and the relay's."""
    bed = RelayBed(4)
    yield bed
    bed.close()


def ping(source: Host, target: Host) -> None:
    """Raises: AssertionError without an answer."""
    source.netns.run(
        "ping", "-n", "-c", "3", "-i", "0.1", "-W", str(PATIENCE_S), target.wireguard.inner
    )


class Capture:
    """All that passes a link."""

    def __init__(self, netns: Netns, ifname: str) -> None:
        with netns.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            self._socket.bind((ifname, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._socket.setblocking(False)

    def frames(self) -> list[bytes]:
        """What has passed since the last time."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(1 << 17))
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


def is_wireguard(frame: bytes) -> bool:
    """A handshake or a data packet of WireGuard in UDP in IPv4."""
    if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_UDP:
        return False
    kind, reserved = struct.unpack_from("<B3s", frame, 42)
    return kind in (1, 2, 3, 4) and reserved == bytes(3)


@pytest.mark.parametrize("version", [4, 6])
def test_two_sites_reach_each_other_through_a_relay(bed: RelayBed, version: int) -> None:
    one, other, _, relay = bed.hosts

    async def scenario() -> None:
        async with Cluster(bed.hosts) as cluster:
            port, its_port = await cluster.join((version, version))
            here = relay.address(version)
            one.wireguard.send_to({other.wireguard: (here, port)})
            other.wireguard.send_to({one.wireguard: (here, its_port)})
            ping(one, other)
            ping(other, one)
            send_bulk(one.wireguard, other.wireguard)
            send_bulk(other.wireguard, one.wireguard)
            packets = cluster.relay.service.report().packets
            assert packets["forwarded"] > 2 * BULK_BYTES / 65536
            assert packets["handed_up"] == 0

    run(relay, scenario)


def test_a_relay_sees_only_ciphertext_and_a_third_node_nothing(bed: RelayBed) -> None:
    one, other, third, relay = bed.hosts

    async def scenario() -> None:
        async with Cluster(bed.hosts) as cluster:
            port, its_port = await cluster.join()
            here = relay.address()
            one.wireguard.send_to({other.wireguard: (here, port)})
            other.wireguard.send_to({one.wireguard: (here, its_port)})
            # It knows the keys, the relay and both ports; the relay does not know it at any.
            third.wireguard.send_to(
                {one.wireguard: (here, port), other.wireguard: (here, its_port)}
            )
            one.wireguard.send_to({third.wireguard: (here, port)})
            at_relay, at_third = Capture(relay.netns, "eth0"), Capture(third.netns, "eth0")
            ping(one, other)
            send_bulk(one.wireguard, other.wireguard, WORDS * 1000)
            with pytest.raises(AssertionError):
                third.netns.run("ping", "-n", "-c", "1", "-W", "1", one.wireguard.inner)

            seen = [frame for frame in at_relay.frames() if is_wireguard(frame)]
            assert sum(map(len, seen)) > 2 * 1000 * len(WORDS)
            assert not [frame for frame in seen if WORDS[:16] in frame]
            incoming = [frame for frame in at_third.frames() if is_wireguard(frame)]
            own = third.address().packed
            assert incoming
            assert {frame[26:30] for frame in incoming} == {own}
            assert cluster.relay.counted("not_bound") > 0
            for capture in (at_relay, at_third):
                capture.close()

    run(relay, scenario)


def test_a_tunnel_goes_on_while_its_node_moves_and_the_relays_agent_restarts(
    bed: RelayBed,
) -> None:
    one, other, _, relay = bed.hosts

    async def scenario() -> None:
        async with Cluster(bed.hosts) as cluster:
            port, its_port = await cluster.join()
            here = relay.address()
            one.wireguard.send_to({other.wireguard: (here, port)})
            other.wireguard.send_to({one.wireguard: (here, its_port)})
            ping(one, other)

            one.prefer(2)
            assert await cluster.agents[0].bind(cluster.relay, port) == (
                one.address(last=2),
                TUNNEL_PORT,
            )
            ping(one, other)
            ping(other, one)

            await cluster.relay.service.stop()
            send_bulk(one.wireguard, other.wireguard)
            cluster.relay.service.start()
            send_bulk(other.wireguard, one.wireguard)
            assert len(cluster.relay.service.report().pairs) == 1

    run(relay, scenario)
