"""The relay that this node may be itself: over UDP, and in TLS while it has the role."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from limpet.agent.settings import Settings
from limpet.base.errors import LimpetError
from limpet.cluster.datagrams.peer_socket import PeerSocket
from limpet.cluster.membership import Membership, News
from limpet.datapath.event import NodeAwaited, RelayTlsPortChanged, Tell
from limpet.relay.server.service import RelayService
from limpet.relay.server.streams import OwnStreams

if TYPE_CHECKING:  # most nodes are no relays, and do without it
    from limpet.relay.server.tls_server import RelayTlsServer

_log = structlog.get_logger("nat")


class RelayRole:
    """Runs on the event loop."""

    def __init__(
        self,
        membership: Membership,
        courier: PeerSocket,
        settings: Settings,
        tell: Tell,
        *,
        tunnel_port: int,
    ) -> None:
        """Tells RelayingChanged, NodeAwaited, OwnEndChanged and RelayTlsPortChanged."""
        self._membership = membership
        self._listen = settings.relay.tls_listen
        self._tell = tell
        self.service = RelayService(
            membership, courier, settings.relay, resync_s=settings.resync_s, tell=tell
        )
        self._streams = OwnStreams(
            self.service.attach_stream, membership, tunnel_port=tunnel_port, tell=tell
        )
        self.server: RelayTlsServer | None = None
        """Where nodes are served in TLS."""
        self._changing: asyncio.Task[None] | None = None
        self._running = False

    def start(self) -> None:
        self._running = True
        self.service.start()
        self.follow()

    async def stop(self) -> None:
        self._running = False
        if self._changing is not None:
            self._changing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._changing
        if self.server is not None:
            await self.server.stop()
        await self.service.stop()

    def hear(self, _news: News) -> None:
        """The cluster's documents changed: who may be served; also what failed is tried again."""
        if self._running:
            self._streams.look()
            self.follow()

    def await_node(self, event: NodeAwaited) -> None:
        if self.server is not None:
            self.server.tell_wanted(event.uid, event.peer_uid)

    def follow(self) -> None:
        """The TLS side comes and goes with the role."""
        wanted = self.service.active
        done = wanted is (self.server is not None)
        if not self._running or done or self._changing is not None:
            return
        self._changing = asyncio.get_running_loop().create_task(self._change_server(wanted=wanted))

    async def _change_server(self, *, wanted: bool) -> None:
        try:
            if wanted:
                # Only now: few nodes have the role, and the others do without its TLS server.
                from limpet.relay.server.tls_server import RelayTlsServer

                server = RelayTlsServer(
                    self._streams.attach, self._membership, self._listen, tell=self._tell
                )
                await server.start()
                self.server = server
            elif self.server is not None:
                server, self.server = self.server, None
                self._tell(RelayTlsPortChanged(0))
                await server.stop()
        except LimpetError as error:
            _log.error("this node relays nothing over TLS", error=str(error))
            return
        finally:
            self._changing = None
        self.follow()  # what is wanted may have changed meanwhile
