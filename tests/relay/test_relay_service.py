"""A relay as nodes meet it: real datagrams, real nftables, and whoever has no business there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from limpet.cli.doctor.cluster.relays import own_relay_findings
from limpet.cli.doctor.findings import Level
from limpet.cluster.datagrams.peer_datagram import BodyKind, Codec, DropReason
from limpet.cluster.kinds.grant import Role
from limpet.cluster.kinds.network import DefaultCommunity
from limpet.relay.messages import (
    AskPair,
    Bound,
    Check,
    FreePair,
    Hello,
    Pair,
    Refusal,
    Seen,
    Token,
    encode,
)
from limpet.relay.status import Relaying
from tests.relay.relay_agents import SETTINGS, Cluster, Relay, at, hears, nonce, run
from tests.relay.relay_bed import TUNNEL_PORT, Host, RelayBed
from tests.unit.cluster_values import PINNED, network, node_key
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


@pytest.mark.parametrize("version", [4, 6])
def test_a_hello_is_answered_with_where_it_came_from(hosts: list[Host], version: int) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, *_), relay = cluster.agents, cluster.relay
            hello = Hello(nonce())
            one.say(relay, hello, version=version)
            received, seen = await one.receives(Seen)
            assert seen == Seen(hello.nonce, (one.host.address(version), TUNNEL_PORT), 4)
            assert received.port == TUNNEL_PORT
            assert received.by_tunnel

    run(hosts[-1], scenario)


def test_the_other_end_is_told_unasked_and_once_more_when_it_says_hello(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other, third), relay = cluster.agents, cluster.relay
            other.say(relay, Hello(nonce()))
            await other.hears(Seen)
            mine = await one.ask(relay, other)
            told = await other.hears(Pair)
            assert (told.nonce, told.peer) == (bytes(8), one.uid)
            assert {mine.port, told.port} == {21000, 21001}

            with_third = await one.ask(relay, third)
            third.say(relay, Hello(nonce()))
            told = await third.hears(Pair)
            assert (told.nonce, told.peer) == (bytes(8), one.uid)
            assert with_third.port != told.port != mine.port

    run(hosts[-1], scenario)


def test_who_asks_over_and_over_does_not_have_the_relay_flood_the_other_end(
    hosts: list[Host],
) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other, _), relay = cluster.agents, cluster.relay
            other.say(relay, Hello(nonce()))
            await other.hears(Seen)
            for _ in range(200):
                await one.ask(relay, other)
            other.say(relay, Hello(last := nonce()))
            await other.hears(Seen, lambda told: told.nonce == last)
            told = [message for _, message in other.got if isinstance(message, Pair)]
            assert 1 <= len(told) < 100

    run(hosts[-1], scenario)


def test_checks_of_others_and_recorded_ones_move_nothing(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other, third), relay = cluster.agents, cluster.relay
            here = relay.host.address()
            port, _ = await cluster.join()
            before = relay.table()

            # Another member, for a port that is none of its own.
            third.say(relay, Check(nonce(), port), port=port)
            # The node's own check, with its token, on the way from where the node is not.
            first = nonce()
            one.say(relay, Check(first, port), port=port)
            token = (await one.hears(Token, lambda told: told.nonce == first)).token
            codec = Codec(node_key(one.host.number), PINNED)
            check = codec.encode(
                BodyKind.RELAY_CHECK,
                encode(Check(nonce(), port, token)),
                to_uid=relay.uid,
                to_relay=True,
            )
            with third.host.open_udp(port=TUNNEL_PORT + 1) as thief:
                thief.sendto(check, at(here, port))
                # It gets a token for where it is, which is of no use without the node's signature.
                answer, where = await hears(thief)
                assert where == at(here, port)
                assert answer[4] == BodyKind.RELAY_TOKEN
            assert relay.service.counters["check_no_pair"] == 1
            assert relay.service.counters["check_bad_token"] == 1
            assert relay.table() == before

            # The relay has dropped the very datagram; the node's own next one is good.
            assert await one.bind(relay, port) == (one.host.address(), TUNNEL_PORT)
            assert relay.table() == before
            assert other.got

    run(hosts[-1], scenario)


def test_what_is_forged_or_makes_no_sense_is_counted_and_dropped(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, *_), relay = cluster.agents, cluster.relay
            here, counters = relay.host.address(), relay.courier.counters
            codec = Codec(node_key(one.host.number), PINNED)
            hello = codec.encode(BodyKind.RELAY_HELLO, encode(Hello(nonce())), to_uid=relay.uid)
            ask = encode(AskPair(nonce(), one.uid))
            stranger = Codec(node_key(99), PINNED)
            forged = hello[:62] + bytes([hello[62] ^ 1]) + hello[63:]
            bad = [
                (forged, TUNNEL_PORT, DropReason.BAD_SIGNATURE),
                (hello[:100], TUNNEL_PORT, DropReason.MALFORMED),
                (
                    codec.encode(BodyKind.RELAY_ASK, ask[:-1], to_uid=relay.uid),
                    TUNNEL_PORT,
                    DropReason.MALFORMED,
                ),
                (
                    codec.encode(BodyKind.RELAY_ASK, ask + b"\0", to_uid=relay.uid),
                    TUNNEL_PORT,
                    DropReason.MALFORMED,
                ),
                (
                    codec.encode(BodyKind.RELAY_ASK, ask, to_uid=relay.uid, to_relay=True),
                    21000,
                    DropReason.MALFORMED,
                ),
                (
                    stranger.encode(BodyKind.RELAY_HELLO, encode(Hello(nonce())), to_uid=relay.uid),
                    TUNNEL_PORT,
                    DropReason.UNHANDLED,
                ),
            ]
            wanted = dict.fromkeys(DropReason, 0)
            with one.host.open_udp(port=TUNNEL_PORT + 1) as opened:
                for data, port, drop in bad:
                    opened.sendto(data, at(here, port))
                    wanted[drop] += 1
                opened.sendto(hello, at(here, TUNNEL_PORT))
                await hears(opened)
                opened.sendto(hello, at(here, TUNNEL_PORT))
                wanted[DropReason.REPLAYED] += 1
                one.say(relay, Hello(nonce()))
                await one.hears(Seen)
            assert {drop: counters[drop] for drop in DropReason} == wanted
            assert len(relay.service.report().pairs) == 0

    run(hosts[-1], scenario)


def test_a_relay_refuses_what_it_must_and_says_why(hosts: list[Host]) -> None:
    told = network(default_community=DefaultCommunity.NONE)
    settings = replace(SETTINGS, pairs_per_node=1)

    async def scenario() -> None:
        async with Cluster(hosts, settings=settings, told=told) as cluster:
            (one, other, third), relay = cluster.agents, cluster.relay
            assert (await one.ask(relay, other)).refusal is Refusal.MAY_NOT_TALK
            for agent in cluster.agents:
                relay.learn(agent.host.number, generation=2, communities=("line",))
            assert (await one.ask(relay, other)).refusal is Refusal.NONE
            assert (await one.ask(relay, third)).refusal is Refusal.QUOTA
            assert (await one.ask(relay, relay)).refusal is Refusal.MAY_NOT_TALK
            assert (await one.ask(relay, one)).refusal is Refusal.MAY_NOT_TALK
            assert relay.service.counters["refused_quota"] == 1
            assert relay.service.counters["refused_may_not_talk"] == 3

    run(hosts[-1], scenario)


def test_a_pair_goes_with_the_community_the_member_and_the_last_that_needs_it(
    hosts: list[Host],
) -> None:
    told = network(default_community=DefaultCommunity.NONE)

    async def scenario() -> None:
        async with Cluster(hosts, told=told) as cluster:
            (one, other, _), relay = cluster.agents, cluster.relay

            def let_talk(generation: int, *communities: str) -> None:
                for agent in (one, other):
                    relay.learn(agent.host.number, generation=generation, communities=communities)

            let_talk(2, "line")
            await cluster.join()
            assert str(one.host.address()) in relay.table()
            relay.learn(one.host.number, generation=3)
            assert str(one.host.address()) not in relay.table()
            assert relay.service.report().pairs == []

            let_talk(4, "line")
            await cluster.join()
            for agent, peer in ((one, other), (other, one)):
                assert str(one.host.address()) in relay.table()
                agent.say(relay, FreePair(nonce(), peer.uid))
                agent.say(relay, Hello(nonce()))
                await agent.hears(Seen)
            assert str(one.host.address()) not in relay.table()

            await cluster.join()
            relay.learn(other.host.number, generation=9, tombstone=True)
            assert str(one.host.address()) not in relay.table()
            assert (await one.ask(relay, other)).refusal is Refusal.MAY_NOT_TALK
            assert relay.service.counters["not_allowed"] == 2
            assert relay.service.counters["freed"] == 1

    run(hosts[-1], scenario)


def test_the_table_goes_with_the_role_and_comes_back_with_it(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other, _), relay = cluster.agents, cluster.relay
            await cluster.join()
            relay.was_active.clear()
            relay.learn(relay.host.number, generation=2)
            assert relay.table() == ""
            assert relay.service.report() == Relaying(active=False, trouble="")
            assert not relay.service.has_role
            assert (await one.ask(relay, other)).refusal is Refusal.NO_RELAY

            roles = frozenset({Role.EDGE, Role.RELAY})
            relay.learn(relay.host.number, generation=3, roles=roles)
            await cluster.join()
            assert str(one.host.address()) in relay.table()
            assert relay.was_active == [False, True]

    run(hosts[-1], scenario)


def test_what_is_left_of_a_role_is_removed_by_an_agent_without_it(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            relay = cluster.relay
            await cluster.join()
            await relay.service.stop()
            assert relay.table()
            relay.learn(relay.host.number, generation=2)
            relay.service.start()
            assert relay.table() == ""

    run(hosts[-1], scenario)


def test_a_relay_that_cannot_be_one_says_what_to_do(hosts: list[Host]) -> None:
    async def scenario() -> None:
        clash = replace(SETTINGS, ports=(TUNNEL_PORT - 5, TUNNEL_PORT + 5))
        async with Cluster(hosts, settings=clash) as cluster:
            (found,) = own_relay_findings(cluster.relay.service.report(), TUNNEL_PORT, far=True)
            assert found.level is Level.ERROR
            assert "hold the port of the tunnel, 51820: set others" in found.what
            assert not cluster.relay.service.active
        async with Cluster(hosts) as cluster:
            relay = cluster.relay
            assert relay.service.trouble == ""
            relay.announce(addresses=())
            await until(lambda: "this node has no public address" in relay.service.trouble)
            assert "this node has no public address" in said_of(relay, later_s=0)
            relay.announce(addresses=(), endpoints=((relay.host.address(), TUNNEL_PORT),))
            await until(lambda: relay.service.trouble == "")

    run(hosts[-1], scenario)


def said_of(relay: Relay, *, later_s: float) -> str:
    """What doctor makes of the relay's words, had so much time passed without a packet since."""
    report = relay.service.report()
    heard = {
        kind: None if age_s is None else age_s + later_s for kind, age_s in report.heard_s.items()
    }
    told = replace(report, heard_s=heard, for_s=report.for_s + later_s)
    (found,) = own_relay_findings(told, TUNNEL_PORT, far=True)
    assert found.level is Level.OK or (found.why and found.advice)
    return found.what


def test_doctor_tells_of_a_relay_which_of_its_ports_nothing_comes_to(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, other, _), relay = cluster.agents, cluster.relay
            assert "no node has greeted this relay for 10 minutes" in said_of(relay, later_s=600)
            one.say(relay, Hello(nonce()))
            await one.hears(Seen)
            assert "a relay on UDP ports" in said_of(relay, later_s=200)

            hook = "{ type filter hook prerouting priority -400; }"
            relay.host.netns.run(
                *("nft", f"add table inet front; add chain inet front base {hook}; "),
                "add rule inet front base udp dport 21000-22999 drop",
            )
            mine = await one.ask(relay, other)
            one.say(relay, Check(nonce(), mine.port), port=mine.port)
            one.say(relay, Hello(last := nonce()))
            await one.hears(Seen, lambda seen: seen.nonce == last)
            assert "nodes ask this relay for ports, and nothing comes" in said_of(relay, later_s=9)

            relay.host.netns.run("nft", "delete table inet front")
            await one.bind(relay, mine.port)
            assert "a relay on UDP ports" in said_of(relay, later_s=9)

    run(hosts[-1], scenario)


def test_tokens_and_bounds_leave_from_the_port_that_was_checked(hosts: list[Host]) -> None:
    async def scenario() -> None:
        async with Cluster(hosts) as cluster:
            (one, *_), relay = cluster.agents, cluster.relay
            for version in (4, 6):
                port = (await one.ask(relay, cluster.agents[1], version=version)).port
                await one.bind(relay, port, version=version)
                here = relay.host.address(version)
                found = [received for received, message in one.got if isinstance(message, Token)]
                found += [received for received, message in one.got if isinstance(message, Bound)]
                assert {(each.address, each.port) for each in found} == {(here, port)}
                one.got.clear()

    run(hosts[-1], scenario)
