"""Paths are proven over real links, switches and routers, and lost as those are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.cluster.datagrams.peer_socket import Received
from limpet.cluster.datagrams.unproven_budget import ADDRESS_BURST
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind
from limpet.datapath.event import Event, PathsChanged, TunnelOnlyChanged
from limpet.paths import prober as probing
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.probe_state import Question
from limpet.paths.probe.codec import encode_answer, encode_probe, parse_probe
from limpet.paths.probe.messages import Probe, ProbeAnswer
from tests.beds.namespaces import Netns
from tests.paths.probing_bed import PORT, Node, PathBed, introduce
from tests.waiting import PATIENCE_S


@pytest.fixture(name="bed")
def _bed() -> Iterator[PathBed]:
    bed = PathBed()
    yield bed
    bed.close()


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    started: list[Node] = []
    try:
        for node in nodes:
            node.start()
            started.append(node)
        introduce(*nodes)
        yield
    finally:
        for node in started:
            await node.stop()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


def on_switch(bed: PathBed, switch: Netns, *numbers: int) -> list[Node]:
    nodes = [bed.node(number) for number in numbers]
    for node in nodes:
        node.plug("eth0", switch, f"192.0.2.{node.number}/24", f"2001:db8::{node.number}/64")
    return nodes


def route_to(node: Node) -> PeerPath:
    v4, v6 = ip_address(f"192.0.2.{node.number}"), ip_address(f"2001:db8::{node.number}")
    return PeerPath(transports.ROUTE, 1500, "eth0", (v4, v6), v4)


def rung(node: Node, other: Node) -> transports.Transport | None:
    path = node.path(other)
    return path.rung if path is not None else None


def test_three_nodes_on_a_switch_prove_routes_of_both_versions_to_each_other(
    bed: PathBed,
) -> None:
    nodes = on_switch(bed, bed.switch(), 1, 2, 3)

    async def scenario() -> None:
        async with running(*nodes):
            for node in nodes:
                for other in nodes:
                    if other is not node:
                        await node.has_path(other, route_to(other))

    run(scenario)


def test_two_nodes_with_a_router_between_them_prove_vxlan(bed: PathBed) -> None:
    router = bed.router()
    one, two = bed.node(1), bed.node(2)
    one.wire("eth0", router, "10.1.0.2/16", "10.1.0.1/16")
    two.wire("eth0", router, "10.2.0.2/16", "10.2.0.1/16")

    async def scenario() -> None:
        async with running(one, two):
            wanted = PeerPath(transports.VXLAN, 1500, underlay=ip_address("10.2.0.2"))
            await one.has_path(two, wanted)

    run(scenario)


def test_a_path_past_a_router_outlasts_an_address_that_goes_from_node_to_node(
    bed: PathBed,
) -> None:
    router = bed.router()
    one, two = bed.node(1), bed.node(2)
    one.wire("eth0", router, "10.1.0.2/16", "10.1.0.1/16")
    two.wire("eth0", router, "10.2.0.2/16", "10.2.0.1/16")
    one.set_addresses("eth0", "10.3.0.200/32")

    async def scenario() -> None:
        async with running(one, two):
            wanted = PeerPath(transports.VXLAN, 1500, underlay=ip_address("10.2.0.2"))
            await one.has_path(two, wanted)
            assert one.probing.paths[two.uid].prefixes == (ip_network("10.1.0.0/16"),)
            two.netns.ip("link set eth0 down")  # nothing can prove it anew
            one.netns.ip("addr del 10.3.0.200/32 dev eth0")
            one.told.clear()
            one.read_links()
            await one.has_asked(ProbeKind.SITE, 1)
            assert one.path(two) == wanted
            assert not any(isinstance(event, PathsChanged) for event in one.told)

    run(scenario)


def test_a_router_between_equal_subnets_that_answers_for_all_ends_on_vxlan(bed: PathBed) -> None:
    """Ports isolated from each other, and a gateway that answers ARP for everybody."""
    router = bed.router()
    one, two = bed.node(1), bed.node(2)
    for node in (one, two):
        node.wire("eth0", router, f"192.0.2.{node.number + 1}/24", "192.0.2.1/32")
        router.ip(f"route add 192.0.2.{node.number + 1} dev p{node.number}eth0")
        router.sysctl(f"net/ipv4/conf/p{node.number}eth0/proxy_arp", "1")

    async def scenario() -> None:
        async with running(one, two):
            wanted = PeerPath(transports.VXLAN, 1500, underlay=ip_address("192.0.2.3"))
            await one.has_path(two, wanted)

    run(scenario)


def test_a_switch_that_drops_unknown_sources_ends_on_vxlan(bed: PathBed) -> None:
    switch = bed.switch()
    one, two = on_switch(bed, switch, 1, 2)
    switch.run("nft", _GUARD)

    async def scenario() -> None:
        async with running(one, two):
            await one.until(lambda: rung(one, two) is transports.VXLAN)
            await one.has_asked(ProbeKind.OVERLAY, 6)
            assert rung(one, two) is transports.VXLAN
            # The switch's owner lets them through.
            switch.run("nft", "delete table bridge guard")
            await one.has_path(two, route_to(two))

    run(scenario)


_GUARD = """
table bridge guard {
    chain forward {
        type filter hook forward priority 0; policy accept;
        ether type ip ip saddr != 192.0.2.0/24 drop
        ether type ip6 ip6 saddr != { 2001:db8::/64, fe80::/10 } drop
    }
}
"""


def test_a_switch_that_begins_to_drop_makes_a_route_fall_to_vxlan(bed: PathBed) -> None:
    switch = bed.switch()
    one, two = on_switch(bed, switch, 1, 2)

    async def scenario() -> None:
        async with running(one, two):
            await one.has_path(two, route_to(two))
            one.probing.set_active(frozenset({two.uid}))
            switch.run("nft", _GUARD)
            await one.until(lambda: rung(one, two) is transports.VXLAN)

    run(scenario)


def test_another_machine_at_the_peers_address_proves_nothing(bed: PathBed) -> None:
    """Two sites that number alike; here somebody else has the address of the peer over there."""
    here, there = bed.switch(), bed.switch()
    (one,) = on_switch(bed, here, 1)
    (two,) = on_switch(bed, there, 2)
    impostor = bed.node(3)
    impostor.plug("eth0", here, "192.0.2.2/24", "2001:db8::2/64")

    async def scenario() -> None:
        async with running(one, two, impostor):
            await one.until(lambda: rung(one, impostor) is transports.ROUTE)
            await one.has_asked(ProbeKind.LINK, 6)
            assert impostor.courier.counters["not_for_us"] > 2
            assert one.path(two) is None
            assert two.path(one) is None

    run(scenario)


def test_a_node_that_does_not_share_a_community_is_neither_asked_nor_answered(
    bed: PathBed,
) -> None:
    one, two = on_switch(bed, bed.switch(), 1, 2)
    one.grant = replace(one.grant, communities=("a",))
    two.grant = replace(two.grant, communities=("b",))

    async def scenario() -> None:
        async with running(one, two):
            with pytest.raises(LimpetError, match="no peer of this node"):
                await one.probing.measure(two.uid)
            assert not one.probing.counters
            assert one.path(two) is None

    run(scenario)


def test_a_link_that_goes_down_makes_the_path_fall_and_it_climbs_when_it_is_back(
    bed: PathBed,
) -> None:
    switch, router = bed.switch(), bed.router()
    one, two = on_switch(bed, switch, 1, 2)
    one.wire("eth1", router, "10.2.0.2/16", "10.2.0.1/16")
    two.wire("eth1", router, "10.3.0.2/16", "10.3.0.1/16")

    async def scenario() -> None:
        async with running(one, two):
            await one.has_path(two, route_to(two))
            one.netns.ip("link set eth0 down")
            one.read_links()
            wanted = PeerPath(transports.VXLAN, 1500, underlay=ip_address("10.3.0.2"))
            await one.has_path(two, wanted)
            one.netns.ip("link set eth0 up")
            one.netns.ip("addr replace 2001:db8::1/64 dev eth0 nodad")
            one.read_links()
            await one.has_path(two, route_to(two))

    run(scenario)


def test_a_switch_that_loses_power_does_not_take_a_path_that_nobody_answers_on(
    bed: PathBed,
) -> None:
    switch = bed.switch()
    one, two = on_switch(bed, switch, 1, 2)

    async def scenario() -> None:
        async with running(one, two):
            await one.has_path(two, route_to(two))
            one.probing.set_active(frozenset({two.uid}))
            switch.ip("link set br0 down")
            await one.has_asked(ProbeKind.LINK, 8)
            assert one.path(two) == route_to(two)

    run(scenario)


def test_a_peer_with_another_address_is_found_there_at_once(bed: PathBed) -> None:
    one, two = on_switch(bed, bed.switch(), 1, 2)

    async def scenario() -> None:
        async with running(one, two):
            await one.has_path(two, route_to(two))
            two.netns.ip("addr del 192.0.2.2/24 dev eth0", "addr del 2001:db8::2/64 dev eth0")
            two.set_addresses("eth0", "192.0.2.77/24", "2001:db8::77/64")
            two.read_links()
            two.tell(one)
            hops = (ip_address("192.0.2.77"), ip_address("2001:db8::77"))
            wanted = PeerPath(transports.ROUTE, 1500, "eth0", hops, hops[0])
            await one.has_path(two, wanted)

    run(scenario)


def test_a_peer_whose_change_of_address_was_not_heard_of_is_found_by_its_own_probes(
    bed: PathBed,
) -> None:
    one, two = on_switch(bed, bed.switch(), 1, 2)

    async def scenario() -> None:
        async with running(one, two):
            await one.has_path(two, route_to(two))
            two.netns.ip("addr del 192.0.2.2/24 dev eth0", "addr del 2001:db8::2/64 dev eth0")
            two.set_addresses("eth0", "192.0.2.77/24", "2001:db8::77/64")
            two.read_links()
            moved = ip_address("192.0.2.77"), ip_address("2001:db8::77")
            await one.until(lambda: (path := one.path(two)) is not None and path.underlay in moved)

    run(scenario)


def test_what_was_proven_holds_from_the_start_of_the_next_agent(bed: PathBed) -> None:
    one, two = on_switch(bed, bed.switch(), 1, 2)

    async def scenario() -> None:
        async with running(one, two):
            await one.has_path(two, route_to(two))
        async with running(one):
            assert one.path(two) == route_to(two)
            assert "answered_link" not in one.probing.counters

    run(scenario)


def test_paths_of_a_damaged_file_are_proven_anew(bed: PathBed) -> None:
    one, two = on_switch(bed, bed.switch(), 1, 2)
    for damage in (b"", b"{", b'{"version": 9, "paths": {}}', b"\xff" * 100, b'{"version":1}'):
        (one.folder / "paths.json").write_bytes(damage)

        async def scenario() -> None:
            async with running(one, two):
                assert one.path(two) is None
                await one.has_path(two, route_to(two))

        run(scenario)


def test_measuring_tells_the_round_trip_of_each_way(bed: PathBed) -> None:
    one, two = on_switch(bed, bed.switch(), 1, 2)

    async def scenario() -> None:
        async with running(one, two):
            await one.has_path(two, route_to(two))
            measured = await one.probing.measure(two.uid)
            assert {each.candidate.kind for each in measured} == set(ProbeKind) - {ProbeKind.TUNNEL}
            assert all(each.rtt_ms is not None and each.rtt_ms > 0 for each in measured)
            assert {each.candidate.kind for each in measured if each.in_use} == {
                ProbeKind.LINK,
                ProbeKind.OVERLAY,
            }

    run(scenario)


def test_through_a_router_that_translates_addresses_nothing_is_proven(bed: PathBed) -> None:
    """As at home: nothing comes in that was not asked for, and so VXLAN neither."""
    router = bed.router()
    one, two = bed.node(1), bed.node(2)
    one.wire("eth0", router, "10.1.0.2/16", "10.1.0.1/16")
    two.wire("eth0", router, "10.2.0.2/16", "10.2.0.1/16")
    router.run("nft", _MASQUERADE)

    async def scenario() -> None:
        async with running(one, two):
            await one.until_counted("unproven", 3)
            await two.until_counted("answered_site", 3)
            assert one.path(two) is None

    run(scenario)


_MASQUERADE = """
table ip nat {
    chain out {
        type nat hook postrouting priority srcnat; policy accept;
        oifname "p2eth0" masquerade
    }
    chain in {
        type filter hook forward priority 0; policy accept;
        iifname "p2eth0" ct state new drop
    }
}
"""


def test_a_link_probe_that_could_have_come_through_routers_is_not_answered(bed: PathBed) -> None:
    one, two = on_switch(bed, bed.switch(), 1, 2)

    async def scenario() -> None:
        async with running(one, two):
            two.courier.send(
                BodyKind.PROBE,
                encode_probe(Probe(bytes(8), ProbeKind.LINK, 1)),
                to_uid=one.uid,
                address=ip_address("192.0.2.1"),
                port=PORT,
            )
            await one.until_counted("refused_link", 1)

    run(scenario)


def test_a_probe_that_came_through_a_tunnel_to_a_gateway_is_none_in_clear(bed: PathBed) -> None:
    """By a route to what is behind the gateway, which has it come from a pods' address."""
    switch, one, two = bed.switch(), bed.node(1), bed.node(2)
    for node in (one, two):
        node.plug("eth0", switch, f"192.0.2.{node.number}/24")

    async def scenario() -> None:
        two.netns.ip("route add 192.0.2.1 dev eth0 src 10.244.2.1")
        one.start()
        two.start()
        sealed = one.probing._tunnel_only.uids = frozenset({two.uid})
        try:
            introduce(one, two)
            two.courier.send(
                BodyKind.PROBE,
                encode_probe(Probe(bytes(8), ProbeKind.SITE, 1)),
                to_uid=one.uid,
                address=ip_address("192.0.2.1"),
                port=PORT,
            )
            await one.until_counted("refused_site", 1)
            assert one.probing._tunnel_only.uids == sealed
        finally:
            await one.stop()
            await two.stop()

    run(scenario)


def test_only_the_peer_that_was_asked_proves_anything_and_only_by_the_link(bed: PathBed) -> None:
    one, two, three = on_switch(bed, bed.switch(), 1, 2, 3)

    def answers_wrongly(received: Received) -> None:
        """Two answers as if through routers, three instead of two."""
        probe = parse_probe(received.body)
        if received.uid != one.uid or probe.kind is not ProbeKind.LINK:
            return
        body = encode_answer(
            ProbeAnswer(probe.nonce, 1, received.address, received.port, received.to_address)
        )
        for node, hop_limit in ((two, 64), (three, 1)):
            node.courier.send(
                BodyKind.ANSWER,
                body,
                to_uid=one.uid,
                address=received.address,
                port=PORT,
                hop_limit=hop_limit,
            )

    async def scenario() -> None:
        for node in (one, two, three):
            node.start()
        two.courier.on(BodyKind.PROBE, answers_wrongly)
        try:
            introduce(one, two, three)
            await one.until_counted("unproven", 6)
            assert one.path(two) is None
        finally:
            for node in (one, two, three):
                await node.stop()

    run(scenario)


def test_a_peer_is_asked_again_after_errors_that_nobody_has_foreseen(
    bed: PathBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, silent = on_switch(bed, bed.switch(), 1, 2)
    sound, calls, asked = Ladder.take_due, iter(range(100)), asyncio.Event()
    monkeypatch.setattr(probing, "AGAIN_S", 0.05)

    def failing_thrice(ladder: Ladder, now_s: float, **how: Any) -> list[Question]:
        if next(calls) < 3:
            raise RuntimeError("nobody has foreseen this")
        asked.set()
        return sound(ladder, now_s, **how)

    async def scenario() -> None:
        before = faults.counts["probing a peer"]
        async with running(one):
            silent.start()
            silent.tell(one)
            await silent.stop()  # nothing that it says sets anything going
            async with asyncio.timeout(PATIENCE_S):
                await asked.wait()
        assert faults.counts["probing a peer"] == before + 3

    monkeypatch.setattr(Ladder, "take_due", failing_thrice)
    run(scenario)


def test_a_member_that_names_a_strangers_ports_has_nobody_flood_the_stranger(
    bed: PathBed,
) -> None:
    one, liar = on_switch(bed, bed.switch(), 1, 2)
    one.netns.ip("route add default via 192.0.2.9")
    stranger = ip_address("198.51.100.7")

    async def scenario() -> None:
        for node in (one, liar):
            node.start(tunnel_port=51820)
        try:
            async with asyncio.timeout(PATIENCE_S):
                told = 0
                while not one.probing.counters["held_back"]:
                    liar.endpoints = tuple((stranger, 1000 + told + n) for n in range(6))
                    liar.read_links()
                    liar.tell(one)
                    told += 6
                    await asyncio.sleep(0.02)
            assert one.probing.counters["asked_tunnel"] >= ADDRESS_BURST
        finally:
            for node in (one, liar):
                await node.stop()

    run(scenario)


def test_a_peer_that_is_shut_out_in_clear_is_let_in_when_it_asks_and_answered_then(
    bed: PathBed,
) -> None:
    one, two = on_switch(bed, bed.switch(), 1, 2)
    opened = asyncio.Event()

    async def scenario() -> None:
        shut = {one.uid}

        def open_to(event: Event) -> None:
            if not isinstance(event, TunnelOnlyChanged):
                return
            assert event.uids == frozenset()
            assert one.path(two) is None  # it was not answered before
            # As the kernel does: soon, not at once.
            asyncio.get_running_loop().call_later(0.05, shut.clear)
            opened.set()

        async with running(two):
            two.probing._tunnel_only.uids = frozenset(shut)
            two.shut_out = shut
            two.hearers.append(open_to)
            one.start()
            try:
                introduce(one, two)
                await one.has_path(two, route_to(two))
            finally:
                await one.stop()
        assert opened.is_set()
        assert two.probing.counters["refused_link"]

    run(scenario)
