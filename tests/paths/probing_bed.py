"""Nodes in namespaces that prove paths to each other with real probes over real links."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection
from dataclasses import replace
from ipaddress import ip_network

from limpet.base.addresses import Endpoint
from limpet.cluster.datagrams.peer_socket import PeerSocket
from limpet.cluster.documents import Source
from limpet.cluster.identity import Identity
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind
from limpet.datapath.event import Event, PathsChanged, RelayNeeded
from limpet.linux.netlink.socket import RouteSocket
from limpet.linux.underlay import read_underlay
from limpet.paths.prober import Prober
from tests.beds.member import membership_of
from tests.beds.namespaces import Bed, Netns, connect_namespaces
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    introduced,
    network,
    node_key,
    seal_grant,
    seal_network,
)
from tests.waiting import PATIENCE_S, until

PORT = 7471
_numbers = itertools.count()


class PathBed(Bed):
    """Links and nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []

    def node(self, number: int) -> Node:
        made = Node(self, number)
        self.nodes.append(made)
        return made


class Node:
    """`number` is in its key, its name and its segments."""

    def __init__(self, bed: PathBed, number: int) -> None:
        self.bed = bed
        self.number = number
        self.netns = bed.namespace(f"n{number}")
        self.folder = bed.folder / f"n{number}"
        self.folder.mkdir()
        self.endpoints: tuple[Endpoint, ...] = ()
        """Of its tunnel, as seen from outside."""
        self.relay_needs: dict[str, bool] = {}
        self.identity = Identity(self.folder, node_key(number), f"node-{number}", PINNED, ())
        self.uid = self.identity.uid
        self.grant = grant(
            number,
            segments=(ip_network(f"10.244.{number}.0/24"), ip_network(f"fd00:0:0:{number}::/64")),
        )
        # What the agent does for a node: gateways on the bridge, and loose links.
        self.netns.ip(
            "link add limpet0 type bridge",
            "link set limpet0 up",
            f"addr add 10.244.{number}.1/24 dev limpet0",
            f"addr add fd00:0:0:{number}::1/64 dev limpet0 nodad",
            "route add 10.244.0.0/16 dev limpet0",
            "-6 route add fd00::/48 dev limpet0",
        )
        self.netns.sysctl("net/ipv4/conf/all/rp_filter", "2")

    def plug(self, ifname: str, switch: Netns, *addresses: str) -> None:
        port = f"p{self.number}{ifname}"
        connect_namespaces(self.netns, ifname, switch, port)
        self.set_addresses(ifname, *addresses)
        switch.ip(f"link set {port} master br0")

    def wire(self, ifname: str, router: Netns, address: str, gateway: str) -> None:
        """A link of its own to a router."""
        port = f"p{self.number}{ifname}"
        connect_namespaces(self.netns, ifname, router, port)
        router.ip(f"addr add {gateway} dev {port} nodad")
        self.set_addresses(ifname, address)
        self.netns.ip(
            f"{'-6 ' * (':' in gateway)}route add default via {gateway.partition('/')[0]}"
        )

    def set_addresses(self, ifname: str, *addresses: str) -> None:
        self.netns.ip(*(f"addr add {each} dev {ifname} nodad" for each in addresses))

    # Running

    def start(self, *, tunnel_port: int = 0) -> None:
        """Within a running loop. `tunnel_port`: of a tunnel that it shares with its probes."""
        self.tunnel_port = tunnel_port
        self.changed = asyncio.Event()
        self.membership = membership_of(
            self.identity,
            seal_network(network(), CLUSTER_KEY),
            seal_grant(self.grant, CLUSTER_KEY),
            boot_id=f"boot-{self.number}",
        )
        self.courier = PeerSocket(
            self.identity,
            port=PORT,
            is_member=self.membership.is_member,
            is_removed=self.membership.removal_of,
        )
        self.shut_out: Collection[str] = ()
        self.told: list[Event] = []
        self.hearers: list[Callable[[Event], None]] = []
        self.probing = Prober(
            self.membership,
            self.courier,
            path_file=self.folder / "paths.json",
            shut_out=lambda: self.shut_out,
            tell=self.hear,
        )
        with self.netns.entered():
            self.courier.start()
            if tunnel_port:
                self.courier.share_tunnel_port(tunnel_port)
            self.read_links()
            self.probing.start()
        self.membership.subscribe(self.probing.hear)

    def hear(self, event: Event) -> None:
        self.told.append(event)
        for hearer in self.hearers:
            hearer(event)
        if isinstance(event, RelayNeeded):
            self.relay_needs[event.uid] = event.wanted
        if isinstance(event, RelayNeeded | PathsChanged):
            self.changed.set()

    def read_links(self) -> None:
        """As the site network does after any change of a link."""
        with self.netns.entered(), RouteSocket() as route:
            links = read_underlay(route, patterns=("eth*",))
        if links:
            self.membership.announce(
                addresses=tuple(address.ip for link in links for address in link.addresses),
                port=PORT,
                vtep_macs={v: f"0e:4c:00:00:0{v}:{self.number:02x}" for v in (4, 6)},
                link_mtu_bytes=1500,
                tunnel_port=self.tunnel_port,
                endpoints=self.endpoints,
            )
        self.courier.set_links(links)
        self.probing.set_links(links)

    def tell(self, *others: Node) -> None:
        """What this node knows of itself gets to the others."""
        for other in others:
            other.membership.offer(introduced(self.membership), source=Source.NEIGHBOUR)

    async def stop(self) -> None:
        await self.probing.stop()
        self.courier.stop()
        self.membership.close()

    def path(self, other: Node) -> PeerPath | None:
        """Without where it was proven."""
        path = self.probing.paths.get(other.uid)
        return replace(path, prefixes=()) if path is not None else None

    async def until(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Waits for paths to change until it is so. Raises: TimeoutError."""
        async with asyncio.timeout(patience_s):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def has_path(self, other: Node, wanted: PeerPath) -> None:
        """Raises: TimeoutError."""
        await self.until(lambda: self.path(other) == wanted)

    async def has_asked(self, ask: ProbeKind, times: int) -> None:
        """Returns when so many more probes have left. Raises: TimeoutError."""
        name = f"asked_{ask.name.lower()}"
        await self.until_counted(name, self.probing.counters[name] + times)

    async def until_counted(self, name: str, count: int) -> None:
        """Raises: TimeoutError."""
        await until(lambda: self.probing.counters[name] >= count)


def introduce(*nodes: Node) -> None:
    """Each knows of each."""
    for node in nodes:
        node.tell(*(other for other in nodes if other is not node))
