"""Ends of pairs that are TLS connections of nodes whose UDP is blocked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from limpet.base.errors import LimpetError
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import RelayEnd
from limpet.datapath.event import OwnEndChanged, Tell
from limpet.relay.messages import REASONS, Refusal
from limpet.relay.stream.packet_socket import Sink, loopback_socket, nowhere


class RelayRefused(LimpetError):
    """A relay gives no pair of ports."""

    def __init__(self, refusal: Refusal, uid: str, peer: str) -> None:
        super().__init__(f"join {uid} and {peer}: {REASONS[refusal]}")
        self.refusal = refusal


@dataclass(slots=True, eq=False)
class StreamEnd:
    """A TLS connection of a node as its end of a pair."""

    on_packet: Sink
    """Takes what is for the node."""
    on_gone: Callable[[], None]
    """Is told when the pair is no more, though the node has not closed this end."""
    on_close: Callable[[StreamEnd], None]
    port: int = 0
    """The relay's for the node; 0: the relay is itself the peer."""
    onward: Sink = nowhere
    """Takes what the node sends to the peer, wherever that is now."""

    def close(self) -> None:
        """The node has closed it. The pair stays for a while, for whoever comes back."""
        self.on_close(self)


Attach = Callable[[str, str, Sink, Callable[[], None]], StreamEnd]
"""Makes a stream of a node (uid) its end of the pair with a peer (uid). Raises: LimpetError."""


class OwnStreams:
    """What is for the relay node itself goes to its own tunnel, by a socket on loopback."""

    def __init__(
        self,
        attach: Attach,
        *,
        uid: str,
        tunnel_port: int,
        may_talk: Callable[[str], bool],
        tell: Tell,
    ) -> None:
        """Tells OwnEndChanged. `attach`: for all other peers. `uid`: of this node."""
        self._attach = attach
        self._uid = uid
        self._tunnel_port = tunnel_port
        self._may_talk = may_talk
        self._tell = tell
        self._ends: dict[str, StreamEnd] = {}

    def attach(
        self, uid: str, peer_uid: str, on_packet: Sink, on_gone: Callable[[], None]
    ) -> StreamEnd:
        """Raises: RelayRefused, KernelError."""
        if peer_uid != self._uid:
            return self._attach(uid, peer_uid, on_packet, on_gone)
        if not self._may_talk(uid):
            raise RelayRefused(Refusal.MAY_NOT_TALK, uid, peer_uid)
        tunnel = loopback_socket(self._tunnel_port, Counter())
        tunnel.onward = on_packet

        def close(end: StreamEnd) -> None:
            tunnel.close()
            if self._ends.get(uid) is end:
                del self._ends[uid]
                self._tell(OwnEndChanged(uid, None))

        before = self._ends.get(uid)
        end = self._ends[uid] = StreamEnd(on_packet, on_gone, close, onward=tunnel.send)
        if before is not None:
            before.close()
        self._tell(OwnEndChanged(uid, RelayEnd(self._uid, tunnel.local, transports.RELAY_TLS)))
        return end

    def look(self) -> None:
        """Ends those of nodes that may not talk with this one any more."""
        for uid, end in list(self._ends.items()):
            if not self._may_talk(uid):
                end.close()
                end.on_gone()
