"""Nodes in namespaces with a pod each, joined by a switch or a router, run by the real planner."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

from limpet.base.ownership import ROUTE_TABLE
from limpet.cluster.kinds.grant import Grant
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry, Snapshot
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import OwnSide, PeerPath
from limpet.cluster.topology.view import View, view_of
from limpet.datapath.overlay.apply import OverlayKernel
from limpet.datapath.overlay.diff import OverlayChange, diff_overlay
from limpet.datapath.overlay.plan import plan_overlay
from limpet.linux.netlink.socket import RouteSocket
from tests.beds.namespaces import Bed, Netns, connect_namespaces
from tests.unit.cluster_values import grant, network, presence

_numbers = itertools.count()


def vtep_mac(number: int, version: int) -> str:
    return f"02:4c:00:00:0{version}:{number:02x}"


class Node:
    """A node with two segments, its gateway, and a pod; `number` is in every address of it."""

    def __init__(self, bed: OverlayBed, number: int) -> None:
        self.number = number
        self.netns = bed.namespace(f"n{number}")
        self.pod = bed.namespace(f"p{number}")
        self.grant: Grant = grant(
            number,
            segments=(ip_network(f"10.244.{number}.0/24"), ip_network(f"fd00:0:0:{number}::/64")),
        )
        self.uid = self.grant.uid
        self.presence: Presence = presence(
            number, vtep_macs={4: vtep_mac(number, 4), 6: vtep_mac(number, 6)}
        )
        self.own = OwnSide(dict(self.presence.vtep_macs), 1500, frozenset({"eth0"}))
        self.paths: dict[str, PeerPath] = {}
        for path in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            self.netns.sysctl(path, "1")
        self.netns.ip(
            "link add limpet0 type bridge",
            "link set limpet0 up",
            f"addr add {self.overlay(4)}/24 dev limpet0 noprefixroute",
            f"addr add {self.overlay(6)}/64 dev limpet0 nodad noprefixroute",
            f"route add 10.244.{number}.0/24 dev limpet0 table {ROUTE_TABLE} metric 100",
            f"route add fd00:0:0:{number}::/64 dev limpet0 table {ROUTE_TABLE} metric 100",
            f"route add unreachable 10.244.0.0/16 table {ROUTE_TABLE} metric 65000",
            f"route add unreachable fd00::/48 table {ROUTE_TABLE} metric 65000",
            f"rule add priority {ROUTE_TABLE} lookup {ROUTE_TABLE}",
            f"-6 rule add priority {ROUTE_TABLE} lookup {ROUTE_TABLE}",
        )
        connect_namespaces(self.netns, "lim0", self.pod, "eth0")
        self.netns.ip("link set lim0 master limpet0")
        self.pod.ip(
            f"addr add {self.address(4)}/24 dev eth0",
            f"addr add {self.address(6)}/64 dev eth0 nodad",
            f"route add default via {self.overlay(4)}",
            f"route add default via {self.overlay(6)}",
        )
        with self.netns.entered():
            self.route = RouteSocket()
        bed.undo.callback(self.route.close)
        self.kernel = OverlayKernel(self.route)

    def address(self, version: int) -> str:
        """Of the pod."""
        return f"10.244.{self.number}.2" if version == 4 else f"fd00:0:0:{self.number}::2"

    def overlay(self, version: int) -> str:
        return f"10.244.{self.number}.1" if version == 4 else f"fd00:0:0:{self.number}::1"

    def view(self, nodes: Mapping[str, NodeEntry]) -> View:
        return view_of(Snapshot(network(), nodes), self.uid, self.paths, self.own)

    def settle(self, nodes: Mapping[str, NodeEntry]) -> list[OverlayChange]:
        """One round; returns what it changed. Raises: AssertionError when something failed."""
        want = plan_overlay(self.view(nodes)).state
        with self.netns.entered():
            changes = diff_overlay(want, self.kernel.observe(want))
            failures = self.kernel.apply(changes)
        assert failures == []
        return changes


class OverlayBed(Bed):
    """`routed`: each node has a link of its own with a router; else all are on one switch."""

    def __init__(self, count: int, *, routed: bool = False) -> None:
        super().__init__()
        try:
            self.routed = routed
            self.middle = self.router() if routed else self.switch()
            self.nodes = [Node(self, number) for number in range(1, count + 1)]
            for node in self.nodes:
                self._connect(node)
        except BaseException:
            self.close()
            raise

    def _connect(self, node: Node) -> None:
        port = f"port{node.number}"
        connect_namespaces(node.netns, "eth0", self.middle, port)
        node.netns.ip(*(f"addr add {self.link_address(node, v)} dev eth0 nodad" for v in (4, 6)))
        subnets = tuple(ip_interface(self.link_address(node, v)).network for v in (4, 6))
        node.own = replace(node.own, link_prefixes=subnets)
        if self.routed:
            self.middle.ip(
                f"addr add 172.20.{node.number}.254/24 dev {port}",
                f"addr add fd20:{node.number}::fe/64 dev {port} nodad",
            )
            node.netns.ip(
                f"route add default via 172.20.{node.number}.254",
                f"route add default via fd20:{node.number}::fe",
            )
        else:
            self.middle.ip(f"link set {port} master br0")

    def underlay(self, node: Node, version: int) -> str:
        site = node.number if self.routed else 2
        if version == 4:
            return f"172.20.{site}.{node.number}"
        return f"fd20:{site}::{node.number}"

    def link_address(self, node: Node, version: int) -> str:
        return f"{self.underlay(node, version)}/{24 if version == 4 else 64}"

    def entries(self) -> dict[str, NodeEntry]:
        return {node.uid: NodeEntry(node.grant, node.presence) for node in self.nodes}

    def path(self, peer: Node, rung: transports.Transport, version: int = 4) -> PeerPath:
        underlay = ip_address(self.underlay(peer, version))
        hops = tuple(ip_address(self.underlay(peer, each)) for each in (4, 6))
        if rung is transports.ROUTE:
            return PeerPath(rung, device="eth0", next_hops=hops, underlay=underlay)
        return PeerPath(rung, underlay=underlay)

    def join(self, rung: transports.Transport, version: int = 4) -> None:
        """Everybody reaches everybody by the rung, VXLAN over `version`."""
        for node in self.nodes:
            node.paths = {
                peer.uid: self.path(peer, rung, version) for peer in self.nodes if peer is not node
            }
        self.settle()

    def settle(self) -> list[list[OverlayChange]]:
        entries = self.entries()
        return [node.settle(entries) for node in self.nodes]


def ping(source: Netns, target: str, *options: str) -> str:
    """What ping says, once it is answered: a flood of another test may drop a packet. Raises:
    AssertionError without an answer."""
    return source.run("ping", "-n", "-c", "1", "-w", "20", *options, target)


def is_lost(source: Netns, target: str) -> bool:
    """No answer, or an error."""
    try:
        source.run("ping", "-n", "-c", "1", "-W", "2", target)
    except AssertionError:
        return True
    return False
