"""What takes this node's packets across NATs, put together: the tunnel's port, probes by it, relays
that the node uses, and the relay that it may be itself."""

from __future__ import annotations

import structlog

from limpet.agent.relay_role import RelayRole
from limpet.agent.settings import Settings
from limpet.agent.status.cluster import NatTraversalStatus
from limpet.base.errors import LimpetError
from limpet.cluster.datagrams.peer_socket import PeerSocket
from limpet.cluster.membership import Membership
from limpet.cluster.topology.paths import RelayEnd
from limpet.datapath.event import OwnEndChanged, RelayEndsChanged, Tell
from limpet.datapath.tunnel.handshake_reset import HandshakeReset
from limpet.datapath.tunnel.part import TunnelPart
from limpet.relay.client.relays import Relays

_log = structlog.get_logger("nat")


class RelayEnds:
    """Ends at relays that lead to peers, those at this node itself among them."""

    def __init__(self) -> None:
        self._there: dict[str, tuple[RelayEnd, ...]] = {}
        """Ends at other relays, by the peer's uid."""
        self._here: dict[str, RelayEnd] = {}
        """Ends at this node, of peers that are connected to it in TLS; by their uid."""

    def put(self, event: RelayEndsChanged | OwnEndChanged) -> tuple[RelayEnd, ...]:
        """All that lead to the peer of the event now."""
        uid = event.uid
        if isinstance(event, RelayEndsChanged):
            self._there[uid] = event.ends
        elif event.end is None:
            self._here.pop(uid, None)
        else:
            self._here[uid] = event.end
        own = (self._here[uid],) if uid in self._here else ()
        ends = (*self._there.get(uid, ()), *own)
        if not ends:
            self._there.pop(uid, None)
        return ends


class NatTraversal:
    """Runs on the event loop, once the courier listens. Says nothing where there is no tunnel."""

    def __init__(
        self,
        membership: Membership,
        courier: PeerSocket,
        settings: Settings,
        tunnels: TunnelPart,
        tell: Tell,
    ) -> None:
        self._courier = courier
        self._tunnels = tunnels
        self._running = False
        self.ends = RelayEnds()
        self.handshake_reset = HandshakeReset(
            courier, may_talk=membership.may_talk, take=tunnels.reset_handshake
        )
        self.relays = Relays(
            membership, courier, settings.peers, tell=tell, tunnel_port=tunnels.key.port
        )
        self.role = RelayRole(
            membership,
            courier,
            settings,
            tell,
            tunnel_port=tunnels.key.port,
        )

    def start(self) -> None:
        """The courier listens."""
        self._running = True
        self.share_port()
        self.role.start()
        self.relays.start()

    async def stop(self) -> None:
        self._running = False
        await self.relays.stop()
        await self.role.stop()

    def share_port(self) -> None:
        """The rules by which the tunnel's port serves both are as they should be."""
        if not self._tunnels.device:
            return
        try:
            self._courier.share_tunnel_port(self._tunnels.key.port)
        except (LimpetError, OSError) as error:
            _log.warning(
                "no way through NATs can be found out, as the tunnel's port is not shared",
                error=str(error),
            )

    def tunnels_changed(self) -> None:
        """The node may have a tunnel now that it could not have when this was started."""
        if self._running:
            self.share_port()

    def look(self) -> None:
        """Puts right what others have changed in the kernel."""
        if self._running:
            self.share_port()
            self.role.service.look()

    def report(self) -> NatTraversalStatus:
        """For `limpet status`."""
        role = self.role
        return NatTraversalStatus(
            relays=self.relays.report(),
            relaying=role.service.report() if role.service.has_role else None,
            relaying_tls=role.server.report() if role.server is not None else None,
            tls=self.relays.streams.report(),
        )
