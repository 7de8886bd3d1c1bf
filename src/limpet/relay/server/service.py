"""What a node does that has the relay role: joins pairs of nodes, and reads nothing of theirs.

Pairs are the kernel's to keep: an agent that starts again takes them up from there, and what they
carry never stops meanwhile. Those that need the agent itself (TLS connections, two IP versions) are
made again by the nodes, which check their ends several times a minute.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from limpet.base.addresses import is_public
from limpet.base.errors import LimpetError
from limpet.base.settings import RelaySettings
from limpet.base.timer import Timer
from limpet.cluster.datagrams.peer_datagram import BodyKind, DatagramError, DropReason
from limpet.cluster.datagrams.peer_socket import PeerSocket, Received
from limpet.cluster.membership import Membership, News
from limpet.datapath.event import RelayingChanged, Tell
from limpet.relay.messages import (
    KIND_OF,
    AskPair,
    Bound,
    Check,
    FreePair,
    Hello,
    Pair,
    Refusal,
    RelayMessage,
    Seen,
    Token,
    encode,
    parse,
)
from limpet.relay.server.pair_paths import RelayPaths, remove_leftovers
from limpet.relay.server.pairs import LIFETIME_S, Checked, PairEnd, Relaying, UdpFlow
from limpet.relay.server.streams import RelayRefused, StreamEnd
from limpet.relay.server.unasked_pairs import UnaskedPairs
from limpet.relay.status import Relaying as RelayingStatus
from limpet.relay.status import RelayingPair
from limpet.relay.stream.packet_socket import Sink

_log = structlog.get_logger("relay")

_TICK_S = 5.0
_TELL_AGAIN_S = (0.3, 1.0, 3.0)
"""Delays between further PAIR messages to a node that has not bound its end yet."""
_HANDLED = (BodyKind.RELAY_HELLO, BodyKind.RELAY_ASK, BodyKind.RELAY_CHECK, BodyKind.RELAY_FREE)


@dataclass(slots=True)
class _Run:
    """State of the relay while the node has the role."""

    paths: RelayPaths | None = None
    """None: the node is no relay now."""
    tunnel_port: int = 0
    trouble: str = ""
    began_s: float = 0.0
    heard_s: dict[str, float] = field(default_factory=dict)
    """When a node last greeted, was given a pair, and checked an end by a port of it."""


class RelayService:
    """Runs on the event loop's thread; does nothing on a node without the role."""

    def __init__(
        self,
        membership: Membership,
        courier: PeerSocket,
        settings: RelaySettings,
        *,
        resync_s: float,
        tell: Tell,
    ) -> None:
        """Tells RelayingChanged and NodeAwaited. `resync_s`: so often the kernel is looked at."""
        self.counters: Counter[str] = Counter()
        """Pairs, checks and refusals by what became of them, and packets that the agent lost."""
        self._membership = membership
        self._courier = courier
        self._settings = settings
        self._resync_s = resync_s
        self._tell = tell
        self._pairs = self._no_pairs()
        self._run = _Run()
        self._unasked = UnaskedPairs(courier, tell)
        self._alarm = Timer("relay", self._tick)
        self._running = False

    def _no_pairs(self) -> Relaying:
        ports, most = self._settings.ports, self._settings.pairs_per_node
        return Relaying(ports, most, os.urandom(32))

    @property
    def active(self) -> bool:
        """The node is a relay and works as one."""
        return self._run.paths is not None

    @property
    def trouble(self) -> str:
        """Why the relay works badly or not at all; empty: it works, as far as known."""
        return self._run.trouble or (self._run.paths.trouble if self._run.paths is not None else "")

    def start(self) -> None:
        """Follows the node's grant from now on. To be called in the node's network namespace."""
        self._running = True
        for kind in _HANDLED:
            self._courier.on(kind, self._received)
        if not self.has_role:
            remove_leftovers(self._settings.ports)
        self._follow_role()

    async def stop(self) -> None:
        """Ends; the kernel goes on forwarding, and the next start takes the pairs up from it."""
        self._running = False
        self._close(keep_table=True)

    def look(self) -> None:
        """Repairs the nftables table; to be called when others may have changed it."""
        if self._run.paths is not None:
            self._run.paths.look()

    # The role

    @property
    def has_role(self) -> bool:
        """The node's grant makes it a relay, whether it works as one or not."""
        return self._membership.is_relay(self._membership.uid)

    def _follow_role(self) -> None:
        """Starts, restarts or stops relaying when the role or the tunnel's port has changed."""
        presence = self._membership.presence
        port = presence.tunnel_port if presence is not None else 0
        if self._run.paths is not None and (not self.has_role or port != self._run.tunnel_port):
            self._close(keep_table=self.has_role)
            if not self.has_role:
                _log.info("this node relays no more")
        if self._run.paths is None and self.has_role and port and self._running:
            self._open(port)
        if self._run.paths is not None:
            self._look_at_addresses()
        if not self._alarm.is_set and self.has_role and self._running:
            self._alarm.set_in(_TICK_S)

    def _open(self, tunnel_port: int) -> None:
        first, last = self._settings.ports
        taken = {"the tunnel": tunnel_port, "the agent (peer_port)": self._courier.port}
        for whose, port in taken.items():
            if first <= port <= last:
                cause = f"relay_ports {first}-{last} hold the port of {whose}, {port}: set others"
                self._complain(f"relay packets: {cause}")
                return
        paths: RelayPaths | None = None
        try:
            paths = RelayPaths(
                self._settings,
                self.counters,
                lambda: list(self._pairs.pairs()),
                resync_s=self._resync_s,
            )
            self._pairs = self._no_pairs()
            self._pairs.adopt(paths.kept(), time.monotonic())
            self._pairs.keep(self._allowed, [end for end, _ in self._pairs.pairs()])
            paths.begin(tunnel_port)
        except LimpetError as error:
            if paths is not None:
                paths.close(keep_table=True)
            self._complain(str(error))
            return
        self._run = _Run(paths, tunnel_port, began_s=time.monotonic())
        self._courier.reflect(on=True)
        _log.info("relaying", ports=f"{first}-{last}", pairs_kept=len(self._pairs))
        self._tell(RelayingChanged())

    def _close(self, *, keep_table: bool) -> None:
        self._alarm.stop()
        paths, self._run.paths = self._run.paths, None
        self._courier.reflect(on=False)
        if paths is not None:
            paths.close(keep_table=keep_table)
            self._tell(RelayingChanged())
        self._pairs = self._no_pairs()

    def _look_at_addresses(self) -> None:
        presence = self._membership.presence
        assert presence is not None  # it told the tunnel's port
        known = [*presence.addresses, *(address for address, _ in presence.endpoints)]
        if any(map(is_public, known)):
            self._run.trouble = ""
            return
        first, last = self._settings.ports
        self._complain(
            "relay packets: this node has no public address, so other sites will not reach it "
            f"(forward UDP ports {self._run.tunnel_port} and {first}-{last} to it and set "
            "tunnel_endpoints, or take the role from it)"
        )

    def _complain(self, trouble: str) -> None:
        if trouble != self._run.trouble:
            _log.error("this relay is of little use", cause=trouble)
        self._run.trouble = trouble

    def _tick(self) -> None:
        if self._run.paths is not None:
            self._gone(self._pairs.expire(time.monotonic()), "expired")
            self._run.paths.check()
        self._follow_role()

    def hear(self, news: News) -> None:
        if not self._running:
            return
        if self._membership.uid in news.uids:
            self._follow_role()
        for uid in news.uids:
            if not self._membership.is_member(uid):
                self._unasked.places.pop(uid, None)
        changed = (
            [end for end, _ in self._pairs.pairs()]
            if news.network or self._membership.uid in news.uids
            else [end for uid in news.uids for end in self._pairs.of(uid)]
        )
        self._gone(self._pairs.keep(self._allowed, changed), "not_allowed")

    # Who may

    def _allowed(self, uid: str, peer: str) -> bool:
        is_own = self._membership.uid in (uid, peer)
        return not is_own and self._membership.may_talk(uid, peer)

    def _ask(self, uid: str, peer: str) -> PairEnd | Refusal:
        before = len(self._pairs)
        asked: PairEnd | Refusal = Refusal.NO_RELAY
        if self._run.paths is not None:
            asked = Refusal.MAY_NOT_TALK
            if self._allowed(uid, peer):
                asked = self._pairs.ask(uid, peer, time.monotonic())
        if isinstance(asked, Refusal):
            self.counters[f"refused_{asked.name.lower()}"] += 1
        self.counters["pairs"] += len(self._pairs) - before
        return asked

    # What nodes say

    def _received(self, received: Received) -> None:
        """Raises: DatagramError, which the courier counts."""
        if not self._membership.is_member(received.uid):
            raise DatagramError(DropReason.UNHANDLED, "its sender is no member")
        if not received.by_tunnel or received.address.is_link_local:
            raise DatagramError(DropReason.UNHANDLED, "it did not come to the tunnel's port")
        message = parse(received.kind, received.body)
        if isinstance(message, Check) is not received.to_relay:
            raise DatagramError(DropReason.MALFORMED, "it came to the wrong kind of port")
        place = UdpFlow((received.address, received.port), received.to_address)
        match message:
            case AskPair():
                self._asked(received, place, message)
            case _ if self._run.paths is None:
                raise DatagramError(DropReason.UNHANDLED, "this node is no relay")
            case Hello():
                self._greeted(received, place, message)
            case Check():
                self._checked(received, place, message)
            case FreePair():
                self._run.heard_s.pop("ask", None)
                end = self._pairs.end(received.uid, message.peer)
                if end is not None and self._pairs.free(received.uid, message.peer):
                    self._gone([end], "freed")

    def _greeted(self, received: Received, place: UdpFlow, hello: Hello) -> None:
        self._unasked.places[received.uid] = place
        self._run.heard_s["hello"] = time.monotonic()
        left = self._pairs.pairs_left(received.uid)
        self._answer(received, Seen(hello.nonce, place.remote, min(left, 0xFFFF)))
        self._unasked.tell_some(self._pairs.awaited(received.uid))

    def _asked(self, received: Received, place: UdpFlow, ask: AskPair) -> None:
        self._unasked.places[received.uid] = place
        asked = self._ask(received.uid, ask.peer)
        if isinstance(asked, Refusal):
            self._answer(received, Pair(ask.nonce, ask.peer, 0, asked))
            return
        self._run.heard_s["ask"] = time.monotonic()
        self._answer(received, Pair(ask.nonce, ask.peer, asked.port, lifetime_s=LIFETIME_S))
        self._call(asked.other)

    def _checked(self, received: Received, place: UdpFlow, check: Check) -> None:
        uid, now_s = received.uid, time.monotonic()
        self._run.heard_s["check"] = now_s
        outcome = self._pairs.check(uid, check.port, place, check.token, now_s)
        if check.token or outcome is Checked.NO_PAIR:
            self.counters[f"check_{outcome.value}"] += 1
        if outcome is Checked.MOVED:
            self._settle(check.port)
        if outcome is not Checked.NO_PAIR and self._run.paths is not None:
            self._run.paths.name(check.port)
        if outcome in (Checked.MOVED, Checked.SAME):
            self._answer(received, Bound(check.nonce, check.port, place.remote))
            return
        token = self._pairs.make_token(uid, check.port, place, now_s)
        if token is not None:  # also for one that is too old, so that it need not ask twice
            self._answer(received, Token(check.nonce, check.port, token))

    def _answer(self, received: Received, message: RelayMessage) -> None:
        self._courier.answer(received, KIND_OF[type(message)], encode(message))

    def _call(self, port: int) -> None:
        """Tells the node that owns this port of the pair, again until it has bound it."""
        loop = asyncio.get_running_loop()

        def again(delays: tuple[float, ...]) -> None:
            end = self._pairs.at(port)
            if end is None or self._run.paths is None:
                return
            self._unasked.tell(end)
            if not end.reachable and delays:
                loop.call_later(delays[0], again, delays[1:])  # it looks anew each time

        again(_TELL_AGAIN_S)

    # Streams

    def attach_stream(
        self, uid: str, peer_uid: str, on_packet: Sink, on_gone: Callable[[], None]
    ) -> StreamEnd:
        """A TLS connection of `uid` is its end of the pair from now on, in place of an earlier one.

        What comes from the node by UDP is still taken, and a check that comes by UDP turns what is
        for the node to there. Raises: RelayRefused.
        """
        asked = self._ask(uid, peer_uid)
        if isinstance(asked, Refusal):
            raise RelayRefused(asked, uid, peer_uid)
        assert self._run.paths is not None
        stream = StreamEnd(on_packet, on_gone, self._detach, asked.port)
        self._run.paths.attach(stream)
        self._pairs.attach(asked.port)
        self._settle(asked.port)
        self._call(asked.other)
        return stream

    def _detach(self, stream: StreamEnd) -> None:
        if self._run.paths is not None and self._run.paths.detach(stream):
            self._pairs.detach(stream.port, time.monotonic())
            self._settle(stream.port)

    # What follows

    def _settle(self, port: int) -> None:
        end = self._pairs.at(port)
        other = self._pairs.at(end.other) if end is not None else None
        if end is not None and other is not None and self._run.paths is not None:
            self._run.paths.settle(end, other)

    def _gone(self, ends: list[PairEnd], why: str) -> None:
        """Drops freed pairs from the kernel and counts them under `why`."""
        if ends and self._run.paths is not None:
            self.counters[why] += len(ends)
            self._run.paths.drop([port for end in ends for port in (end.port, end.other)])

    def report(self) -> RelayingStatus:
        """For `limpet status`. `heard_s`: seconds since a message of each kind came."""
        if self._run.paths is None:
            return RelayingStatus(active=False, trouble=self.trouble)
        now_s = time.monotonic()
        heard = {
            kind: round(now_s - self._run.heard_s[kind], 1) if kind in self._run.heard_s else None
            for kind in ("hello", "ask", "check")
        }
        return RelayingStatus(
            active=True,
            trouble=self.trouble,
            for_s=round(now_s - self._run.began_s, 1),
            heard_s=heard,
            ports=self._settings.ports,
            pairs=[
                RelayingPair(nodes=[one.uid, other.uid], ways=[_way(one), _way(other)])
                for one, other in self._pairs.pairs()
            ],
            packets=self._run.paths.packets(),
            bytes_per_s=self._run.paths.throughput.bytes_per_s,
            node_bytes_per_s=self._settings.bytes_per_s,
            counters=dict(self.counters),
        )


def _way(end: PairEnd) -> str:
    if end.by_stream:
        return "tls"
    return "-" if end.place is None else f"{end.place.remote[0]} port {end.place.remote[1]}"
