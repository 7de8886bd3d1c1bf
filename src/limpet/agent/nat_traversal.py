"""What takes this node's packets across NATs, put together: the tunnel's port, probes by it, relays
that the node uses, and the relay that it may be itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog
from msgspec import convert

from limpet.agent.settings import Settings
from limpet.agent.status import Across
from limpet.base.addresses import UnderlayLink
from limpet.base.errors import LimpetError
from limpet.cluster.exchange.exchange import Exchange
from limpet.cluster.membership import Membership, News
from limpet.cluster.peer_socket import PeerSocket
from limpet.cluster.topology.paths import RelayEnd
from limpet.cluster.topology.reach import may_talk
from limpet.datapath.overlay.reconciler import PeerReconciler
from limpet.datapath.tunnel.handshake_reset import HandshakeReset
from limpet.paths.prober import Prober
from limpet.relay.client.relays import Relays
from limpet.relay.server.own_streams import OwnStreams
from limpet.relay.server.service import RelayService
from limpet.relay.server.tls_server import RelayTlsServer
from limpet.relay.stream.tls_client import TlsRelays

_log = structlog.get_logger("across")


class NatTraversal:
    """Runs on the event loop, once the courier listens. Says nothing where there is no tunnel."""

    def __init__(
        self,
        membership: Membership,
        courier: PeerSocket,
        settings: Settings,
        *,
        site: PeerReconciler,
        probing: Prober,
        exchange: Exchange,
    ) -> None:
        self._membership = membership
        self._courier = courier
        self._site = site
        self._probing = probing
        self._exchange = exchange
        self._running = False
        tunnel = site.tunnels
        self.anew = HandshakeReset(courier, may_talk=self._may_talk, take=tunnel.take_anew)
        site.watch.on_unanswered.append(self.anew.ask)
        site.watch.on_active.append(probing.set_active)
        self.tls = TlsRelays(membership.identity, membership, tunnel_port=tunnel.key.port)
        self.relays = Relays(
            membership,
            courier,
            settings.peers,
            on_ends=self._set_ends,
            on_endpoints=site.set_endpoints,
            tls=self.tls,
        )
        probing.on_answer_seen.append(self.relays.answer_seen)
        self.service = RelayService(
            membership,
            courier,
            settings.relay,
            resync_s=settings.resync_s,
            may_talk=lambda one, other: (
                membership.network is not None and may_talk(membership.network, one, other)
            ),
        )
        self._ends: dict[str, tuple[RelayEnd, ...]] = {}
        """By the peer's uid, at relays."""
        self._own_ends: dict[str, RelayEnd] = {}
        """Of peers that are connected over TLS with this node itself."""
        self._streams = OwnStreams(
            self.service,
            uid=membership.uid,
            tunnel_port=tunnel.key.port,
            may_talk=self._may_talk,
            on_end=self._set_own_end,
        )
        self._make_server: Callable[[], RelayTlsServer] = lambda: RelayTlsServer(
            self._streams, membership, settings.relay.tls_listen
        )
        self.server: RelayTlsServer | None = None
        """Where nodes are served over TLS, if this one is a relay."""
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """The courier listens."""
        self._running = True
        self._probing.ipv6_last = not self._site.tunnels.wireguard.kernel.has_kernels
        self.share_port()
        self.service.on_active = self._follow
        self.service.start()
        self._membership.subscribe(self._heard)
        self._follow()
        self.relays.start()

    async def stop(self) -> None:
        self._running = False
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
        await self.relays.stop()
        await self.tls.stop()
        if self.server is not None:
            await self.server.stop()
        await self.service.stop()

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        self.relays.set_links(links)

    def share_port(self) -> None:
        """The rules by which the tunnel's port serves both are as they should be."""
        tunnel = self._site.tunnels
        if not tunnel.device:
            return
        try:
            self._courier.share_tunnel_port(tunnel.key.port)
        except (LimpetError, OSError) as error:
            _log.warning(
                "no way through NATs can be found out, as the tunnel's port is not shared",
                error=str(error),
            )

    def look(self) -> None:
        """Puts right what others have changed in the kernel."""
        if self._running:
            self.share_port()
            self.service.look()

    def paths_changed(self) -> None:
        """Whoever is behind a tunnel is told of changes inside it."""
        segments = self._site.view.segments
        self._exchange.set_tunnelled(
            {
                uid: segments[uid][0][0]
                for uid, path in self._probing.paths.items()
                if path.rung.encrypted and segments.get(uid)
            }
        )

    def _set_ends(self, uid: str, ends: tuple[RelayEnd, ...]) -> None:
        self._ends[uid] = ends
        self._tell_ends(uid)

    def _set_own_end(self, uid: str, end: RelayEnd | None) -> None:
        if end is None:
            self._own_ends.pop(uid, None)
        else:
            self._own_ends[uid] = end
        self._tell_ends(uid)

    def _tell_ends(self, uid: str) -> None:
        own = self._own_ends.get(uid)
        ends = (*self._ends.get(uid, ()), *((own,) if own is not None else ()))
        if not ends:
            self._ends.pop(uid, None)
        self._probing.set_relay_ends(uid, ends)

    def _may_talk(self, uid: str) -> bool:
        entry = self._membership.snapshot.nodes.get(uid)
        network, grant = self._membership.network, self._membership.grant
        return (
            entry is not None
            and network is not None
            and grant is not None
            and may_talk(network, grant, entry.grant)
        )

    # Being a relay

    def _heard(self, _news: News) -> None:
        self._streams.look()
        self._follow()  # also what has failed is tried again

    def _follow(self) -> None:
        """The TLS side comes and goes with the role."""
        wanted = self.service.active
        done = wanted is (self.server is not None)
        if not self._running or done or self._following is not None:
            return
        self._following = asyncio.get_running_loop().create_task(self._change_server(wanted=wanted))

    async def _change_server(self, *, wanted: bool) -> None:
        try:
            if wanted:
                server = self._make_server()
                server.on_port = self._site.set_relay_tls_port
                await server.start()
                self.server = server
                self.service.on_wanted = server.tell_wanted
            elif self.server is not None:
                server, self.server = self.server, None
                self._site.set_relay_tls_port(0)
                await server.stop()
        except LimpetError as error:
            _log.error("this node relays nothing over TLS", error=str(error))
            return
        finally:
            self._following = None
        self._follow()  # what is wanted may have changed meanwhile

    def report(self) -> Across:
        """For `limpet status`."""
        said = {
            "relays": self.relays.report(),
            "relaying": self.service.report() if self.service.has_role else None,
            "relaying_tls": self.server.report() if self.server is not None else None,
            "tls": self.tls.report(),
        }
        return convert(said, Across)
