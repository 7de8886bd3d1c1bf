"""What a relay does with packets: whose it takes, to whom they go, and what stops them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from msgspec.structs import replace

from limpet.base.addresses import Address
from limpet.base.ownership import NFT_RELAY_TABLE
from limpet.linux.nftables import Elements, split_listing
from limpet.relay.messages import Hello, Seen
from tests.relay.relay_agents import (
    RELAY_PORTS,
    SETTINGS,
    Cluster,
    Relay,
    at,
    hears,
    nonce,
    run,
)
from tests.relay.relay_bed import TUNNEL_PORT, Host, RelayBed
from tests.waiting import until


@pytest.fixture(scope="module")
def bed() -> Iterator[RelayBed]:
    """Hosts 1 to 3, and the relay's."""
    bed = RelayBed(4)
    yield bed
    bed.close()


@pytest.fixture
def hosts(bed: RelayBed) -> Iterator[list[Host]]:
    yield bed.hosts
    for host in bed.hosts:
        host.prefer(1)
        host.netns.run("nft", "flush", "ruleset")


def content_of(relay: Relay) -> tuple[str, Elements]:
    """In whatever order the kernel lists it."""
    return split_listing(relay.table())


@pytest.mark.parametrize("versions", [(4, 4), (6, 6), (4, 6)])
def test_packets_come_to_each_end_from_its_own_port_of_the_relay(
    hosts: list[Host], versions: tuple[int, int]
) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            relay = cluster.relay
            port, its_port = await cluster.join(versions)
            one, other = (
                agent.host.open_udp(version)
                for agent, version in zip(cluster.agents, versions, strict=False)
            )
            here, there = (relay.host.address(version) for version in versions)
            with one, other:
                for size in (0, 1, 148, 1200):
                    one.sendto(bytes(size), at(here, port))
                    assert await hears(other) == (bytes(size), at(there, its_port))
                    other.sendto(b"b" * size, at(there, its_port))
                    assert await hears(one) == (b"b" * size, at(here, port))
            by_kernel = versions[0] == versions[1]
            assert relay.counted("forwarded") == (8 if by_kernel else 0)
            assert relay.counted("handed_up") == (0 if by_kernel else 8)

    run(hosts[-1], scenario)


def test_packets_without_a_checksum_are_let_through_without_one(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            here = cluster.relay.host.address()
            port, its_port = await cluster.join()
            one, other = (agent.host.open_udp() for agent in cluster.agents[:2])
            with one, other:
                # As the kernel's ESP is over IPv4. Source: include/uapi/asm-generic/socket.h.
                one.setsockopt(socket.SOL_SOCKET, 11, 1)
                one.sendto(b"bare", at(here, port))
                assert await hears(other) == (b"bare", at(here, its_port))

    run(hosts[-1], scenario)


def test_whoever_is_not_the_end_sends_and_gets_nothing(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            relay, here = cluster.relay, cluster.relay.host.address()
            port, its_port = await cluster.join()
            one, other, third = (agent.host.open_udp() for agent in cluster.agents)
            beside = cluster.agents[0].host.open_udp(port=TUNNEL_PORT + 1)
            moved = cluster.agents[0].host.open_udp(last=2)
            strangers = (third, beside, moved)
            with one, other, third, beside, moved:
                for stranger in strangers:
                    for each in (port, its_port, 21010):
                        stranger.sendto(b"stranger", at(here, each))
                await relay.until_counted("not_bound", 9)
                # What was said by strangers has changed nothing, and brought them nothing.
                one.sendto(b"mine", at(here, port))
                assert await hears(other) == (b"mine", at(here, its_port))
                other.sendto(b"yours", at(here, its_port))
                assert await hears(one) == (b"yours", at(here, port))
                for stranger in strangers:
                    stranger.setblocking(False)
                    with pytest.raises(BlockingIOError):
                        stranger.recv(100)
            assert relay.counted("forwarded") == 2

    run(hosts[-1], scenario)


def test_an_end_that_moves_is_followed_only_after_its_check(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            agent, relay = cluster.agents[0], cluster.relay
            here = relay.host.address()
            port, its_port = await cluster.join()
            one, other = agent.host.open_udp(last=2), cluster.agents[1].host.open_udp()
            with one, other:
                one.sendto(b"too early", at(here, port))
                await relay.until_counted("not_bound")

                agent.host.prefer(2)
                assert await agent.bind(relay, port) == (agent.host.address(4, 2), TUNNEL_PORT)

                one.sendto(b"from there", at(here, port))
                assert (await hears(other))[0] == b"from there"
                other.sendto(b"to there", at(here, its_port))
                assert (await hears(one))[0] == b"to there"

    run(hosts[-1], scenario)


def test_pairs_outlive_the_agent_and_are_taken_up_by_the_next(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other, _), relay = cluster.agents, cluster.relay
            here = relay.host.address()
            port, its_port = await cluster.join()
            with one.host.open_udp() as opened, other.host.open_udp() as its:
                await relay.stop()
                opened.sendto(b"without an agent", at(here, port))
                assert (await hears(its))[0] == b"without an agent"

                cluster.relay = relay = Relay(relay.host, SETTINGS, knows=hosts[:-1])
                its.sendto(b"with another", at(here, its_port))
                assert (await hears(opened))[0] == b"with another"

    run(hosts[-1], scenario)


def test_a_table_that_others_have_changed_or_flushed_is_put_right(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, *_), relay = cluster.agents, cluster.relay
            port, _ = await cluster.join()
            whole = content_of(relay)
            table = f"inet {NFT_RELAY_TABLE}"
            key = f"{one.host.address()} . {TUNNEL_PORT} . {port}"
            for harm in (
                f"delete table {table}",
                f"delete element {table} ends4 {{ {key} }}",
                f"add element {table} to_port {{ 21009 : 9 }}",
                f"insert rule {table} relay drop",
                f"flush map {table} source4",
            ):
                relay.host.netns.run("nft", *harm.split())
                assert content_of(relay) != whole
                relay.service.look()
                assert content_of(relay) == whole
            # A change finds that what it is to change is not there.
            relay.host.netns.run("nft", "delete", "element", *table.split(), f"ends4 {{ {key} }}")
            one.host.prefer(2)
            await one.bind(relay, port)
            one.host.prefer(1)
            await one.bind(relay, port)
            assert content_of(relay) == whole

    run(hosts[-1], scenario)


def nats(public: Address, relay: Host, nodes: list[Host]) -> str:
    """The relay is behind a port-forward; each node behind a symmetric NAT, all on one router."""
    ports = f"{{ {TUNNEL_PORT}, {RELAY_PORTS[0]}-{RELAY_PORTS[1]} }}"
    sources = ", ".join(str(node.address()) for node in nodes)
    return f"""
        table ip nats {{
            chain prerouting {{
                type nat hook prerouting priority dstnat;
                ip daddr {public} udp dport {ports} dnat to {relay.address()}
            }}
            chain postrouting {{
                type nat hook postrouting priority srcnat;
                ip saddr {{ {sources} }} masquerade fully-random
            }}
        }}
    """


def test_a_relay_behind_a_port_forward_joins_nodes_behind_symmetric_nats(
    bed: RelayBed, hosts: list[Host]
) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other, _), relay = cluster.agents, cluster.relay
            public = relay.public = ip_address("198.51.100.9")
            bed.middle.run("nft", nats(public, relay.host, [one.host, other.host]))
            hello = Hello(nonce())
            one.say(relay, hello)
            seen = await one.hears(Seen, lambda told: told.nonce == hello.nonce)
            assert seen.endpoint[0] not in (one.host.address(), public)
            port = (await one.ask(relay, other)).port
            its_port = (await other.ask(relay, one)).port
            bound = await one.bind(relay, port)
            assert bound[0] == seen.endpoint[0]
            assert bound[1] != seen.endpoint[1]
            await other.bind(relay, its_port)
            with one.host.open_udp() as opened, other.host.open_udp() as its:
                opened.sendto(b"there", at(public, port))
                assert await hears(its) == (b"there", at(public, its_port))
                its.sendto(b"back", at(public, its_port))
                assert await hears(opened) == (b"back", at(public, port))
            assert relay.counted("forwarded") == 2

    try:
        run(hosts[-1], scenario)
    finally:
        bed.middle.run("nft", "flush ruleset")


DOCKERS = (
    "add table ip its; add chain ip its f { type filter hook forward priority 0; policy drop; }"
)


def test_where_the_kernel_may_not_forward_the_agent_hands_on(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other, _), relay = cluster.agents, cluster.relay
            here = relay.host.address()
            port, its_port = await cluster.join()
            with one.host.open_udp() as opened, other.host.open_udp() as its:

                async def come_through(name: str) -> None:
                    before = relay.counted(name)
                    opened.sendto(b"there", at(here, port))
                    assert await hears(its) == (b"there", at(here, its_port))
                    its.sendto(b"back", at(here, its_port))
                    assert await hears(opened) == (b"back", at(here, port))
                    assert relay.counted(name) == before + 2

                await come_through("forwarded")
                relay.host.netns.run("nft", DOCKERS)
                relay.service.look()
                await come_through("handed_up")
                relay.host.netns.run("nft", "delete table ip its")
                relay.service.look()
                await come_through("forwarded")
                relay.host.netns.sysctl("net/ipv4/ip_forward", "0")
                relay.service.look()
                await come_through("handed_up")

    run(hosts[-1], scenario)


def test_a_node_sends_no_faster_than_the_relay_allows_it(hosts: list[Host]) -> None:
    settings = replace(SETTINGS, bytes_per_s=100_000)

    async def scenario() -> None:
        async with Cluster(hosts, settings=settings) as cluster:
            (one, other, _), relay = cluster.agents, cluster.relay
            here = relay.host.address()
            port, its_port = await cluster.join()
            with one.host.open_udp() as opened, other.host.open_udp() as its:
                for _ in range(400):
                    opened.sendto(bytes(1000), at(here, port))
                await until(lambda: relay.counted("forwarded") + relay.counted("over_rate") == 400)
                # 64 KiB at once, and what has become free since; the other's are its own.
                assert relay.counted("over_rate") > 100
                its.sendto(b"mine", at(here, its_port))
                assert (await hears(opened))[0] == b"mine"

    run(hosts[-1], scenario)
