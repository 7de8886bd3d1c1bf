"""A node's side of relays, behind real NATs and against real relays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from ipaddress import ip_address

import pytest

from limpet.base import faults
from limpet.base import timer as alarm
from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.nat import endpoints
from limpet.nat.mapping import NatKind
from limpet.relay.client.choice import Effect, RelayChoice
from limpet.relay.messages import Pair, Refusal, encode
from tests.relay.relays_bed import TUNNEL_PORT, NamespacesLoop, Node, RelaysBed, Router
from tests.waiting import PATIENCE_S, until


@pytest.fixture(name="bed")
def _bed() -> Iterator[RelaysBed]:
    bed = RelaysBed()
    yield bed
    bed.close()


def run(bed: RelaysBed, scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await scenario()
        finally:
            await bed.stop()

    with asyncio.Runner(loop_factory=NamespacesLoop) as runner:
        runner.run(main())


async def meet(a: Node, b: Node, *relays: Node) -> None:
    """Both need each other, and have ends at all of the relays."""
    a.need(b)
    b.need(a)
    wanted = {relay.uid for relay in relays}
    await until(lambda: a.relay_uids(b) == wanted == b.relay_uids(a))


def test_a_node_behind_a_cone_learns_its_endpoint_and_tells_it(bed: RelaysBed) -> None:
    relays = [bed.relay(11), bed.relay(12)]
    router = Router(bed, 101)
    node = bed.behind(router, 2)
    seen = ((ip_address(router.address), TUNNEL_PORT),)

    async def scenario() -> None:
        await bed.begin(*relays, node)
        await until(lambda: node.relays.kind(4) is NatKind.SAME)
        await until(lambda: bool(node.endpoints))
        assert node.endpoints == [seen]
        assert node.relays.report().nat["ipv4"] == "same"

    run(bed, scenario)


def test_behind_a_symmetric_nat_nothing_is_worth_telling(bed: RelaysBed) -> None:
    relays = [bed.relay(11), bed.relay(12)]
    node = bed.behind(Router(bed, 101, "fully-random"), 2)

    async def scenario() -> None:
        await bed.begin(*relays, node)
        await until(lambda: node.relays.kind(4) is NatKind.SYMMETRIC)
        assert node.relays.report().mapped == []

    run(bed, scenario)


def test_what_was_told_before_a_second_relay_showed_a_symmetric_nat_is_taken_back(
    bed: RelaysBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one relay alone is heard, what it sees may be how everybody reaches the node."""
    first, second = bed.relay(11), bed.relay(12)
    router = Router(bed, 101, "fully-random")
    node = bed.behind(router, 2)
    monkeypatch.setattr(endpoints, "DOUBTED_S", 0.5)

    async def scenario() -> None:
        await bed.begin(first, node)
        await until(lambda: bool(node.endpoints))
        [(told,)] = node.endpoints
        assert str(told[0]) == router.address

        await bed.begin(second)
        second.do(partial(second.hear, [node.told]))
        node.do(partial(node.hear, [second.told]))
        await until(lambda: node.relays.kind(4) is NatKind.SYMMETRIC)
        await until(lambda: node.endpoints[-1] == ())

    run(bed, scenario)


def test_a_node_with_a_public_address_has_no_nat(bed: RelaysBed) -> None:
    relays = [bed.relay(11), bed.relay(12)]
    node = bed.public(21)

    async def scenario() -> None:
        await bed.begin(*relays, node)
        await until(lambda: node.relays.kind(4) is NatKind.NONE)
        await until(lambda: relays[0].relays.kind(4) is NatKind.NONE)
        assert node.endpoints == []

    run(bed, scenario)


def test_where_no_answer_comes_the_node_says_so(bed: RelaysBed) -> None:
    relay, node = bed.relay(11), bed.public(21)
    node.block_udp()

    async def scenario() -> None:
        await bed.begin(relay, node)
        await until(lambda: node.relays.kind(4) is NatKind.BLOCKED)
        assert not node.relays.report().relays[0].answers

    run(bed, scenario)


def test_a_pair_of_nodes_behind_symmetric_nats_is_joined(bed: RelaysBed) -> None:
    relays = [bed.relay(11), bed.relay(12)]
    a = bed.behind(Router(bed, 101, "fully-random"), 2)
    b = bed.behind(Router(bed, 102, "fully-random"), 3)

    async def scenario() -> None:
        await bed.begin(*relays, a, b)
        await meet(a, b, *relays)
        for relay in relays:
            await a.says(b, relay, b"from a")
            await b.says(a, relay, b"from b")
        assert {pair.over for pair in a.relays.report().pairs} == {"udp"}

        a.need(b, wanted=False)
        b.need(a, wanted=False)
        await until(lambda: not any(relay.pairs for relay in relays))

    run(bed, scenario)


def test_the_other_end_binds_as_soon_as_one_has_asked(bed: RelaysBed) -> None:
    relay = bed.relay(11)
    a = bed.behind(Router(bed, 101), 2)
    b = bed.behind(Router(bed, 102), 3)

    async def scenario() -> None:
        await bed.begin(relay, a, b)
        await until(lambda: b.relays.report().relays[0].answers)
        a.need(b)
        await until(lambda: b.relay_uids(a) == {relay.uid} == a.relay_uids(b))
        await b.says(a, relay, b"from b")

    run(bed, scenario)


def test_a_relay_that_dies_is_replaced(bed: RelaysBed) -> None:
    relays = {relay.uid: relay for relay in (bed.relay(11), bed.relay(12), bed.relay(13))}
    a = bed.behind(Router(bed, 101), 2)
    b = bed.behind(Router(bed, 102), 3)

    async def scenario() -> None:
        await bed.begin(*relays.values(), a, b)
        a.need(b)
        b.need(a)
        await until(lambda: len(a.relay_uids(b) & b.relay_uids(a)) >= 2)
        lost = next(iter(a.relay_uids(b) & b.relay_uids(a)))

        relays[lost].netns.ip("link set eth0 down")
        # As the ladder does when the peer falls silent.
        a.need(b)
        b.need(a)
        rest = relays.keys() - {lost}
        await until(lambda: a.relay_uids(b) == rest == b.relay_uids(a))
        for uid in rest:
            await a.says(b, relays[uid], uid.encode())

    run(bed, scenario)


def test_where_udp_is_blocked_a_pair_is_joined_over_tls_and_over_udp_again_later(
    bed: RelaysBed,
) -> None:
    relay = bed.relay(11)
    a = bed.behind(Router(bed, 101), 2)
    b = bed.behind(Router(bed, 102), 3)
    a.block_udp()

    async def scenario() -> None:
        await bed.begin(relay, a, b)
        a.need(b)
        b.need(a)
        await until(lambda: a.relay_uids(b, tls=True) == {relay.uid} == b.relay_uids(a))
        await a.says(b, relay, b"from a")
        await b.says(a, relay, b"from b")
        await until(lambda: a.relays.kind(4) is NatKind.BLOCKED)

        a.let_udp_out()
        a.need(b)
        await until(lambda: a.relay_uids(b) == {relay.uid})

        # The connection is still there, but what is for the node was turned to UDP meanwhile.
        a.block_udp()
        a.need(b)
        async with asyncio.timeout(PATIENCE_S):
            while not await hears(b, a, relay):
                pass

    run(bed, scenario)


async def hears(sender: Node, hearer: Node, relay: Node) -> bool:
    try:
        async with asyncio.timeout(0.5):
            await sender.says(hearer, relay, b"again")
    except TimeoutError:
        return False
    return True


def test_a_router_that_forgets_its_mappings_is_followed(bed: RelaysBed) -> None:
    relays = [bed.relay(11), bed.relay(12)]
    router = Router(bed, 101, "to :40000")
    a = bed.behind(router, 2)
    b = bed.behind(Router(bed, 102), 3)

    async def scenario() -> None:
        await bed.begin(*relays, a, b)
        await meet(a, b, *relays)
        await until(lambda: a.endpoints == [((ip_address(router.address), 40000),)])

        router.reboot("to :50000")
        a.need(b)
        moved = (ip_address(router.address), 50000)
        await until(lambda: f"{moved[0]}:{moved[1]}" in a.relays.report().mapped)
        await until(lambda: a.endpoints[-1][0] == moved)
        await until(lambda: a.relay_uids(b) == {relay.uid for relay in relays})
        for relay in relays:
            await a.says(b, relay, b"from a")
            await b.says(a, relay, b"from b")

    run(bed, scenario)


def test_a_node_that_is_no_relay_can_make_nobody_bind(bed: RelaysBed) -> None:
    relay, a, stranger = bed.relay(11), bed.public(21), bed.public(22)

    async def scenario() -> None:
        await bed.begin(relay, a, stranger)
        await until(lambda: a.relays.report().relays[0].answers)
        stranger.courier.send(
            BodyKind.RELAY_PAIR,
            encode(Pair(bytes(8), relay.uid, 21000, Refusal.NONE, 120, 1)),
            to_uid=a.uid,
            address=ip_address(a.address),
            port=TUNNEL_PORT,
            by_tunnel=True,
        )
        await until(lambda: a.relays.counters["unasked"] == 1)
        assert a.relays.report().pairs == []

    run(bed, scenario)


def test_relays_are_greeted_after_errors_that_nobody_has_foreseen(
    bed: RelaysBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, node = bed.relay(11), bed.public(21)
    sound, calls = RelayChoice.tick, iter(range(10_000))
    monkeypatch.setattr(alarm, "AGAIN_S", 0.05)

    def failing_for_a_while(choice: RelayChoice, now_s: float) -> list[Effect]:
        effects = sound(choice, now_s)  # what was due is taken, and lost
        if next(calls) < 4:
            raise RuntimeError("nobody has foreseen this")
        return effects

    async def scenario() -> None:
        before = faults.counts["relays"]
        await bed.begin(relay, node)
        await until(lambda: node.relays.kind(4) is NatKind.NONE)
        assert faults.counts["relays"] == before + 4

    monkeypatch.setattr(RelayChoice, "tick", failing_for_a_while)
    run(bed, scenario)
