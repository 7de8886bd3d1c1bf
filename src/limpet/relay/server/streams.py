"""Nodes whose UDP is blocked, as their relay has them: a TLS connection with channels, each an end
of a pair."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from limpet.base.bounds.members import RELAY_ASKS, RELAY_ASKS_PER_S, RELAY_SILENT_S
from limpet.base.errors import LimpetError
from limpet.base.rate_limit import TokenBucket
from limpet.cluster.membership import Membership
from limpet.cluster.topology import transports
from limpet.cluster.topology.paths import RelayEnd
from limpet.datapath.event import OwnEndChanged, Tell
from limpet.relay.messages import REASONS, Refusal
from limpet.relay.stream.codec import (
    Close,
    Control,
    Open,
    Opened,
    Ping,
    Pong,
    Refused,
    StreamError,
)
from limpet.relay.stream.packet_socket import Sink, loopback_socket, nowhere
from limpet.relay.stream.session import TlsSession

_log = structlog.get_logger("relay")

IDLE_S = float(RELAY_SILENT_S.most)


class RelayRefused(LimpetError):
    """A relay gives no pair of ports."""

    def __init__(self, refusal: Refusal, uid: str, peer: str) -> None:
        super().__init__(f"join {uid} and {peer}: {REASONS[refusal]}")
        self.refusal = refusal


@dataclass(slots=True, eq=False)
class StreamEnd:
    """A TLS connection of a node as its end of a pair."""

    on_packet: Sink
    """Takes packets for the node."""
    on_gone: Callable[[], None]
    """Is told when the pair is no more, though the node has not closed this end."""
    on_close: Callable[[StreamEnd], None]
    port: int = 0
    """The relay's for the node; 0: the relay is itself the peer."""
    onward: Sink = nowhere
    """Takes packets from the node to the peer, by whatever way leads there now."""

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
        membership: Membership,
        *,
        tunnel_port: int,
        tell: Tell,
    ) -> None:
        """Tells OwnEndChanged. `attach`: for all other peers."""
        self._attach = attach
        self._uid = membership.uid
        self._tunnel_port = tunnel_port
        self._membership = membership
        self._tell = tell
        self._ends: dict[str, StreamEnd] = {}

    def attach(
        self, uid: str, peer_uid: str, on_packet: Sink, on_gone: Callable[[], None]
    ) -> StreamEnd:
        """Raises: RelayRefused, KernelError."""
        if peer_uid != self._uid:
            return self._attach(uid, peer_uid, on_packet, on_gone)
        if not self._membership.may_talk(uid):
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
            if not self._membership.may_talk(uid):
                end.close()
                end.on_gone()


def ask_rate(now_s: float) -> TokenBucket:
    """How often one node may send what is no packet."""
    return TokenBucket(RELAY_ASKS_PER_S.most, RELAY_ASKS.most, now_s)


class RelayedNode:
    def __init__(
        self,
        uid: str,
        connection: ssl.SSLSocket,
        attach: Attach,
        counters: Counter[str],
        *,
        admit: Callable[[RelayedNode], bool],
        on_end: Callable[[RelayedNode, str], None],
    ) -> None:
        """`admit`: the node has spoken for the first time; False: it is not heard.

        `on_end`: the node's side has ended it, or does not keep to the rules.
        """
        self.uid = uid
        self.spoke = asyncio.Event()
        """Is set with the first frame, or when the connection ends without one."""
        self.session = TlsSession(connection, self)
        self._attach = attach
        self._counters = counters
        self._admit = admit
        self._on_end = on_end
        self._ends: dict[int, tuple[str, StreamEnd]] = {}
        """Peer and end, by channel."""
        self._asks = ask_rate(self.session.heard_s)

    @property
    def peers(self) -> list[str]:
        """Uids of the peers that the node has a channel for."""
        return sorted(peer for peer, _ in self._ends.values())

    @property
    def silent(self) -> bool:
        return asyncio.get_running_loop().time() - self.session.heard_s > IDLE_S

    def close(self) -> None:
        self.session.end("it is not served any more")

    # What the session says

    def session_ended(self, why: str) -> None:
        if self.session.malformed:
            self._counters["malformed"] += 1
            _log.warning(
                "a node's TLS connection was ended", uid=self.uid, error=why, by_others=self.uid
            )
        ends, self._ends = self._ends, {}
        for _, end in ends.values():
            end.close()
        self.spoke.set()
        self._on_end(self, why)

    def deliver(self, channel: int, packets: Sequence[bytes]) -> None:
        if not self._is_admitted():
            return
        found = self._ends.get(channel)
        if found is None:  # packets that were on the way when it was closed, or a node that tries
            self._counters["no_channel"] += len(packets)
            return
        for packet in packets:
            found[1].onward(packet)

    def hear(self, message: Control) -> None:
        """Raises: StreamError."""
        if not self._is_admitted():
            return
        if not self._asks.take(asyncio.get_running_loop().time()):
            raise StreamError("it asks too often")
        match message:
            case Ping():
                self.session.send_control(Pong())
            case Open(channel, peer):
                self._open(channel, peer)
            case Close(channel):
                self._close(channel)
            case _:
                raise StreamError(f"it says {type(message).__name__}, which only a relay says")

    def _is_admitted(self) -> bool:
        if not self.spoke.is_set():
            self.spoke.set()
            if not self._admit(self):
                self.close()
        return not self.session.why_ended

    # Channels

    def _open(self, channel: int, peer: str) -> None:
        """Raises: StreamError."""
        if channel in self._ends:
            raise StreamError(f"it opens channel {channel} twice")
        for before in [number for number, (its, _) in self._ends.items() if its == peer]:
            self._close(before)
        on_packet = partial(self.session.send_packet, channel)
        try:
            end = self._attach(self.uid, peer, on_packet, partial(self._gone, channel))
        except LimpetError as error:
            refusal = getattr(error, "refusal", Refusal.NO_RELAY)
            self._counters[f"refused_{refusal.name.lower()}"] += 1
            self.session.send_control(Refused(channel, refusal))
            return
        self._ends[channel] = (peer, end)
        self.session.send_control(Opened(channel))

    def _gone(self, channel: int) -> None:
        """The pair was freed: a community was left, or a node removed."""
        if channel in self._ends:
            self._close(channel)
            self.session.send_control(Refused(channel, Refusal.MAY_NOT_TALK))

    def _close(self, channel: int) -> None:
        found = self._ends.pop(channel, None)
        if found is not None:
            found[1].close()
