"""Streams of nodes whose UDP is blocked, at the relay that they reach: to others, and to itself."""

from __future__ import annotations

from collections.abc import Callable

from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import RelayEnd
from limpet.datapath.event import OwnEndChanged, Tell
from limpet.relay.messages import Refusal
from limpet.relay.server.service import RelayRefused
from limpet.relay.server.tls_node import StreamEnd, StreamService
from limpet.relay.stream.loopback_peer import LoopbackPeer


class OwnStreams:
    """What is for the relay node itself goes to its own tunnel, by a socket on loopback."""

    def __init__(
        self,
        service: StreamService,
        *,
        uid: str,
        tunnel_port: int,
        may_talk: Callable[[str], bool],
        tell: Tell,
    ) -> None:
        """Tells OwnEndChanged. `uid`: of this node."""
        self._service = service
        self._uid = uid
        self._tunnel_port = tunnel_port
        self._may_talk = may_talk
        self._tell = tell
        self._ends: dict[str, _OwnStream] = {}

    def attach_stream(
        self, uid: str, peer_uid: str, on_packet: Callable[[bytes], None]
    ) -> StreamEnd:
        """As `StreamService`. Raises: RelayRefused, KernelError."""
        if peer_uid != self._uid:
            return self._service.attach_stream(uid, peer_uid, on_packet)
        if not self._may_talk(uid):
            raise RelayRefused(Refusal.MAY_NOT_TALK, uid, peer_uid)
        peer = LoopbackPeer(self._tunnel_port, on_packet)
        before = self._ends.pop(uid, None)
        if before is not None:
            before.peer.close()
        end = self._ends[uid] = _OwnStream(peer, lambda: self._closed(uid, peer))
        self._tell(OwnEndChanged(uid, RelayEnd(self._uid, peer.endpoint, transports.RELAY_TLS)))
        return end

    def look(self) -> None:
        """Ends those of nodes that may not talk with this one any more."""
        for uid, end in list(self._ends.items()):
            if not self._may_talk(uid):
                self._closed(uid, end.peer)
                end.on_gone()

    def _closed(self, uid: str, peer: LoopbackPeer) -> None:
        peer.close()
        end = self._ends.get(uid)
        if end is not None and end.peer is peer:
            del self._ends[uid]
            self._tell(OwnEndChanged(uid, None))


class _OwnStream:
    def __init__(self, peer: LoopbackPeer, on_close: Callable[[], None]) -> None:
        self.on_gone: Callable[[], None] = lambda: None
        self.peer = peer
        self._on_close = on_close

    def send(self, packet: bytes) -> None:
        self.peer.deliver((packet,))

    def close(self) -> None:
        self._on_close()
