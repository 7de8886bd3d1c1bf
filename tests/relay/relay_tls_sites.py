"""Sites whose tunnels have no way but a relay's TCP port 443, in namespaces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

from limpet.base.addresses import Endpoint
from limpet.base.settings import RelaySettings
from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.cluster.datagrams.peer_socket import Received
from limpet.datapath.event import Event, NodeAwaited
from limpet.relay.client.peer import StreamEvent
from limpet.relay.client.tls_client import TlsRelays
from limpet.relay.server.service import RelayService
from limpet.relay.server.tls_server import RelayTlsServer
from limpet.relay.status import Relaying
from tests.beds.namespaces import Netns, connect_namespaces
from tests.relay.relay_bed import PORT, TUNNEL_PORT, Wireguard, courier_of
from tests.relay.relay_tls_bed import RELAY, Cluster, tell, uid
from tests.waiting import PATIENCE_S, until

T = TypeVar("T")


class Place:
    """A namespace with a thread in it that runs an event loop: a node's, or the relay's."""

    def __init__(self, netns: Netns, undo: ExitStack) -> None:
        self.netns = netns
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        undo.callback(self._stop)
        self._loop = self._ready.result(PATIENCE_S)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the namespace."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def call(self, work: Callable[[], T]) -> T:
        """On the loop's thread."""

        async def done() -> T:
            return work()

        return self.run(done())

    def _run(self) -> None:
        with self.netns.entered():
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._ready.set_result(asyncio.get_running_loop())
        await self._end.wait()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


_ONLY_HTTPS = """
table inet only_https {
    chain input {
        type filter hook input priority filter; policy drop
        meta l4proto ipv6-icmp accept
        tcp dport 443 accept
    }
}
"""


class RealRelay:
    """With its real service, and a firewall that lets nothing in but TCP 443."""

    def __init__(self, cluster: Cluster, netns: Netns, folder: Path, undo: ExitStack) -> None:
        self.netns = netns
        rules = folder / "only-https"
        rules.write_text(_ONLY_HTTPS)
        netns.run("nft", "-f", str(rules))
        self._place = Place(netns, undo)
        self._membership = cluster.membership(RELAY)
        undo.callback(lambda: self._place.run(self._stop()))
        self._place.run(self._start())

    def report(self) -> Relaying:
        return self._place.call(self._service.report)

    def tell(self, number: int, **changes: Any) -> None:
        self._place.call(lambda: tell(self._membership, number, **changes))

    async def _start(self) -> None:
        settings = RelaySettings(tls_listen=(("::", 443),))
        self._membership.announce(
            addresses=(ip_address("8.8.4.4"),),
            port=PORT,
            vtep_macs={},
            link_mtu_bytes=1500,
            tunnel_port=TUNNEL_PORT,
        )
        self._courier = courier_of(self._membership)
        self._service = RelayService(
            self._membership,
            self._courier,
            settings,
            resync_s=60.0,
            tell=self._hear,
        )
        self._service.start()
        self._membership.subscribe(self._service.hear)
        self._server = RelayTlsServer(
            self._service.attach_stream, self._membership, settings.tls_listen, self._hear
        )
        await self._server.start()
        self._membership.subscribe(self._server.hear)

    def _hear(self, event: Event) -> None:
        if isinstance(event, NodeAwaited):
            self._server.tell_wanted(event.uid, event.peer_uid)

    async def _stop(self) -> None:
        await self._server.stop()
        await self._service.stop()
        self._courier.stop()


class FarSite:
    """A node with a link to the relay and nowhere else: its tunnel, its courier, its relays."""

    def __init__(
        self,
        cluster: Cluster,
        number: int,
        relay: RealRelay,
        netns: Netns,
        folder: Path,
        undo: ExitStack,
    ) -> None:
        """192.0.2.5 and 2001:db8:1::1 for number 1; the relay has the next addresses."""
        self.uid = uid(number)
        self.netns = netns
        self.told: list[StreamEvent] = []
        link = f"site{number}"
        connect_namespaces(netns, "up0", relay.netns, link)
        for host, device, last in ((netns, "up0", 1), (relay.netns, link, 2)):
            host.ip(
                f"addr add 192.0.2.{4 * number + last}/30 dev {device}",
                f"addr add 2001:db8:{number}::{last}/64 dev {device} nodad",
            )
        self._place = Place(netns, undo)
        self._membership = cluster.membership(number)
        self.tunnel = Wireguard(netns, number, folder, undo)
        undo.callback(lambda: self._place.run(self._stop()))
        self._place.run(self._start())

    def end_for(self, peer: FarSite, address: str) -> Endpoint:
        where = ((ip_address(address), 443),)
        return self._place.run(self._relays.end_for(uid(RELAY), where, peer.uid)).endpoint

    def probed(self, peer: FarSite, endpoint: Endpoint) -> Endpoint:
        """Where the peer saw a datagram come from that was sent by the tunnel's port."""
        return self._place.run(self._probed(peer.uid, endpoint))

    def until(self, condition: Callable[[], bool]) -> None:
        self._place.run(until(condition))

    async def _start(self) -> None:
        self._relays = TlsRelays(self._membership, tunnel_port=TUNNEL_PORT, tell=self.told.append)
        self._membership.subscribe(self._relays.hear)
        self._courier = courier_of(self._membership)
        self._courier.on(BodyKind.PROBE, self._answer)
        self._courier.on(BodyKind.ANSWER, lambda received: self._answered.set_result(received.body))

    async def _stop(self) -> None:
        await self._relays.stop()
        self._courier.stop()

    def _answer(self, received: Received) -> None:
        assert received.by_tunnel
        seen = f"{received.address} {received.port}".encode()
        self._courier.answer(received, BodyKind.ANSWER, seen)

    async def _probed(self, peer: str, endpoint: Endpoint) -> Endpoint:
        self._answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        address, port = endpoint
        assert self._courier.send(
            BodyKind.PROBE, b"?", to_uid=peer, address=address, port=port, by_tunnel=True
        )
        async with asyncio.timeout(PATIENCE_S):
            seen = (await self._answered).decode().split()
        return ip_address(seen[0]), int(seen[1])
