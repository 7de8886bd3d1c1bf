"""Network cards put packets of one flow together, and rules see them as one: not the agent's."""

from __future__ import annotations

import asyncio
import operator
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address

import pytest

from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec
from limpet.linux.packets.datagram_batches import TUNNEL_DATA, receive_batch, takes_batches
from limpet.relay.messages import Hello, Seen, encode
from limpet.relay.stream.packet_socket import nowhere
from tests.beds.namespaces import Netns
from tests.relay.relay_agents import Cluster, nonce, run
from tests.relay.relay_bed import Host, RelayBed
from tests.unit.cluster_values import PINNED, node_key

_HOLD_NS = 100_000_000
"""A card waits for so long for more of a flow; others' work may come between two packets."""


def make_batches(netns: Netns, ifname: str) -> None:
    """The link does what a network card's driver does: GRO, and nothing before it."""
    folder = f"/sys/class/net/{ifname}"
    script = (
        f"ethtool -K {ifname} gro on tso off gso off tx off && "
        f"echo {_HOLD_NS} > {folder}/gro_flush_timeout && "
        f"echo 1000 > {folder}/napi_defer_hard_irqs"
    )
    # Not nsenter: /sys has to be that of the namespace.
    command = ["ip", "netns", "exec", netns.name, "sh", "-c", script]
    subprocess.run(command, check=True, capture_output=True, timeout=30)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Two, and a relay's."""
    bed = RelayBed(3)
    for host in bed.hosts:
        make_batches(host.netns, "eth0")
        make_batches(bed.middle, f"port{host.number}")
    yield bed.hosts
    bed.close()


@pytest.mark.parametrize("version", [4, 6])
def test_what_an_agent_says_after_tunnel_packets_is_not_put_together_with_them(
    hosts: list[Host], version: int
) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other), relay = cluster.agents, cluster.relay
            port = (await other.ask(relay, one, version=version)).port
            await other.bind(relay, port, version=version)
            stream = relay.service.attach_stream(one.uid, other.uid, nowhere, lambda: None)
            codec = Codec(node_key(one.host.number), PINNED)
            data = TUNNEL_DATA + bytes(1000)
            batches: list[list[bytes]] = []
            with other.host.open_udp(version) as tunnel:
                assert takes_batches(tunnel)
                for number in range(3):
                    # Both leave the relay's port by one socket of the agent.
                    said = Seen(nonce(), (ip_address("192.0.2.1"), 1), number)
                    datagram = codec.encode(BodyKind.RELAY_SEEN, encode(said), to_uid=other.uid)
                    for packet in (data, data, data, datagram):
                        stream.onward(packet)
                    await other.hears(Seen, partial(operator.eq, said))
                while sum(len(batch) for batch in batches) < 9:
                    batches.append(await asyncio.to_thread(receive_batch, tunnel))
            # Or nothing was shown.
            assert max(len(batch) for batch in batches) > 1
            assert {packet for batch in batches for packet in batch} == {data}

    run(hosts[-1], scenario)


@pytest.mark.parametrize("version", [4, 6])
def test_an_agents_datagrams_have_another_hop_limit_than_the_tunnels(
    hosts: list[Host], version: int
) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            one, relay = cluster.agents[0], cluster.relay
            one.say(relay, Hello(nonce()), version=version)
            answer, _ = await one.receives(Seen)
            level, option = (
                (socket.IPPROTO_IP, socket.IP_TTL)
                if version == 4
                else (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS)
            )
            with relay.host.open_udp(version, last=2) as like_a_tunnel:
                usual = like_a_tunnel.getsockopt(level, option)
            through_the_router = 1
            assert answer.hop_limit + through_the_router != usual

    run(hosts[-1], scenario)
