"""Nodes behind real NATs, and relays in front of them: real couriers, services and packets."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from functools import partial
from ipaddress import ip_address, ip_interface
from typing import Any, TypeVar

from limpet.base.addresses import Endpoint, UnderlayLink
from limpet.base.settings import PeerSettings, RelaySettings
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.kinds.grant import Role
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import RelayEnd
from limpet.datapath.event import EndpointsChanged, Event, NodeAwaited, RelayEndsChanged
from limpet.linux.conntrack import forget_flows
from limpet.linux.nftables import Nftables
from limpet.relay.client.relays import Relays
from limpet.relay.server.service import RelayService
from limpet.relay.server.tls_server import RelayTlsServer
from tests.beds.member import membership_of
from tests.beds.namespaces import Bed, Netns, connect_namespaces
from tests.relay.relay_bed import PORT, courier_of
from tests.relay.relay_tls_bed import Cluster
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    grant,
    introduced,
    network,
    seal_grant,
    seal_network,
)
from tests.waiting import PATIENCE_S

TUNNEL_PORT, TLS_PORT = 20888, 443
_numbers = itertools.count()

T = TypeVar("T")

Told = list[Sealed]


class RelaysBed(Bed):
    """One switch for all public addresses, 203.0.113.0/24; `close` removes everything."""

    versions = (4,)

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        try:
            self.cluster = Cluster(self.folder)
            self.undo.callback(self.cluster.undo.close)
            self.middle = self.switch()
        except BaseException:
            self.close()
            raise

    def plug(self, netns: Netns, ifname: str, address: str) -> None:
        port = f"p{next(_numbers)}"
        connect_namespaces(netns, ifname, self.middle, port)
        netns.ip(f"addr add {address}/24 dev {ifname}")
        self.middle.ip(f"link set {port} master br0")

    def relay(self, number: int) -> Node:
        return Node(self, number, f"203.0.113.{number}", roles=frozenset({Role.RELAY}))

    def public(self, number: int) -> Node:
        return Node(self, number, f"203.0.113.{number}")

    def behind(self, router: Router, number: int) -> Node:
        return Node(self, number, f"192.168.7.{number}", router=router)

    async def begin(self, *nodes: Node) -> None:
        """They know of each other, and run."""
        for node in nodes:
            node.do(node.open)
        told = [node.told for node in nodes]
        for node in nodes:
            node.do(partial(node.hear, told))
            await node.do(node.start)

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()


_netns: ContextVar[Netns | None] = ContextVar("_netns", default=None)


class NamespacesLoop(asyncio.SelectorEventLoop):
    """Runs what a node has begun in the node's namespace, as if each were a process of its own.

    All in one thread: libnftables is not safe with several.
    """

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(_inside(callback, context), *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return super().call_at(when, _inside(callback, context), *args, context=context)

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        super().add_reader(fd, _inside(callback, None), *args)


def _inside(callback: Callable[..., object], context: Context | None) -> Callable[..., object]:
    netns = context.get(_netns) if context is not None else _netns.get()
    if netns is None:
        return callback

    def inside(*args: object) -> object:
        with netns.entered():
            return callback(*args)

    return inside


class Router:
    """A NAT; `port_rule` says how it translates ports, as nftables' masquerade takes it."""

    def __init__(self, bed: RelaysBed, number: int, port_rule: str = "") -> None:
        self.netns = bed.namespace(f"router{number}")
        self.netns.sysctl("net/ipv4/ip_forward", "1")
        self.address = f"203.0.113.{number}"
        bed.plug(self.netns, "wan", self.address)
        self.netns.ip(
            "link add lan type bridge", "link set lan up", "addr add 192.168.7.1/24 dev lan"
        )
        self.translate(port_rule)

    def translate(self, port_rule: str) -> None:
        put_table(
            self.netns,
            f"""
            table inet nat {{
                chain post {{
                    type nat hook postrouting priority srcnat
                    oifname "wan" meta l4proto udp masquerade {port_rule}
                    oifname "wan" masquerade
                }}
            }}
            """,
        )

    def reboot(self, port_rule: str) -> None:
        """All mappings are forgotten, and new ones are others."""
        self.translate(port_rule)
        with self.netns.entered():
            forget_flows([ip_address(self.address)])


class Node:
    """`number` is in its address, its key and its name."""

    def __init__(
        self,
        bed: RelaysBed,
        number: int,
        address: str,
        *,
        roles: frozenset[Role] = frozenset({Role.EDGE}),
        router: Router | None = None,
    ) -> None:
        self.bed = bed
        bed.nodes.append(self)
        self.number = number
        self.address = address
        self.netns = bed.namespace(f"n{number}")
        if router is None:
            bed.plug(self.netns, "eth0", address)
        else:
            port = f"l{number}"
            connect_namespaces(self.netns, "eth0", router.netns, port)
            router.netns.ip(f"link set {port} master lan")
            self.netns.ip(f"addr add {address}/24 dev eth0", "route add default via 192.168.7.1")
        self.is_relay = Role.RELAY in roles
        if self.is_relay:
            self.netns.sysctl("net/ipv4/ip_forward", "1")  # as the agent does on every node
        self.identity = bed.cluster.identity(number)
        self.uid = self.identity.uid
        self.grant = grant(number, roles=roles)
        self.ends: dict[str, tuple[RelayEnd, ...]] = {}
        self.endpoints: list[tuple[Endpoint, ...]] = []
        """What there was to publish, each time."""
        self.tunnel: socket.socket | None = None
        self._service: RelayService | None = None
        self._server: RelayTlsServer | None = None
        self._running = False

    @property
    def endpoint(self) -> Endpoint:
        return (ip_address(self.address), TUNNEL_PORT)

    @property
    def link(self) -> UnderlayLink:
        with self.netns.entered():
            ifindex = socket.if_nametoindex("eth0")
        return UnderlayLink("eth0", ifindex, "", 1500, (ip_interface(f"{self.address}/24"),))

    def do(self, call: Callable[[], T]) -> T:
        """In the node's namespace, like all that follows from it."""

        def inside() -> T:
            _netns.set(self.netns)
            with self.netns.entered():
                return call()

        return copy_context().run(inside)

    def open(self) -> None:
        self.membership = membership_of(
            self.identity,
            seal_network(network(), CLUSTER_KEY),
            seal_grant(self.grant, CLUSTER_KEY),
            boot_id=f"boot-{self.number}",
        )
        self.membership.announce(
            addresses=(ip_address(self.address),),
            port=PORT,
            vtep_macs={},
            link_mtu_bytes=1500,
            tunnel_port=TUNNEL_PORT,
            relay_tls_port=TLS_PORT if self.is_relay else 0,
        )

    @property
    def told(self) -> Told:
        """What it says of itself."""
        return introduced(self.membership)

    def hear(self, told: list[Told]) -> None:
        documents = [document for each in told for document in each]
        self.membership.offer(documents, source=Source.NEIGHBOUR)

    def start(self) -> asyncio.Task[None]:
        """The task is done when all is there."""
        self._running = True
        self.courier = courier_of(self.membership, TUNNEL_PORT)
        relaying = RelaySettings(ports=(21000, 21099), tls_listen=((self.address, TLS_PORT),))
        self.relays = Relays(
            self.membership,
            self.courier,
            PeerSettings(port_mapping=False),
            tell=self._hear_event,
            tunnel_port=TUNNEL_PORT,
        )
        self.membership.subscribe(self.relays.streams.hear)
        self.courier.set_links((self.link,))
        self.relays.set_links((self.link,))
        if self.is_relay:
            self._service = RelayService(
                self.membership,
                self.courier,
                relaying,
                resync_s=60.0,
                tell=self._hear_event,
            )
            self._service.start()
            self.membership.subscribe(self._service.hear)
            self._server = RelayTlsServer(
                self._service.attach_stream,
                self.membership,
                relaying.tls_listen,
                self._hear_event,
            )
        self.relays.start()
        self.membership.subscribe(self.relays.hear)
        self.tunnel = self.netns.open_socket(4, socket.SOCK_DGRAM)
        self.tunnel.bind(("0.0.0.0", TUNNEL_PORT))
        self.tunnel.setblocking(False)
        return asyncio.get_running_loop().create_task(self._serve())

    def _hear_event(self, event: Event) -> None:
        match event:
            case RelayEndsChanged(uid, ends):
                self.ends[uid] = ends
            case EndpointsChanged(endpoints):
                self.endpoints.append(endpoints)
            case NodeAwaited(uid, peer_uid):
                assert self._server is not None
                self._server.tell_wanted(uid, peer_uid)

    async def _serve(self) -> None:
        if self._server is not None:
            await self._server.start()
            self.membership.subscribe(self._server.hear)

    async def stop(self) -> None:
        if not self._running:
            return
        self._running = False
        await self.relays.stop()
        if self._server is not None:
            await self._server.stop()
        if self._service is not None:
            await self._service.stop()
        self.courier.stop()
        self.membership.close()
        if self.tunnel is not None:
            self.tunnel.close()

    def need(self, peer: Node, *, wanted: bool = True) -> None:
        self.do(lambda: self.relays.need(peer.uid, wanted))

    @property
    def pairs(self) -> list[object]:
        """That it joins, as a relay."""
        assert self._service is not None
        return list(self.do(self._service.report).pairs)

    def relay_uids(self, peer: Node, *, tls: bool = False) -> set[str]:
        """Where it has ends of the pair with the peer, over UDP or over TLS."""
        return {
            end.relay
            for end in self.ends.get(peer.uid, ())
            if (end.rung is transports.RELAY_TLS) is tls
        }

    def block_udp(self) -> None:
        """As a site's firewall does."""
        put_table(
            self.netns,
            """
            table inet firewall {
                chain output {
                    type filter hook output priority filter
                    oifname "eth0" meta l4proto udp drop
                }
                chain input {
                    type filter hook input priority filter
                    iifname "eth0" meta l4proto udp drop
                }
            }
            """,
        )

    def let_udp_out(self) -> None:
        put_table(self.netns, "table inet firewall { }")

    async def says(self, peer: Node, relay: Node, words: bytes) -> None:
        """What the tunnel sends by the relay gets to the peer's tunnel. Raises: TimeoutError.

        Over UDP where there is such a way. Over TLS there may be one beside it: a slow machine
        looks like a site that lets no UDP out.
        """
        assert self.tunnel is not None
        assert peer.tunnel is not None
        ends = [end for end in self.ends[peer.uid] if end.relay == relay.uid]
        over_udp = [end for end in ends if end.rung is not transports.RELAY_TLS]
        (at,) = (end.endpoint for end in over_udp or ends)
        loop = asyncio.get_running_loop()
        self.tunnel.sendto(words, (str(at[0]), at[1]))
        async with asyncio.timeout(PATIENCE_S):
            while await loop.sock_recv(peer.tunnel, 2000) != words:
                pass


def put_table(netns: Netns, text: str) -> None:
    """Instead of a table of that name, if there is one."""
    name = text.split()[2]
    with netns.entered():
        nft = Nftables(name)
        nft.put_table(text)
        nft.close()
