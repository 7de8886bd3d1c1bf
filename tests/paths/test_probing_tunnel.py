"""Ways for the tunnel are proven through real NATs and a relay, by the tunnel's own port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath, RelayEnd
from limpet.cluster.topology.transports import ProbeKind
from limpet.datapath.event import AnswerSeen
from limpet.paths.ladder.probe_state import RARE_RETRY_S
from limpet.paths.probe.codec import encode_probe
from limpet.paths.probe.messages import Probe
from tests.beds.namespaces import Netns, connect_namespaces
from tests.paths.probing_bed import PORT, Node, PathBed, introduce

TUNNEL_PORT = 51820
RELAY = "a" * 24
RELAY_ADDRESS = "198.51.100.2"


@pytest.fixture(name="bed")
def _bed() -> Iterator[PathBed]:
    bed = PathBed()
    yield bed
    bed.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    started: list[Node] = []
    try:
        for node in nodes:
            node.start(tunnel_port=TUNNEL_PORT)
            started.append(node)
        introduce(*nodes)
        yield
    finally:
        for node in started:
            await node.stop()


_NAT = """
table ip nat {{
    chain out {{
        type nat hook postrouting priority srcnat; policy accept;
        oifname "wan" masquerade {how}
    }}
    chain here {{
        type filter hook input priority 0; policy accept;
        iifname "wan" drop
    }}
    chain in {{
        type filter hook forward priority 0; policy accept;
        iifname "wan" ct state new drop
    }}
}}
"""


def behind_nat(bed: PathBed, internet: Netns, number: int, *, how: str = "") -> tuple[Node, Netns]:
    """A node in a site of its own, and the site's gateway; nobody outside may begin."""
    node, gateway = bed.node(number), bed.router()
    node.wire("eth0", gateway, f"10.{number}.0.2/24", f"10.{number}.0.1/24")
    outside = f"203.0.113.{4 * number + 2}"
    connect_namespaces(gateway, "wan", internet, f"site{number}")
    internet.ip(f"addr add 203.0.113.{4 * number + 1}/30 dev site{number}")
    gateway.ip(
        f"addr add {outside}/30 dev wan", f"route add default via 203.0.113.{4 * number + 1}"
    )
    gateway.run("nft", _NAT.format(how=how))
    node.endpoints = ((ip_address(outside), TUNNEL_PORT),)
    return node, gateway


def public(bed: PathBed, internet: Netns, number: int) -> Node:
    node = bed.node(number)
    node.wire(
        "eth0", internet, f"198.51.100.{4 * number + 2}/30", f"198.51.100.{4 * number + 1}/30"
    )
    return node


def rung(node: Node, other: Node) -> transports.Transport | None:
    path = node.path(other)
    return path.rung if path is not None else None


async def on(node: Node, other: Node, wanted: transports.Transport) -> None:
    """What does not answer is asked once a minute in the end. Raises: TimeoutError."""
    await node.until(lambda: rung(node, other) is wanted, 2 * RARE_RETRY_S)


class Forwarder:
    """A blind relay of one pair: what comes to one port leaves by the other one."""

    def __init__(self, bed: PathBed, internet: Netns) -> None:
        netns = bed.namespace("relay")
        connect_namespaces(netns, "eth0", internet, "relay")
        internet.ip("addr add 198.51.100.1/30 dev relay")
        netns.ip(f"addr add {RELAY_ADDRESS}/30 dev eth0", "route add default via 198.51.100.1")
        self.sockets = [netns.open_socket(4, socket.SOCK_DGRAM) for _ in range(2)]
        self.ends: list[tuple[str, int] | None] = [None, None]
        for number, opened in enumerate(self.sockets):
            opened.setblocking(False)
            opened.bind((RELAY_ADDRESS, 21000 + number))

    def __enter__(self) -> Forwarder:
        for number, opened in enumerate(self.sockets):
            asyncio.get_running_loop().add_reader(opened, self._forward, number)
        return self

    def __exit__(self, *_error: object) -> None:
        for opened in self.sockets:
            asyncio.get_running_loop().remove_reader(opened)
            opened.close()

    def _forward(self, number: int) -> None:
        data, self.ends[number] = self.sockets[number].recvfrom(1 << 16)
        to = self.ends[1 - number]
        if to is not None:
            self.sockets[1 - number].sendto(data, to)

    def end(self, number: int) -> RelayEnd:
        return RelayEnd(RELAY, (ip_address(RELAY_ADDRESS), 21000 + number))


def relayed(number: int, mtu_bytes: int = 1500) -> PeerPath:
    end = (ip_address(RELAY_ADDRESS), 21000 + number)
    return PeerPath(transports.RELAY, mtu_bytes, endpoint=end, relay=RELAY)


def test_two_nodes_behind_nats_punch_through_both(bed: PathBed) -> None:
    internet = bed.router()
    one, _ = behind_nat(bed, internet, 1)
    two, _ = behind_nat(bed, internet, 2)

    async def scenario() -> None:
        async with running(one, two):
            for node, other in ((one, two), (two, one)):
                (endpoint,) = other.endpoints
                await node.has_path(other, PeerPath(transports.TUNNEL, 1500, endpoint=endpoint))

    run(scenario)


def test_what_the_way_carries_is_found_out_also_where_nobody_says_what_is_too_big(
    bed: PathBed,
) -> None:
    internet = bed.router()
    one, _ = behind_nat(bed, internet, 1)
    two, _ = behind_nat(bed, internet, 2)
    internet.ip("link set site2 mtu 1440")
    internet.run("nft", "table ip m { chain c { type filter hook output priority 0; drop; }; }")

    async def scenario() -> None:
        async with running(one, two):
            await one.has_path(two, PeerPath(transports.TUNNEL, 1420, endpoint=two.endpoints[0]))

    run(scenario)


def test_a_node_behind_a_symmetric_nat_is_found_where_it_writes_from(bed: PathBed) -> None:
    internet = bed.router()
    one, _ = behind_nat(bed, internet, 1, how="fully-random")
    two = public(bed, internet, 2)
    outside = one.endpoints[0][0]
    one.endpoints = ()

    async def scenario() -> None:
        async with running(one, two):
            await on(one, two, transports.TUNNEL)
            await on(two, one, transports.TUNNEL)
            path = two.path(one)
            assert path is not None
            assert path.endpoint is not None
            assert path.endpoint[0] == outside
            one.probing.set_active(frozenset({two.uid}))
            await one.has_asked(ProbeKind.TUNNEL, 3)
            last = [each for each in one.told if isinstance(each, AnswerSeen)][-1]
            assert (last.uid, last.asked) == (two.uid, (ip_address("198.51.100.10"), TUNNEL_PORT))
            assert last.seen == path.endpoint

    run(scenario)


def test_a_pair_that_cannot_be_punched_goes_by_a_relay_and_leaves_it_when_it_is_withdrawn(
    bed: PathBed,
) -> None:
    internet = bed.router()
    one, _ = behind_nat(bed, internet, 1, how="fully-random")
    two, _ = behind_nat(bed, internet, 2, how="fully-random")
    relay = Forwarder(bed, internet)

    async def scenario() -> None:
        async with running(one, two):
            await one.until(lambda: one.relay_needs.get(two.uid, False))
            with relay:
                one.probing.set_relay_ends(two.uid, (relay.end(0),))
                two.probing.set_relay_ends(one.uid, (relay.end(1),))
                await one.has_path(two, relayed(0))
                await two.has_path(one, relayed(1))
                assert one.probing.ways[two.uid] is not None
                # A relay is no endpoint of the peer, although the peer is heard from there.
                asked = {
                    candidate for candidate in await candidates(one, two) if not candidate.relay
                }
                assert RELAY_ADDRESS not in {str(candidate.address) for candidate in asked}
                other = RelayEnd("b" * 24, relay.end(0).endpoint)
                one.probing.set_relay_ends(two.uid, (other,))
                await one.until(
                    lambda: (path := one.path(two)) is not None and path.relay == "b" * 24
                )

    async def candidates(node: Node, other: Node) -> list:  # type: ignore[type-arg]
        return [each.candidate for each in await node.probing.measure(other.uid)]

    run(scenario)


def test_a_direct_way_that_is_blocked_under_traffic_gives_way_to_the_relay_and_comes_back(
    bed: PathBed,
) -> None:
    internet = bed.router()
    one, _ = behind_nat(bed, internet, 1)
    two, _ = behind_nat(bed, internet, 2)
    relay = Forwarder(bed, internet)

    async def scenario() -> None:
        async with running(one, two):
            with relay:
                one.probing.set_relay_ends(two.uid, (relay.end(0),))
                two.probing.set_relay_ends(one.uid, (relay.end(1),))
                for node, other in ((one, two), (two, one)):
                    node.probing.set_active(frozenset({other.uid}))
                    await on(node, other, transports.TUNNEL)
                internet.run("nft", _BLOCK)
                await on(one, two, transports.RELAY)
                await on(two, one, transports.RELAY)
                internet.run("nft", "delete table ip block")
                await on(one, two, transports.TUNNEL)

    run(scenario)


_BLOCK = """
table ip block {
    chain c {
        type filter hook forward priority 0; policy accept;
        ip saddr 203.0.113.0/24 ip daddr 203.0.113.0/24 drop
    }
}
"""


def test_what_comes_by_the_wrong_port_is_not_answered(bed: PathBed) -> None:
    internet = bed.router()
    one, two = public(bed, internet, 1), public(bed, internet, 2)
    here = ip_address("198.51.100.6")

    async def scenario() -> None:
        async with running(one, two):
            for ask, port, by_tunnel in (
                (ProbeKind.TUNNEL, PORT, False),
                (ProbeKind.SITE, TUNNEL_PORT, True),
            ):
                two.courier.send(
                    BodyKind.PROBE,
                    encode_probe(Probe(bytes(8), ask, 1)),
                    to_uid=one.uid,
                    address=here,
                    port=port,
                    by_tunnel=by_tunnel,
                )
                await one.until_counted(f"refused_{ask.name.lower()}", 1)

    run(scenario)


def test_addresses_that_are_not_private_are_never_used_unencrypted(bed: PathBed) -> None:
    internet = bed.router()
    one, two = public(bed, internet, 1), public(bed, internet, 2)

    async def scenario() -> None:
        async with running(one, two):
            await on(one, two, transports.TUNNEL)
            assert not one.probing.counters["asked_site"]

    run(scenario)
