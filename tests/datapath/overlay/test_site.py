"""The network between nodes keeps itself as planned, whatever happens to the kernel's state."""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from structlog.testing import capture_logs

from limpet.base.ownership import NFT_OVERLAY_TABLE, ROUTE_TABLE
from limpet.base.settings import PeerSettings, TunnelSettings
from limpet.cluster.documents import Source
from limpet.cluster.identity import Identity
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import PeerPath
from limpet.datapath.change import Put
from limpet.datapath.event import Event, NetworksChanged, SegmentsChanged
from limpet.datapath.loop import Loop
from limpet.datapath.overlay.filter.apply import PeerFilter
from limpet.datapath.overlay.filter.ruleset import FORGED_COUNTER
from limpet.datapath.overlay.state import OverlayState, PeerRoute
from limpet.datapath.own_node import TunnelNames
from limpet.datapath.together.peer_parts import PeerParts
from limpet.datapath.tunnel.setup import TunnelSetup
from limpet.linux.netlink.socket import RouteSocket
from tests.beds.member import membership_of
from tests.beds.namespaces import Netns, NetnsFactory
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    presence,
    seal_grant,
    seal_network,
    seal_presence,
)
from tests.waiting import until

OWN, PEER = 1, 2


class SiteBed:
    """A node that has joined, with a bridge, an uplink and one peer on the uplink's link."""

    def __init__(self, netns: Netns, folder: Path) -> None:
        self.netns = netns
        self.undo = ExitStack()
        netns.sysctl("net/ipv6/conf/default/accept_dad", "0")
        netns.ip(
            "link add limpet0 type bridge",
            "link set limpet0 up",
            "addr add 10.244.1.1/24 dev limpet0",
            "addr add fd00:0:0:1::1/64 dev limpet0 nodad",
            f"route add unreachable 10.244.0.0/16 table {ROUTE_TABLE} metric 65000",
            f"route add unreachable fd00::/48 table {ROUTE_TABLE} metric 65000",
            "link add eth0 type veth peer name far",
            "link set far up",
            "link set eth0 up",
            "addr add 192.0.2.1/24 dev eth0",
            "addr add 2001:db8::1/64 dev eth0 nodad",
        )
        identity = Identity(folder, node_key(OWN), "node-1", PINNED, ("c:7470",))
        self.membership = membership_of(identity, seal_network(network(), CLUSTER_KEY))
        self.undo.callback(self.membership.close)
        self.grant(OWN)
        self.grant(PEER, addresses=(ip_address("192.0.2.2"), ip_address("2001:db8::2")))
        with netns.entered():
            self.route = RouteSocket()
            self.undo.callback(self.route.close)
            self.told: list[Event] = []
            self.loop = Loop(self.told.append)
            self.peer_parts = PeerParts(
                self.loop,
                self.membership,
                PeerSettings(),
                TunnelSetup(TunnelSettings(), folder, "limpet0"),
                route=self.route,
                vtep_path=folder / "vtep.json",
                peer_filter=PeerFilter(lambda: ["limpet0"], PeerSettings().port),
                before_sysctl=lambda path: None,
            )
            self.membership.subscribe(self.peer_parts.hear)

    def grant(self, number: int, **said: Any) -> None:
        """The node's grant, with its presence if it `said` anything of itself."""
        segments = (
            ip_network(f"10.244.{number}.0/24"),
            ip_network(f"fd00:0:0:{number}::/64"),
        )
        told = [seal_grant(grant(number, segments=segments), CLUSTER_KEY)]
        if said:
            macs = {4: f"02:4c:00:00:04:{number:02x}", 6: f"02:4c:00:00:06:{number:02x}"}
            spoken = presence(number, vtep_macs=macs, **said)
            told.append(seal_presence(spoken, node_key(number)))
        self.membership.offer(told, source=Source.CLOUD)

    def reach(self, rung: transports.Transport) -> None:
        """A path to the peer is proven."""
        hops = (ip_address("192.0.2.2"), ip_address("2001:db8::2"))
        path = (
            PeerPath(rung, device="eth0", next_hops=hops, underlay=hops[0])
            if rung is transports.ROUTE
            else PeerPath(rung, underlay=hops[0])
        )
        self.peer_parts.peers.set_paths({grant(PEER).uid: path})

    def forged(self) -> int:
        """Packets that were dropped because their source is not the sender's."""
        command = ("nft", "list", "counter", "inet", NFT_OVERLAY_TABLE, FORGED_COUNTER)
        found = re.search(r"packets (\d+)", self.netns.run(*command))
        assert found is not None
        return int(found[1])

    def filtered_links(self) -> str:
        listed = self.netns.run("nft", "list", "table", "inet", NFT_OVERLAY_TABLE)
        found = re.search(r"hook ingress (.*)", listed)
        return found[1] if found else ""

    def routes(self) -> str:
        """To pods of the peer."""
        table = f"table {ROUTE_TABLE}"
        return self.netns.run("sh", "-c", f"ip route show {table}; ip -6 route show {table}")

    def device_to(self, version: int) -> str:
        """Device of the route to the peer's segment; empty: there is none."""
        prefix = {4: "10.244.2.0/24", 6: "fd00:0:0:2::/64"}[version]
        found = re.search(rf"^{prefix} .*?\bdev (\S+)", self.routes(), re.MULTILINE)
        return found[1] if found is not None else ""

    def has_routes(self, device: str) -> bool:
        return all(self.device_to(version) == device for version in (4, 6))


def on_a_loop(
    test: Callable[..., Awaitable[None]],
) -> Callable[..., None]:
    """Runs the test in the node's namespace, on a loop, with the site started."""

    @functools.wraps(test)
    def run(node: SiteBed, **fixtures: object) -> None:
        async def whole() -> None:
            async with started(node):
                await test(node, **fixtures)

        with node.netns.entered():
            asyncio.run(whole())

    return run


@asynccontextmanager
async def started(
    node: SiteBed, paths: Mapping[str, PeerPath] = MappingProxyType({})
) -> AsyncIterator[None]:
    """`paths`: those that were proven last."""
    node.loop.start()
    node.peer_parts.start(paths)
    try:
        yield
    finally:
        node.loop.close()
        node.peer_parts.close()


@pytest.fixture
def node(tmp_path: Path, make_netns: NetnsFactory) -> Iterator[SiteBed]:
    made = SiteBed(make_netns("lst"), tmp_path)
    yield made
    made.undo.close()


@on_a_loop
async def test_routes_that_go_silently_with_an_address_come_back(node: SiteBed) -> None:
    node.reach(transports.ROUTE)
    await until(lambda: node.has_routes("eth0"))

    # As a DHCP client does. The kernel tells of the addresses, not of the routes.
    node.netns.ip("addr del 192.0.2.1/24 dev eth0", "addr add 192.0.2.1/24 dev eth0")
    assert not node.has_routes("eth0")

    await until(lambda: node.has_routes("eth0"))


@pytest.mark.parametrize(
    ("lan", "devices"),
    [
        (("192.0.2.0/24", "2001:db8::/64"), ("eth0", "eth0")),
        (("198.51.100.0/24", "2001:db8:1::/64"), ("", "")),
        (("192.0.2.0/24", "2001:db8:1::/64"), ("eth0", "limvx4")),
    ],
)
def test_a_node_starts_with_routes_in_clear_only_where_they_were_proven(
    node: SiteBed, lan: tuple[str, ...], devices: tuple[str, ...]
) -> None:
    hops = (ip_address("192.0.2.2"), ip_address("2001:db8::2"))
    kept = PeerPath(
        transports.ROUTE, 1500, "eth0", hops, hops[0], prefixes=tuple(map(ip_network, lan))
    )

    async def first_round() -> None:
        async with started(node, {grant(PEER).uid: kept}):
            assert (node.device_to(4), node.device_to(6)) == devices

    with node.netns.entered():
        asyncio.run(first_round())


@on_a_loop
async def test_routes_come_back_when_the_address_is_another_one(node: SiteBed) -> None:
    node.reach(transports.ROUTE)
    await until(lambda: node.has_routes("eth0"))

    node.netns.ip("addr del 192.0.2.1/24 dev eth0", "addr add 192.0.2.9/24 dev eth0")
    assert not node.has_routes("eth0")

    await until(lambda: node.has_routes("eth0"))


@on_a_loop
async def test_routes_over_a_link_that_has_just_come_come_back_as_well(node: SiteBed) -> None:
    node.netns.ip("link del eth0")
    await until(lambda: not node.peer_parts.own.links)
    node.netns.ip(
        "link add eth0 type veth peer name far",
        "link set far up",
        "link set eth0 up",
        "addr add 192.0.2.1/24 dev eth0",
        "addr add 2001:db8::1/64 dev eth0 nodad",
    )
    await until(
        lambda: bool(node.peer_parts.own.links) and len(node.peer_parts.own.links[0].addresses) == 2
    )
    node.reach(transports.ROUTE)
    await until(lambda: node.has_routes("eth0"))

    node.netns.ip("addr del 192.0.2.1/24 dev eth0", "addr add 192.0.2.3/24 dev eth0")
    assert not node.has_routes("eth0")

    await until(lambda: node.has_routes("eth0"))


@on_a_loop
async def test_what_is_behind_a_peer_leaves_the_networks_of_the_machines_other_links_alone(
    node: SiteBed,
) -> None:
    behind = ip_network("192.168.50.0/24")
    segments = (ip_network("10.244.2.0/24"), ip_network("fd00:0:0:2::/64"))
    changed = grant(PEER, generation=2, segments=segments, prefixes_behind=(behind,))
    node.membership.offer([seal_grant(changed, CLUSTER_KEY)], source=Source.CLOUD)
    node.reach(transports.VXLAN)
    await until(lambda: str(behind) in node.routes())

    node.netns.ip(
        "link add virbr9 type bridge",
        "addr add 192.168.50.7/24 dev virbr9",
        "link set virbr9 up",
    )

    await until(lambda: str(behind) not in node.routes())
    assert NetworksChanged in map(type, node.told)
    assert node.has_routes("limvx4")


def test_a_route_that_was_held_back_is_put_when_the_tunnels_device_is_up_again(
    node: SiteBed, tmp_path: Path
) -> None:
    parts = node.peer_parts
    path = PeerPath(transports.TUNNEL, endpoint=(ip_address("203.0.113.9"), 7000))

    def routed() -> set[str]:
        """By one round."""
        want = parts.overlay.plan()
        changes = parts.overlay.diff(want, parts.overlay.state(want))
        puts = [each.what for each in changes if isinstance(each, Put)]
        found = {each.device for each in puts if isinstance(each, PeerRoute)}
        if not found:
            assert parts.overlay.apply(changes) == []
        return found

    async def rounds() -> None:
        node.grant(PEER, addresses=(ip_address("192.0.2.2"),), tunnel_port=7000)
        parts.peers.begin({grant(PEER).uid: path}, lambda _network: None)
        parts.overlay.begin(node.membership, tmp_path / "vtep.json")
        parts.own.read_links()
        parts.own.set_tunnels(TunnelNames("limwg0", "", 7001))
        parts.peers.set_devices(down=frozenset({"limwg0"}), made=False)
        assert [routed() for _ in range(3)] == [set()] * 3

        parts.peers.set_devices(down=frozenset(), made=False)

        assert routed() == {"limwg0"}
        node.loop.close()
        parts.close()

    with node.netns.entered():
        asyncio.run(rounds())


@on_a_loop
async def test_what_was_forged_stays_counted(node: SiteBed) -> None:
    node.reach(transports.VXLAN)
    await until(lambda: node.has_routes("limvx4"))
    inner = bytes(12) + b"\x08\x00" + bytes(20)
    with node.netns.open_socket(4, socket.SOCK_DGRAM) as sender:
        sender.sendto(struct.pack(">II", 0x08000000, 1 << 8) + inner, ("192.0.2.1", 8472))
    assert node.forged() == 1

    node.loop.resync("test")

    assert node.forged() == 1


@on_a_loop
async def test_what_is_sent_in_clear_in_the_name_of_a_peer_behind_a_tunnel_is_dropped(
    node: SiteBed,
) -> None:
    def filtered() -> str:
        return node.netns.run("nft", "list", "table", "inet", NFT_OVERLAY_TABLE)

    peer, end = grant(PEER).uid, (ip_address("203.0.113.9"), 51820)
    node.peer_parts.peers.set_paths({peer: PeerPath(transports.TUNNEL, endpoint=end)})
    await until(lambda: "192.0.2.2 . 0xaf4 . 0x2" in filtered() and "10.244.2.0" in filtered())
    assert node.peer_parts.peers.shut_out == frozenset()

    node.peer_parts.peers.set_tunnel_only(frozenset({peer}))
    await until(lambda: node.peer_parts.peers.shut_out == {peer})
    assert "192.0.2.2 . " not in filtered()
    assert "10.244.2.0" not in filtered()

    node.peer_parts.peers.set_tunnel_only(frozenset())
    await until(lambda: node.peer_parts.peers.shut_out == frozenset())
    assert "192.0.2.2 . 0xaf4 . 0x2" in filtered()
    assert "10.244.2.0" in filtered()


@on_a_loop
async def test_others_that_change_nftables_cost_a_look_at_the_filter_alone(node: SiteBed) -> None:
    node.reach(transports.VXLAN)
    await until(lambda: node.has_routes("limvx4"))
    read: list[str] = []
    observe = node.peer_parts.overlay._kernel.observe

    def counted(want: OverlayState) -> OverlayState:
        read.append("everything")
        return observe(want)

    node.peer_parts.overlay._kernel.observe = counted  # type: ignore[method-assign]
    node.netns.run("nft", "delete", "table", "inet", NFT_OVERLAY_TABLE)

    node.peer_parts.look_at_filter()

    await until(lambda: NFT_OVERLAY_TABLE in node.netns.run("nft", "list", "tables"))
    assert read == []


@on_a_loop
async def test_a_link_that_is_made_anew_is_filtered_as_before(node: SiteBed) -> None:
    node.reach(transports.VXLAN)
    await until(lambda: node.has_routes("limvx4"))
    node.netns.ip("link del eth0")
    await until(lambda: not node.peer_parts.own.links)

    node.netns.ip(
        "link add eth0 type veth peer name far",
        "link set far up",
        "link set eth0 up",
        "addr add 192.0.2.1/24 dev eth0",
    )
    await until(lambda: "eth0" in node.filtered_links())
    send_from(node, "far", "10.244.9.9")

    await until(lambda: node.forged() == 1)


def send_from(node: SiteBed, ifname: str, source: str) -> None:
    """An IPv4 packet to everybody on the link."""
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20, 1, 0, 64, 59, 0)
    packet = head + ip_address(source).packed + ip_address("192.0.2.1").packed
    with node.netns.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((ifname, 0x0800))
        sender.send(b"\xff" * 6 + bytes(5) + b"\x01" + b"\x08\x00" + packet)


@on_a_loop
async def test_another_vni_makes_the_devices_anew(node: SiteBed) -> None:
    node.reach(transports.VXLAN)
    await until(lambda: node.has_routes("limvx4"))
    changed = seal_network(network(2, vxlan_id=7), CLUSTER_KEY)

    node.membership.offer([changed], source=Source.NEIGHBOUR)

    await until(lambda: "vxlan id 7 " in node.netns.run("ip", "-d", "link", "show", "limvx4"))
    await until(lambda: node.has_routes("limvx4"))
    assert node.peer_parts.failures == []


@on_a_loop
async def test_a_node_that_is_removed_keeps_no_way_to_others(node: SiteBed) -> None:
    node.reach(transports.VXLAN)
    await until(lambda: node.has_routes("limvx4"))
    node.told.clear()
    revoked = seal_grant(grant(OWN, generation=2, segments=(), tombstone=True), CLUSTER_KEY)

    node.membership.offer([revoked], source=Source.NEIGHBOUR)

    await until(lambda: "limvx" not in node.netns.run("ip", "link", "show"))
    assert "via" not in node.routes()
    assert NFT_OVERLAY_TABLE not in node.netns.run("nft", "list", "tables")
    assert [each for each in node.told if isinstance(each, SegmentsChanged)] == [
        SegmentsChanged(())
    ]


@on_a_loop
async def test_hundreds_of_peers_at_once_are_one_round(node: SiteBed) -> None:
    numbers = range(PEER, 202)
    before = node.peer_parts.accounts[1].rounds
    for number in numbers:
        node.grant(number, addresses=(ip_address(f"192.0.2.{number}"),))
    node.peer_parts.peers.set_paths(
        {
            grant(number).uid: PeerPath(transports.VXLAN, underlay=ip_address(f"192.0.2.{number}"))
            for number in numbers
        }
    )

    await until(lambda: node.routes().count("via 10.244.") == len(numbers))

    await until(lambda: not node.peer_parts.failures)
    assert node.peer_parts.accounts[1].rounds - before <= 2, (
        "one for the peers, one for the own presence"
    )


@on_a_loop
async def test_what_had_failed_succeeds_when_its_cause_is_gone(
    node: SiteBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpet.datapath.loop._RETRY_S", (1000.0,))
    node.reach(transports.VXLAN)
    conflict(node)
    await until(lambda: bool(node.peer_parts.failures))

    node.netns.ip("link del flannel.1")

    await until(lambda: node.has_routes("limvx4"))
    assert node.peer_parts.failures == []


def conflict(node: SiteBed) -> None:
    """Somebody else's VXLAN with our VNI and port: none of ours can be made."""
    node.netns.ip(
        "link del limvx4",
        "link add flannel.1 type vxlan id 1 dstport 8472 local 192.0.2.1 nolearning",
    )


@on_a_loop
async def test_one_retry_waits_however_often_a_round_fails(node: SiteBed) -> None:
    waiting: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def counted(delay: float, call: Callable[..., object], *words: object) -> asyncio.TimerHandle:
        handle = call_later(delay, call, *words)
        if delay >= 1:
            waiting.append(handle)
        return handle

    loop.call_later = counted  # type: ignore[method-assign,assignment]
    conflict(node)
    for _ in range(5):
        node.loop.resync("test")

    assert node.peer_parts.failures
    assert len([handle for handle in waiting if not handle.cancelled()]) == 1


@on_a_loop
async def test_what_a_round_has_served_already_wakes_no_other_one(node: SiteBed) -> None:
    await asyncio.wrap_future(
        node.membership.replica.file.durable()
    )  # what the node says of itself: that wakes one too
    with capture_logs() as told:
        node.peer_parts.wake("a path changed")
        node.loop.run("something else", node.peer_parts.overlay)
        asyncio.get_running_loop().call_later(0.05, node.peer_parts.wake, "the last one")
        await until(lambda: "the last one" in told[-1].get("why", ""))

    assert "" not in [each["why"] for each in told if each["event"] == "round"]
