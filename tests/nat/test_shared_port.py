"""Two real sockets behind one UDP port: the tunnel's, and the agent's for signed datagrams."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import pytest

from limpet.base.ownership import NFT_SHARED_PORT_TABLE, ROUTE_TABLE
from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.cluster.datagrams.shared_port import SharedPort, ruleset
from limpet.datapath.tunnel.owned import needed_rules
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.nftables import Nftables
from tests.beds.descriptors import room_for_descriptors
from tests.cluster.courier_bed import CourierBed, Post, run
from tests.waiting import PATIENCE_S

TUNNEL_PORT = 20777
ADDRESSES = [(4, "192.0.2.{}"), (6, "2001:db8::{}")]

STATEFUL = f"""
table inet firewall {{
    chain input {{
        type filter hook input priority filter; policy drop;
        ct state established accept
        icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
        udp dport {TUNNEL_PORT} meta mark 7 accept
    }}
}}
"""
"""Lets nothing new in: what an answer is was told by connection tracking."""


@pytest.fixture(name="bed")
def _bed() -> Iterator[CourierBed]:
    bed = CourierBed()
    yield bed
    bed.close()


@contextmanager
def sharing(*posts: Post) -> Iterator[None]:
    for post in posts:
        with post.host.netns.entered():
            post.courier.share_tunnel_port(TUNNEL_PORT)
    try:
        yield
    finally:
        for post in posts:
            post.courier.stop()


@contextmanager
def tunnel_socket(post: Post, version: int) -> Iterator[socket.socket]:
    """As a userspace tunnel's."""
    opened = post.host.netns.open_socket(version, socket.SOCK_DGRAM)
    opened.settimeout(PATIENCE_S)
    opened.bind(("", TUNNEL_PORT))
    yield opened
    opened.close()


@pytest.mark.parametrize(("version", "address"), ADDRESSES)
def test_each_of_the_two_gets_what_is_its_own_by_the_port_of_the_tunnel(
    bed: CourierBed, version: int, address: str
) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        to = ip_address(address.format(2))
        with (
            sharing(one, two),
            tunnel_socket(one, version) as here,
            tunnel_socket(two, version) as there,
        ):
            one.courier.send(
                BodyKind.PROBE, b"?", to_uid=two.uid, address=to, port=TUNNEL_PORT, by_tunnel=True
            )
            here.sendto(b"of the tunnel", (str(to), TUNNEL_PORT))
            (received,) = await two.receive()

            assert (received.body, received.by_tunnel, received.to_relay) == (b"?", True, False)
            assert (received.address, received.port) == (
                ip_address(address.format(1)),
                TUNNEL_PORT,
            )
            data, source = there.recvfrom(100)
            assert (data, source[:2]) == (b"of the tunnel", (address.format(1), TUNNEL_PORT))

            two.courier.answer(received, BodyKind.ANSWER, b"!")
            (answer,) = await one.receive()
            assert (answer.body, answer.by_tunnel) == (b"!", True)
            assert (answer.address, answer.port) == (to, TUNNEL_PORT)

    run(scenario)


@pytest.mark.parametrize(("version", "address"), ADDRESSES)
def test_both_are_routed_alike_past_the_routes_that_lead_into_tunnels(
    bed: CourierBed, version: int, address: str
) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        family = "-6 " if version == 6 else ""
        one.host.netns.ip(
            f"{family}rule add priority {ROUTE_TABLE} lookup {ROUTE_TABLE}",
            f"{family}route add blackhole {address.format(2)} table {ROUTE_TABLE}",
        )
        with one.host.netns.entered(), RouteSocket() as route:
            route.apply(*needed_rules(route, wanted=True))
        to = ip_address(address.format(2))
        with sharing(one, two):
            sent = one.courier.send(
                BodyKind.PROBE, b"?", to_uid=two.uid, address=to, port=TUNNEL_PORT, by_tunnel=True
            )
            assert sent
            (received,) = await two.receive()
            assert received.by_tunnel

    run(scenario)


@pytest.mark.parametrize(("version", "address"), ADDRESSES)
def test_an_answer_passes_a_firewall_that_lets_nothing_else_in(
    bed: CourierBed, version: int, address: str
) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        with one.host.netns.entered():
            firewall = Nftables("firewall")
            firewall.put_table(STATEFUL)
            firewall.close()
        with sharing(one, two):
            two.courier.send(
                BodyKind.PROBE,
                b"nobody has asked",
                to_uid=one.uid,
                address=ip_address(address.format(1)),
                port=TUNNEL_PORT,
                by_tunnel=True,
            )
            one.courier.send(
                BodyKind.PROBE,
                b"?",
                to_uid=two.uid,
                address=ip_address(address.format(2)),
                port=TUNNEL_PORT,
                by_tunnel=True,
            )
            (asked,) = await two.receive()
            two.courier.answer(asked, BodyKind.ANSWER, b"!")
            (answer,) = await one.receive()
            assert answer.body == b"!"

    run(scenario)


@pytest.mark.parametrize(("version", "address"), ADDRESSES)
def test_an_ip_version_whose_socket_could_not_be_opened_has_it_when_it_is_tried_again(
    bed: CourierBed, version: int, address: str
) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        with (
            one.host.netns.entered(),
            room_for_descriptors(1),
            pytest.raises(OSError, match="Too many open files"),
        ):
            one.courier.share_tunnel_port(TUNNEL_PORT)
        to = ip_address(address.format(2))
        with sharing(one, two):
            one.courier.send(
                BodyKind.PROBE, b"?", to_uid=two.uid, address=to, port=TUNNEL_PORT, by_tunnel=True
            )
            (received,) = await two.receive()
            assert (received.body, received.by_tunnel) == (b"?", True)
            two.courier.answer(received, BodyKind.ANSWER, b"!")
            (answer,) = await one.receive()
            assert (answer.body, answer.by_tunnel) == (b"!", True)

    run(scenario)


def test_an_answer_leaves_from_the_address_that_was_asked(bed: CourierBed) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        two.host.netns.ip("addr add 192.0.2.222/24 dev eth0")
        to = ip_address("192.0.2.222")
        with sharing(one, two):
            one.courier.send(
                BodyKind.PROBE, b"?", to_uid=two.uid, address=to, port=TUNNEL_PORT, by_tunnel=True
            )
            (asked,) = await two.receive()
            two.courier.answer(asked, BodyKind.ANSWER, b"!")
            (answer,) = await one.receive()
            assert answer.address == to

    run(scenario)


def test_what_is_for_a_relay_says_so(bed: CourierBed) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        with sharing(one, two):
            one.courier.send(
                BodyKind.RELAY_CHECK,
                b"",
                to_uid=two.uid,
                address=ip_address("192.0.2.2"),
                port=TUNNEL_PORT,
                by_tunnel=True,
                to_relay=True,
            )
            (received,) = await two.receive()
            assert received.to_relay

    run(scenario)


def test_what_is_larger_than_the_link_is_not_cut_into_pieces(bed: CourierBed) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        to = ip_address("192.0.2.2")

        def send(size: int) -> bool:
            return one.courier.send(
                BodyKind.PROBE,
                bytes(size),
                to_uid=two.uid,
                address=to,
                port=TUNNEL_PORT,
                by_tunnel=True,
            )

        with sharing(one, two):
            assert not send(1400)
            assert send(1300)

    run(scenario)


def test_the_table_that_was_put_is_not_put_again(bed: CourierBed) -> None:
    host = bed.host(1)
    with host.netns.entered():
        shared = SharedPort()
        shared.put(TUNNEL_PORT, {4: 40000, 6: 40001})
        nft = Nftables(NFT_SHARED_PORT_TABLE)
        nft.run(f"add chain inet {NFT_SHARED_PORT_TABLE} mine", what="a chain of the test")
        before = nft.list_table()
        nft.put_table("")
        shared.put(TUNNEL_PORT, {4: 40000, 6: 40001})
        after = nft.list_table()
        shared.put(TUNNEL_PORT, {4: 40000, 6: 40001})
        assert before != after == nft.list_table()
        shared.close()
        nft.close()


def test_the_rules_are_these() -> None:
    assert ruleset(51820, {4: 40000, 6: 40001}) == GOLDEN


GOLDEN = """\
table inet limpet_tunnel {
\tchain input {
\t\ttype filter hook input priority 300; policy accept;
\t\tmeta nfproto ipv4 udp dport 51820 @th,64,32 { 0x4c6d7001, 0x4c6d7201 } udp dport set 40000
\t\tmeta nfproto ipv6 udp dport 51820 @th,64,32 { 0x4c6d7001, 0x4c6d7201 } udp dport set 40001
\t}

\tchain output {
\t\ttype filter hook output priority raw; policy accept;
\t\tmeta nfproto ipv4 udp sport 40000 udp sport set 51820
\t\tmeta nfproto ipv6 udp sport 40001 udp sport set 51820
\t}
}
"""
