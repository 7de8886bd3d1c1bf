"""The neighbour exchange: what nodes tell each other of the cluster, with the cloud or without."""

from __future__ import annotations

import math
import os
import random
import time
from collections import Counter
from collections.abc import Mapping

import structlog

from limpet.base.addresses import Address, UnderlayLink
from limpet.base.bounds import neighbours as bounds
from limpet.base.rate_limit import TokenBucket, TokenBuckets
from limpet.base.timer import Timer
from limpet.cluster.datagrams.peer_datagram import BodyKind, DatagramError
from limpet.cluster.datagrams.peer_socket import PeerSocket, Received
from limpet.cluster.documents import Key, Source, weight_of
from limpet.cluster.exchange.change_rates import ChangeRates
from limpet.cluster.exchange.gossip import Gossip
from limpet.cluster.exchange.inner_traffic import InnerTraffic
from limpet.cluster.exchange.messages import NONCE_BYTES, MessageError, Push, decode, encode
from limpet.cluster.exchange.neighbours import Broadcast, Destination, Effect, Heard
from limpet.cluster.membership import Membership
from limpet.cluster.replica import Change, Outcome
from limpet.cluster.seal import is_readable

_log = structlog.get_logger("exchange")


class ExchangeBudget:
    """For what others tell, by each member and by all others together. Each change costs a write to
    the disk, a round, probes, and those whom we tell of it the same; what is left out is found when
    digests are compared."""

    def __init__(self) -> None:
        told, strange = bounds.TOLD_PER_S, bounds.STRANGERS_TOLD_PER_S
        self.of_members = TokenBuckets(
            told.most, bounds.TOLD_AT_ONCE.most, most=bounds.TELLERS.most
        )
        self.of_strangers = TokenBucket(strange.most, bounds.STRANGERS_TOLD_AT_ONCE.most)


class Exchange:
    """Runs on the event loop's thread. What it learns it offers to the membership."""

    def __init__(self, membership: Membership, courier: PeerSocket, inner: InnerTraffic) -> None:
        """`inner`: counts what goes through tunnels."""
        self._membership = membership
        self._courier = courier
        self._counters: Counter[str] = Counter()
        self._inner = inner
        self._links: dict[int, UnderlayLink] = {}
        self._tunnelled: Mapping[str, Address] = {}
        self._inside: Mapping[Address, str] = {}
        self._gossip: Gossip | None = None
        self._alarm = Timer("exchange", self._tick)
        self._from: tuple[str, int | None] = ("", None)
        """Who is being listened to, and the link where all could hear it."""
        self._room = ExchangeBudget()
        self._changes = ChangeRates(membership.replica.known.kinds)

    @property
    def heard(self) -> Mapping[str, Heard]:
        """Where members were heard from last, by uid; times are of the monotonic clock."""
        return self._gossip.heard if self._gossip is not None else {}

    @property
    def counters(self) -> Mapping[str, int]:
        """Messages that were not answered: `stranger`, `unasked`, `over_rate`, `malformed`."""
        return self._counters + (self._gossip.counters if self._gossip is not None else Counter())

    def places(self, uid: str) -> list[Destination]:
        """Where the node is written to; none while the exchange does not run."""
        return self._gossip.places(uid, time.monotonic()) if self._gossip is not None else []

    def start(self) -> None:
        """Tells the links who we are, and compares with several neighbours; within a loop."""
        self._gossip = Gossip(
            self._membership,
            self._membership.replica.known,
            below=random.randrange,
            nonce=lambda: os.urandom(NONCE_BYTES),
            now_s=time.monotonic(),
        )
        self._courier.on(BodyKind.EXCHANGE, self._receive)
        self._gossip.set_tunnelled(self._tunnelled, time.monotonic())
        links = self._links
        self._run(self._gossip.set_links(links, links, time.monotonic()))

    async def stop(self) -> None:
        self._gossip = None
        self._alarm.stop()

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        """The links to neighbours; on one that is new or has new addresses we say who we are."""
        before, self._links = self._links, {link.ifindex: link for link in links}
        fresh = [
            ifindex
            for ifindex, link in self._links.items()
            if ifindex not in before or before[ifindex].addresses != link.addresses
        ]
        if self._gossip is not None:
            self._run(self._gossip.set_links(self._links, fresh, time.monotonic()))

    def set_tunnelled(self, tunnelled: Mapping[str, Address]) -> None:
        """Overlay addresses of the peers that are reached through a tunnel only, by uid."""
        if tunnelled == self._tunnelled:
            return
        self._tunnelled = tunnelled
        self._inside = {address: uid for uid, address in tunnelled.items()}
        if self._gossip is not None:
            self._gossip.set_tunnelled(tunnelled, time.monotonic())
            self._run([])

    def compare_with(self, uid: str) -> None:
        """The node has said that it knows something newer."""
        if self._gossip is not None:
            self._gossip.suspect(uid, time.monotonic())
            self._run([])

    def hear(self, change: Change) -> None:
        """Tells neighbours of changed documents, of any kind."""
        if self._gossip is None:
            return
        told_by = self._from if change.source is Source.NEIGHBOUR else ("", None)
        effects = self._gossip.learn(
            self._membership.replica.known,
            change.keys,
            change.source,
            time.monotonic(),
            from_uid=told_by[0],
            from_link=told_by[1],
        )
        self._run(effects)

    def _is_inside(self, uid: str, address: Address) -> bool:
        """Whether what goes to or comes from there takes the tunnel between the two agents."""
        network = self._membership.network
        return (
            uid in self._tunnelled
            and network is not None
            and any(address in cidr for cidr in network.pod_cidrs)
        )

    def _receive(self, received: Received) -> bool:
        """False: not all of it was taken, for want of room."""
        if self._is_inside(received.uid, received.address):
            self._inner.received(received.uid, received.address, received.body)
        if self._gossip is None:
            return True
        try:
            message = decode(received.body)
        except MessageError as error:
            self._counters["malformed"] += 1
            _log.debug("a message does not count", of=received.uid, error=str(error))
            return True
        taken = self._take(received, message) if isinstance(message, Push) else True
        effects = self._gossip.receive(
            received.uid, _place(received), received.ifindex, message, time.monotonic()
        )
        self._run(effects, received)
        return taken

    def _take(self, received: Received, push: Push) -> bool:
        """Offers what a neighbour or a stranger says: it is signed by whom it is about.

        False: there was no room for all of it.
        """
        assert self._gossip is not None
        now_s, weight = time.monotonic(), weight_of(push.documents)
        if self._membership.is_member(received.uid):
            room = self._room.of_members.take(received.uid, now_s, weight)
        else:
            room = self._room.of_strangers.take(now_s, weight)
        if not room:
            self._counters["over_rate"] += 1
            return False
        link = received.ifindex if _is_for_all(received.to_address) else None
        self._from = (received.uid, link)
        try:
            outcomes = self._membership.offer(
                push.documents,
                source=Source.NEIGHBOUR,
                teller=received.uid,
                has_room=lambda document: self._changes.has_room(document.key, now_s),
            )
        finally:
            self._from = ("", None)
        known: dict[Outcome, list[Key]] = {each: [] for each in Outcome}
        for sealed, what in zip(push.documents, outcomes, strict=True):
            if (key := self._membership.replica.key_of(sealed)) is not None:
                known[what].append(key)
        for key in known[Outcome.FRESH]:
            self._changes.note(key, now_s)
        self._gossip.heard_again(known[Outcome.STALE], received.uid, link)
        kinds = self._membership.replica.known.kinds
        self._gossip.note_told(
            received.uid,
            fresh=known[Outcome.FRESH],
            unreadable=[
                sealed
                for sealed, what in zip(push.documents, outcomes, strict=True)
                if what is Outcome.BAD and not is_readable(sealed, kinds)
            ],
        )
        late = outcomes.count(Outcome.LATER)
        self._counters["over_rate"] += late
        return not late

    def _run(self, effects: list[Effect], to: Received | None = None) -> None:
        """`to`: what they answer, if they do."""
        message, body = None, b""
        for effect in effects:
            if effect.message is not message:  # one goes to several places
                message, body = effect.message, encode(effect.message)
            try:
                self._send(effect, body, to)
            except DatagramError as error:
                _log.warning("what is known of a node is too large to be told", error=str(error))
        self._set_timer()

    def _send(self, effect: Effect, body: bytes, to: Received | None) -> None:
        if isinstance(effect, Broadcast):
            self._courier.broadcast(BodyKind.EXCHANGE, body, [effect.ifindex])
            return
        place = effect.place
        sent = self._courier.send(
            BodyKind.EXCHANGE,
            body,
            to_uid=effect.uid,
            address=place.address,
            port=place.port,
            ifindex=place.ifindex,
            source=_asked_at(to) if to is not None and place == _place(to) else None,
        )
        uid = effect.uid or self._inside.get(place.address, "")
        if sent and self._is_inside(uid, place.address):
            self._inner.sent(uid, place.address, body)

    def _set_timer(self) -> None:
        self._alarm.set(self._gossip.wake_at_s if self._gossip is not None else math.inf)

    def _tick(self) -> None:
        if self._gossip is not None:
            self._run(self._gossip.tick(time.monotonic()))


def _place(received: Received) -> Destination:
    link = received.ifindex if received.address.is_link_local else None
    return Destination(received.address, received.port, link)


def _asked_at(received: Received) -> Address | None:
    """Our address to which it came, if it is ours alone: who asks takes no answer from another."""
    at = received.to_address
    return None if at.is_unspecified or _is_for_all(at) else at


def _is_for_all(address: Address) -> bool:
    return address.is_multicast or (address.version == 4 and address.packed == b"\xff" * 4)
