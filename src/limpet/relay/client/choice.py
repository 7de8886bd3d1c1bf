"""Relays that a node uses for peers: what is sent and opened next. Pure, time passed in.

A peer that needs a relay gets ends at the two nearest, so that one may die. Which relays the other
end has chosen is heard from them: an end is bound there too, and of two that chose differently
the one with the higher uid follows. Where no relay, or no port of a pair, answers, streams open.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from limpet.base.addresses import Endpoint
from limpet.base.bounds.members import RELAY_ENDS
from limpet.base.rate_limit import DueQueue
from limpet.datapath.event import RelayEndsChanged
from limpet.relay.client.contact import Contacts, Line, RelaySite, SendLimits
from limpet.relay.client.end import End, Phase, recheck_s
from limpet.relay.client.peer import (
    SETTLED_S,
    CloseStreams,
    Needs,
    OpenStream,
    RelayPeer,
    Stream,
    StreamEvent,
    StreamFailed,
    StreamOpened,
    StreamPlan,
    StreamWanted,
)
from limpet.relay.messages import Bound, Check, FreePair, Pair, Refusal, RelayMessage, Seen, Token

TWO_UP_TO = 32
"""Peers that get a second relay: a relay gives a node so many pairs and no more."""
_FULL_S = 60.0
_NUDGE_S, _HURRY_S, _MOVED_S = 1.0, 5.0, 5.0


@dataclass(frozen=True, slots=True)
class Send:
    relay: str
    endpoint: Endpoint
    message: RelayMessage
    """A check goes to the port of a pair, all others to the relay's tunnel's port."""


@dataclass(frozen=True, slots=True)
class SeenAs:
    """A relay that was asked has said where the question came from."""

    asked_at: Endpoint
    seen_as: Endpoint


Effect = Send | OpenStream | CloseStreams | RelayEndsChanged | SeenAs


class RelayChoice:
    """Each call returns what has to be done now; `tick` is due at `wake_at_s`."""

    def __init__(self, own_uid: str, contacts: Contacts) -> None:
        """`contacts`: that know of no relay yet."""
        self.contacts = contacts
        self.peers: dict[str, RelayPeer] = {}
        self._own = own_uid
        self._make_nonce = contacts.make_nonce
        self._effects: list[Effect] = []
        self._due: DueQueue[Line | End | RelayPeer] = DueQueue()
        self._streams = StreamPlan(own_uid, self.contacts)
        self._full: dict[str, float] = {}
        """Relays without room, by uid, and until when they are asked for no more pairs."""
        self._by_port: dict[tuple[str, int], End] = {}
        self._needs = Needs()
        self._limits = SendLimits()

    @property
    def wake_at_s(self) -> float:
        due_s = self._due.first_s
        if due_s < math.inf:
            due_s = max(due_s, self._limits.spent_s)
        if self._needs.short and not self._needs.in_silence:
            due_s = min(due_s, self.contacts.silent_from_s())
        return due_s

    # What is known changes

    def set_sites(self, sites: Mapping[str, RelaySite], now_s: float) -> list[Effect]:
        """All relays that there are, by their uids."""
        others = {uid: site for uid, site in sites.items() if uid != self._own}
        for gone in self.contacts.set_sites(others, now_s):
            self._due.drop(gone)
        self._put_lines()
        for peer in list(self.peers.values()):
            for end in [end for uid, end in peer.ends.items() if uid not in others]:
                self._drop_end(peer, end)
            for uid in peer.streams.keys() - others.keys():
                del peer.streams[uid]
            self._plan(peer, now_s)
        return self._done(now_s)

    def network_changed(self, now_s: float) -> list[Effect]:
        """The node's links have changed: every line and end is checked."""
        self._hurry(now_s)
        self._check_all(now_s)
        for peer in list(self.peers.values()):
            for stream in peer.streams.values():
                stream.hurry(now_s)
            self._plan(peer, now_s)
        return self._done(now_s)

    def mapping_moved(self, now_s: float) -> list[Effect]:
        """A NAT maps us to another endpoint: the nearest relays and all ends are checked."""
        if now_s >= self._limits.moved_s + _MOVED_S:
            self._limits.moved_s = now_s
            self._hurry(now_s, self.contacts.nearest)
            self._check_all(now_s)
        return self._done(now_s)

    def look_again(self, now_s: float) -> list[Effect]:
        """The nearest relays are asked how they see the node."""
        if now_s >= self._limits.hurried_s + _HURRY_S:
            self._limits.hurried_s = now_s
            self._hurry(now_s, self.contacts.nearest)
        return self._done(now_s)

    def met(self, uid: str, now_s: float) -> list[Effect]:
        """A node has answered as a peer: if it is a relay that counts as dead, it is asked now."""
        if uid in self.contacts.sites and self.contacts.best_line(uid) is None:
            self._hurry(now_s, (uid,))
        return self._done(now_s)

    def need(self, uid: str, wanted: bool, now_s: float) -> list[Effect]:
        """Whether a relay has to lead to the peer; said again, its ends are checked at once."""
        peer = self.peers.get(uid)
        if wanted:
            peer = self.peers.setdefault(uid, RelayPeer(uid))
            peer.needed = True
            self._needs.needed.add(uid)
            peer.nudge_s = max(now_s, peer.nudged_s + _NUDGE_S)
            self._plan(peer, now_s)
        elif peer is not None:
            self._release(peer, now_s)
        return self._done(now_s)

    def drop(self, uid: str, now_s: float) -> list[Effect]:
        """The peer has left the cluster, or may not talk with this node any more."""
        peer = self.peers.get(uid)
        if peer is not None:
            for end in peer.ends.values():
                end.interest.invited_s = -math.inf
            self._release(peer, now_s)
        return self._done(now_s)

    def _release(self, peer: RelayPeer, now_s: float) -> None:
        peer.needed = False
        self._needs.needed.discard(peer.uid)
        for end in list(peer.ends.values()):
            self._let_go(peer, end, now_s)
        self._plan(peer, now_s)

    def _nudge(self, peer: RelayPeer, now_s: float) -> None:
        for end in peer.ends.values():
            self._hurry_end(end, now_s)
        if self.contacts.nearest:
            self._hurry(now_s, peer.ends)
        elif now_s >= self._limits.hurried_s + _HURRY_S:
            self._limits.hurried_s = now_s
            self._hurry(now_s)

    def _hurry(self, now_s: float, uids: Iterable[str] | None = None) -> None:
        self.contacts.hurry(now_s, uids)
        self._put_lines()

    def _hurry_end(self, end: End, now_s: float) -> None:
        end.follow(self.contacts.place_of(end.relay), now_s)
        end.hurry(now_s)
        self._due.put(end, end.next_s)

    def _check_all(self, now_s: float) -> None:
        for peer in self.peers.values():
            for end in peer.ends.values():
                self._hurry_end(end, now_s)

    def _put_lines(self) -> None:
        for line in self.contacts.lines.values():
            self._due.put(line, line.next_s)

    # Time

    def tick(self, now_s: float) -> list[Effect]:
        while self._limits.spent_s <= now_s and (item := self._due.take(now_s)) is not None:
            if isinstance(item, Line):
                self._ask_line(item, now_s)
            elif isinstance(item, End):
                self._ask_end(item, now_s)
            else:
                self._plan(item, now_s)
        return self._done(now_s)

    def _ask_line(self, line: Line, now_s: float) -> None:
        was_alive = line.alive
        for endpoint, hello in self.contacts.take_due(line, now_s, urgent=bool(self._needs.short)):
            self._send(line.relay, endpoint, hello, now_s)
        self._put_lines()
        if was_alive and not line.alive:
            self._leave(line, now_s)

    def _leave(self, line: Line, now_s: float) -> None:
        """A relay is not reached by this IP version any more."""
        other = self.contacts.place_of(line.relay)
        for peer in list(self.peers.values()):
            end = peer.ends.get(line.relay)
            if end is None or end.address[0].version != line.version:
                continue
            if other is not None:
                end.begin(other, now_s)
                self._due.put(end, end.next_s)
            else:
                self._drop_end(peer, end)
            self._plan(peer, now_s)

    def _ask_end(self, end: End, now_s: float) -> None:
        peer = self.peers[end.peer]
        given_up = end.phase is Phase.FAILED and end.relay not in self._wanted(peer, now_s)
        if given_up or not end.is_kept(now_s):
            self._drop_end(peer, end)
            self._plan(peer, now_s)
            return
        if end.interest.is_unsure(now_s):
            self._hurry(now_s, (end.relay,))
        if line := self.contacts.lines.get((end.relay, end.address[0].version)):
            end.sent.quick_s = line.quick_s
        before = end.port.bound
        end.follow(self.contacts.place_of(end.relay), now_s)
        for message in end.take_due(now_s, self._make_nonce):
            self._send_by(end, message, now_s)
        self._due.put(end, end.next_s)
        failed, was_lost = end.phase is Phase.FAILED, before and not end.port.bound
        if failed and not end.interest.wanted:
            self._drop_end(peer, end)  # the peer, who wanted it, has given it up
        if was_lost or (failed and end.interest.wanted):
            self._hurry(now_s, (end.relay,))  # one that is only invited would ask for ever
        if was_lost or failed:
            self._plan(peer, now_s)

    def _send_by(self, end: End, message: RelayMessage, now_s: float) -> None:
        port = end.port.number if isinstance(message, Check) else end.address[1]
        self._send(end.relay, (end.address[0], port), message, now_s)

    def _send(self, relay: str, endpoint: Endpoint, message: RelayMessage, now_s: float) -> None:
        self._limits.spend(now_s)
        self._effects.append(Send(relay, endpoint, message))

    # Hearing

    def heard(
        self, relay: str, message: RelayMessage, source: Endpoint, now_s: float
    ) -> list[Effect]:
        """A relay has said it, from `source`. Of a pair: with a peer that the node may talk to."""
        match message:
            case Seen():
                self._seen(relay, message, source, now_s)
            case Pair():
                self._told(relay, message, now_s)
            case Token() | Bound():
                end = self._by_port.get((relay, message.port))
                if end is not None:
                    self._checked(end, message, now_s)
        return self._done(now_s)

    def _seen(self, relay: str, seen: Seen, source: Endpoint, now_s: float) -> None:
        before = self.contacts.place_of(relay)
        line = self.contacts.seen(relay, seen.nonce, source, now_s)
        if line is None:
            return
        self._effects.append(SeenAs(source, seen.endpoint))
        if seen.pairs_left:
            self._full.pop(relay, None)
        else:
            self._full[relay] = now_s + _FULL_S
        self._put_lines()
        if (place := self.contacts.place_of(relay)) != before:
            for end in self._ends_at(relay):
                if end.address != place:
                    self._hurry_end(end, now_s)
        if before is None:
            for uid in list(self._needs.needed):
                if uid in self._needs.short or len(self.peers[uid].ends) < self._ends_each:
                    self._plan(self.peers[uid], now_s)

    def _told(self, relay: str, pair: Pair, now_s: float) -> None:
        peer = self.peers.get(pair.peer)
        end = peer.ends.get(relay) if peer is not None else None
        if end is None and not any(pair.nonce) and pair.port:
            place = self.contacts.place_of(relay)
            if place is not None and len(self._ends_at(relay)) < RELAY_ENDS.most:
                peer = self.peers.setdefault(pair.peer, RelayPeer(pair.peer))
                end = self._begin_end(peer, relay, place, now_s)
                end.interest.wanted = False
        if peer is None or end is None:
            return
        if pair.refusal in (Refusal.QUOTA, Refusal.FULL):
            self._full[relay] = now_s + _FULL_S
        self._forget_port(end)  # it may have another one now
        end.told(pair, now_s)
        if end.port.number:
            self._by_port[relay, end.port.number] = end
        self._due.put(end, end.next_s)
        self._plan(peer, now_s)

    def _checked(self, end: End, message: Token | Bound, now_s: float) -> None:
        if isinstance(message, Token):
            check = end.token(message, now_s, self._make_nonce())
            if check is not None:
                self._send_by(end, check, now_s)
                if (stream := self.peers[end.peer].streams.get(end.relay)) is not None:
                    stream.displaced = True
        else:
            if end.bind(message, now_s, recheck_s(len(self._by_port), self.contacts.haste)):
                self._effects.append(SeenAs((end.address[0], end.port.number), message.endpoint))
            self._plan(self.peers[end.peer], now_s)
        self._due.put(end, end.next_s)

    def stream_changed(self, event: StreamEvent, now_s: float) -> list[Effect]:
        peer = self.peers.get(event.peer)
        match event:
            case StreamOpened(uid, end):
                stream = peer.streams.get(end.relay) if peer is not None else None
                if stream is not None:
                    stream.opened(end)
                else:
                    self._effects.append(CloseStreams(uid))  # it is not needed any more
            case StreamFailed(uid, relay, problem):
                if peer is not None and relay in peer.streams:
                    peer.streams[relay].failed(problem, now_s)
                elif peer is None or not peer.streams:
                    self._effects.append(CloseStreams(uid))  # the relay may open it late
            case StreamWanted(uid, relay) if peer is not None and peer.needed and not peer.bound:
                if relay not in peer.streams:
                    peer.streams[relay] = Stream()
                    self._effects.append(OpenStream(uid, relay))
        if peer is not None:
            self._plan(peer, now_s)
        return self._done(now_s)

    # What follows

    def _wanted(self, peer: RelayPeer, now_s: float) -> tuple[str, ...]:
        if not peer.needed:
            return ()
        follows = self._own > peer.uid
        return peer.wanted_relays(self.contacts, self._full, now_s, follows=follows)[
            : self._ends_each
        ]

    @property
    def _ends_each(self) -> int:
        return 2 if len(self._needs.needed) <= TWO_UP_TO else 1

    def _plan(self, peer: RelayPeer, now_s: float) -> None:
        """Begins the ends that the peer lacks and gives up those that it does not need."""
        if peer.nudge_s <= now_s:
            peer.nudge_s, peer.nudged_s = math.inf, now_s
            self._nudge(peer, now_s)
        wanted = self._wanted(peer, now_s)
        for relay in wanted:
            end, place = peer.ends.get(relay), self.contacts.place_of(relay)
            if end is None and place is not None:
                end = self._begin_end(peer, relay, place, now_s)
            if end is not None and not end.interest.wanted:
                end.interest.wanted = True
                self._hurry_end(end, now_s)  # only who asks keeps a pair
        long_bound = {end.relay for end in peer.bound if end.port.bound_s <= now_s - SETTLED_S}
        if wanted and long_bound.issuperset(wanted):
            for end in [end for uid, end in peer.ends.items() if uid not in wanted]:
                self._let_go(peer, end, now_s)
        bound = peer.bound
        peer.endless_s = min(peer.endless_s, now_s) if peer.needed and not bound else math.inf
        self._effects += self._streams.plan(peer, self._ends_each, now_s)
        ends = peer.ends_now(self.contacts)
        if ends != peer.told:
            peer.told = ends
            self._effects.append(RelayEndsChanged(peer.uid, ends))
        if peer.needed and len(bound) < max(len(wanted), 1):
            self._needs.short.add(peer.uid)
        else:
            self._needs.short.discard(peer.uid)
        if peer.needed or peer.ends or peer.streams:
            self._due.put(peer, peer.next_look_s(now_s, short=peer.uid in self._needs.short))
        else:
            self._due.drop(peer)
            self.peers.pop(peer.uid, None)

    def _ends_at(self, relay: str) -> list[End]:
        return [peer.ends[relay] for peer in self.peers.values() if relay in peer.ends]

    def _begin_end(self, peer: RelayPeer, relay: str, address: Endpoint, now_s: float) -> End:
        end = peer.ends[relay] = End(peer.uid, relay, address, now_s)
        self._due.put(end, now_s)
        return end

    def _let_go(self, peer: RelayPeer, end: End, now_s: float) -> None:
        """This node gives the end up; the peer may still want it."""
        if end.interest.wanted and (end.port.number or end.sent.asked):
            free = FreePair(self._make_nonce(), peer.uid)
            self._send(end.relay, end.address, free, now_s)
            end.interest.kept_s = -math.inf
        end.interest.wanted = False
        if not end.is_kept(now_s):
            self._drop_end(peer, end)

    def _drop_end(self, peer: RelayPeer, end: End) -> None:
        self._due.drop(end)
        peer.ends.pop(end.relay, None)
        self._forget_port(end)

    def _forget_port(self, end: End) -> None:
        if self._by_port.get((end.relay, end.port.number)) is end:
            del self._by_port[end.relay, end.port.number]

    def _done(self, now_s: float) -> list[Effect]:
        silent = self.contacts.is_silent(now_s)
        if silent and not self._needs.in_silence:
            self._needs.in_silence = True
            for uid in list(self._needs.short):
                self._plan(self.peers[uid], now_s)
        self._needs.in_silence = silent
        effects, self._effects = self._effects, []
        return effects
