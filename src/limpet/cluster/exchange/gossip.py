"""Whom to tell what, and when: the neighbour exchange as a machine, time and chance passed in.

A change of our own goes at once to everybody on the links and to peers' known addresses, and again
a little later, since a link that has just come up loses the first packets. What we have learnt of
others is told once to a few, so that a rumour dies. What was lost is found by comparing digests:

    one    digest ->            <- listing (of buckets that differ)    other
           want, push ->        <- push

Each answer echoes a nonce of what it answers, which proves that its sender is where it says. To
an address that is not proven no more is sent than a few times what came from there.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from limpet.base.addresses import Address
from limpet.base.bounds.neighbours import COMPARED_AT_ONCE
from limpet.cluster.documents import Key, Known, Sealed, Source
from limpet.cluster.exchange.comparisons import MOST_PUSHED, Comparisons
from limpet.cluster.exchange.digest import DocumentIndex, make_listings, make_pushes
from limpet.cluster.exchange.messages import (
    Digest,
    Listing,
    Message,
    Push,
    Want,
    datagram_bytes,
)
from limpet.cluster.exchange.neighbours import (
    Broadcast,
    Destination,
    Directory,
    Effect,
    Heard,
    Neighbours,
    SendTo,
)

_OWN_AGAIN_S = (0.0, 0.2, 0.7, 1.5)
_UNICAST_AT = (0, 2)
"""Numbers, from 0, of those times at which peers' known addresses are written to."""
_OWN_FANOUT, _OWN_RANDOM = 64, 16
_NEIGHBOUR_FANOUT, _CLOUD_FANOUT = 6, 3
_NEIGHBOUR_DELAY_S, _CLOUD_DELAY_S = (0.02, 0.12), (0.2, 1.2)
_ENOUGH = {Source.NEIGHBOUR: 3, Source.CLOUD: 1}
"""A rumour that was heard so often, and on all links, before its time is known well enough."""
_MOST_AT_ONCE, _MOST_RUMOURS = 32, 256
"""Changes that are told one by one; of more, neighbours learn by comparing."""
_COMPARE_S = (3.0, 5.0)
_FIRST_COMPARE_S = (0.1, 0.5, 1.0)
_AGAIN_S = 0.5
"""To the next comparison where one was not enough."""
_NONCE_S = 10.0
_NEWCOMER_S = (0.0, 1.0)
_MOST_NONCES = 1024
_SAY_AGAIN_S = (30.0, 60.0)
"""Between two times that we tell the links who we are: a switch may have been deaf for long."""
_NOW_AND_THEN, _SAY_AGAIN, _COMPARE = "*", "!", "="
"""What a timer is for, the last with a uid, or none; else it is for the rumour of its key."""


@dataclass(slots=True)
class _Rumour:
    """A change that is still to be told."""

    origin: Source
    links: set[int]
    """Links on which it was not heard."""
    not_to: set[str]
    heard: int = 0
    told: int = 0


class Gossip:
    """One node's side. Every method returns what is to be sent now."""

    def __init__(
        self,
        directory: Directory,
        known: Known,
        *,
        below: Callable[[int], int],
        nonce: Callable[[], bytes],
        now_s: float,
    ) -> None:
        """`below`: a random number from 0 to below its argument. `nonce`: 8 random bytes."""
        self.counters: Counter[str] = Counter()
        """What was not answered: `stranger`, `unasked`, `over_rate`."""
        self._directory = directory
        self._known = known
        self._below = below
        self._nonce = nonce
        self._index = DocumentIndex(known)
        names = {document.name for document in known}
        self._neighbours = Neighbours(directory, names, below=below, now_s=now_s)
        self._links: frozenset[int] = frozenset()
        self._rumours: dict[Key, _Rumour] = {}
        self._timers: list[tuple[float, tuple[str, str]]] = []
        """A heap: when, and what it is for."""
        self._nonces: OrderedDict[bytes, tuple[str, Destination, float]] = OrderedDict()
        """To whom each was sent, where and when: it proves that one place, and no other that its
        member may name or forge."""
        self._comparisons = Comparisons(below)
        self._compare_soon(now_s)
        self._set_timer(now_s + self._between(_COMPARE_S), (_NOW_AND_THEN, ""))
        self._set_timer(now_s + self._between(_SAY_AGAIN_S), (_SAY_AGAIN, ""))

    @property
    def heard(self) -> Mapping[str, Heard]:
        """What came from members, by uid."""
        return self._neighbours.heard

    def places(self, uid: str, now_s: float) -> list[Destination]:
        """Where a member is written to."""
        return self._neighbours.places(uid, now_s)

    @property
    def wake_at_s(self) -> float:
        """When `tick` has something to do."""
        return self._timers[0][0]

    # What happens

    def set_links(self, links: Iterable[int], fresh: Iterable[int], now_s: float) -> list[Effect]:
        """The links that lead to neighbours; those of them that are new or have new addresses."""
        self._links = frozenset(links)
        new = self._links & frozenset(fresh)
        for rumour in self._rumours.values():
            rumour.links &= self._links
        if not new:
            return []
        self._compare_soon(now_s)
        own = self._directory.introduction
        if self._known.find(own) is None:
            return []
        before = self._rumours.get(own)
        links = new if before is None else new | before.links
        self._start(own, _Rumour(Source.SELF, set(links), set()), now_s)
        return self.tick(now_s)

    def set_tunnelled(self, tunnelled: Mapping[str, Address], now_s: float) -> None:
        """Overlay addresses of the peers that are reached through a tunnel only, by uid; with those
        that are new among them it is soon compared what both know."""
        fresh = tunnelled.keys() - self._neighbours.tunnelled.keys()
        self._neighbours.tunnelled = tunnelled
        for uid in sorted(fresh)[:_MOST_AT_ONCE]:
            self._compare_later(uid, now_s + self._between(_NEIGHBOUR_DELAY_S))

    def learn(
        self,
        known: Known,
        keys: frozenset[Key],
        origin: Source,
        now_s: float,
        *,
        from_uid: str = "",
        from_link: int | None = None,
    ) -> list[Effect]:
        """`keys` have changed to what `known` says.

        `from_uid`: who told us; `from_link`: where all neighbours could hear it.
        """
        self._known = known
        self._index.update(known, keys)
        self._neighbours.learn({name for _kind, name in keys})
        own = self._directory.uid
        # What others stand under is told with those; what is gone, with what it stood under.
        told = {key for key in keys if known.find(key) is not None}
        told -= {parent for key in told if (parent := known.kinds[key[0]].parent(key[1]))}
        if len(told) > _MOST_AT_ONCE or len(self._rumours) > _MOST_RUMOURS:
            self._compare_soon(now_s)
            told = {key for key in told if key[1].partition("/")[0] == own}
        for key in sorted(told):
            ours = key[1].partition("/")[0] == own
            links = set(self._links) if ours else set(self._links) - {from_link}
            rumour = _Rumour(Source.SELF if ours else origin, links, {from_uid, key[1]})
            self._start(key, rumour, now_s)
            if ours:
                self._compare_soon(now_s)
        return self.tick(now_s)

    def heard_again(self, keys: Iterable[Key], from_uid: str, link: int | None) -> None:
        """`from_uid` said what we knew: it need not be told, nor all on `link` if all heard it."""
        for key in keys:
            rumour = self._rumours.get(key)
            if rumour is None:
                continue
            rumour.not_to.add(from_uid)
            rumour.links.discard(-1 if link is None else link)
            rumour.heard += 1
            if not rumour.links and rumour.heard >= _ENOUGH.get(rumour.origin, rumour.heard + 1):
                del self._rumours[key]

    def note_told(self, uid: str, *, fresh: Iterable[Key], unreadable: Iterable[Sealed]) -> None:
        """`uid` has told something: what of it was news, and what of it cannot be read here."""
        if not self._neighbours.is_member(uid):
            return
        self._comparisons.note_fresh(uid, fresh)
        self._comparisons.note_refused(unreadable)

    def receive(
        self, uid: str, place: Destination, ifindex: int, message: Message, now_s: float
    ) -> list[Effect]:
        """A message of `uid` came from `place`, and what a push held has been learnt."""
        if not self._neighbours.is_member(uid):
            self.counters["stranger"] += 1
            return []
        asked = self._is_asked(uid, place, message, now_s)
        if asked is False:
            self.counters["unasked"] += 1
            return []
        is_new = self._neighbours.hear(uid, place, ifindex, datagram_bytes(message), now_s)
        if asked:
            self._neighbours.prove(uid, now_s)
        if is_new and isinstance(message, Push) and self._is_chosen():
            self._compare_later(uid, now_s + self._between(_NEWCOMER_S))
        looked_at = min(self._index.cost(message), COMPARED_AT_ONCE.most)
        if not self._comparisons.looked_at.take(uid, now_s, looked_at):
            self.counters["over_rate"] += 1
            return []
        return self._answer(uid, place, message, now_s)

    def suspect(self, uid: str, now_s: float) -> None:
        """The node knows something newer, as it has said; it is compared with soon, but not for
        each time that it says so: a digest is large, and goes to whatever address it has told."""
        if self._comparisons.suspicions.take(uid, now_s):
            self._compare_later(uid, now_s + self._between(_NEIGHBOUR_DELAY_S))

    def tick(self, now_s: float) -> list[Effect]:
        """What is due."""
        effects: list[Effect] = []
        while self._timers and self._timers[0][0] <= now_s:
            _at_s, (what, name) = heapq.heappop(self._timers)
            if what == _NOW_AND_THEN:
                self._set_timer(now_s + self._between(_COMPARE_S), (_NOW_AND_THEN, ""))
                effects += self._compare(self._neighbours.anybody(now_s), now_s)
            elif what == _SAY_AGAIN:
                self._set_timer(now_s + self._between(_SAY_AGAIN_S), (_SAY_AGAIN, ""))
                own = make_pushes(self._known, [self._directory.introduction])
                said = (Broadcast(link, push) for push in own for link in sorted(self._links))
                effects += self._affordable(said, now_s)
            elif what == _COMPARE:
                effects += self._compare(name or self._neighbours.anybody(now_s), now_s)
            else:
                effects += self._tell((what, name), now_s)
        return effects

    def _set_timer(self, at_s: float, what: tuple[str, str]) -> None:
        heapq.heappush(self._timers, (at_s, what))

    # Rumours

    def _start(self, key: Key, rumour: _Rumour, now_s: float) -> None:
        if key in self._rumours:  # what it said is old, and so are its times
            self._timers = [timer for timer in self._timers if timer[1] != key]
            heapq.heapify(self._timers)
        self._rumours[key] = rumour
        if rumour.origin is Source.SELF:
            delays_s: tuple[float, ...] = _OWN_AGAIN_S
        else:
            near = rumour.origin is Source.NEIGHBOUR
            delays_s = (self._between(_NEIGHBOUR_DELAY_S if near else _CLOUD_DELAY_S),)
        for delay_s in delays_s:
            self._set_timer(now_s + delay_s, key)

    def _tell(self, key: Key, now_s: float) -> list[Effect]:
        rumour = self._rumours.get(key)
        if rumour is None:
            return []
        own = rumour.origin is Source.SELF
        effects: list[Effect] = []
        for message in make_pushes(self._known, [key]):
            effects += [Broadcast(link, message) for link in sorted(rumour.links)]
            if not own or rumour.told in _UNICAST_AT:
                for peer in self._listeners(rumour):
                    effects += [
                        SendTo("", place, message) for place in self._neighbours.places(peer, now_s)
                    ]
        rumour.told += 1
        if not own or rumour.told == len(_OWN_AGAIN_S):
            del self._rumours[key]
        return self._affordable(effects, now_s)

    def _listeners(self, rumour: _Rumour) -> list[str]:
        """Peers to be told, no one twice; of our own change first those that we heard last."""
        if rumour.origin is Source.SELF:
            chosen = self._neighbours.recent(_OWN_FANOUT, rumour.not_to)
            fill = _OWN_FANOUT + _OWN_RANDOM - len(chosen)
            return chosen + self._neighbours.sample(fill, rumour.not_to | set(chosen))
        fanout = _CLOUD_FANOUT if rumour.origin is Source.CLOUD else _NEIGHBOUR_FANOUT
        return self._neighbours.sample(fanout, rumour.not_to)

    # Comparing

    def _compare_soon(self, now_s: float) -> None:
        if not self._is_set((_COMPARE, "")):
            for delay_s in _FIRST_COMPARE_S:
                self._set_timer(now_s + delay_s, (_COMPARE, ""))

    def _compare_later(self, uid: str, at_s: float) -> None:
        if not self._is_set((_COMPARE, uid)):
            self._set_timer(at_s, (_COMPARE, uid))

    def _is_set(self, what: tuple[str, str]) -> bool:
        return any(timer[1] == what for timer in self._timers)

    def _is_chosen(self) -> bool:
        """True by chance, so that few of the many who hear a newcomer are chosen."""
        return self._below(max(1, len(self._neighbours.heard) // 8)) == 0

    def _compare(self, uid: str, now_s: float) -> list[Effect]:
        if not self._neighbours.is_member(uid):
            return []
        places = self._neighbours.places(uid, now_s)
        heard = self._neighbours.heard.get(uid)
        if heard is not None and heard.place not in places:
            places.append(heard.place)
        if not places:
            return []
        if not self._comparisons.begin(uid):
            return []
        digests = (
            SendTo(uid, place, self._index.digest(self._issue(uid, place, now_s)))
            for place in places
        )
        return self._affordable(digests, now_s)

    def _issue(self, uid: str, place: Destination, now_s: float) -> bytes:
        nonce = self._nonce()
        self._nonces[nonce] = (uid, place, now_s)
        if len(self._nonces) > _MOST_NONCES:
            self._nonces.popitem(last=False)
        return nonce

    def _is_asked(
        self, uid: str, place: Destination, message: Message, now_s: float
    ) -> bool | None:
        """Whether it answers what we sent to its sender there; None: it is no answer."""
        if not isinstance(message, Listing | Want):
            return None
        asked, where, at_s = self._nonces.get(message.echo, ("", place, 0.0))
        return (asked, where) == (uid, place) and now_s - at_s <= _NONCE_S

    def _answer(self, uid: str, place: Destination, message: Message, now_s: float) -> list[Effect]:
        match message:
            case Digest():
                nonce = self._issue(uid, place, now_s)
                room = self._neighbours.room_bytes(uid, place)
                answers = make_listings(
                    self._index, message, nonce, room_bytes=room, below=self._below
                )
            case Listing():
                answers = self._settle(uid, message, now_s)
            case Want():
                answers = make_pushes(self._known, self._index.keys(message.marks[:MOST_PUSHED]))
            case Push():
                answers = []
        return self._affordable((SendTo(uid, place, answer) for answer in answers), now_s)

    def _settle(self, uid: str, listing: Listing, now_s: float) -> list[Message]:
        """Asks for what we lack, and sends what the other lacks."""
        settling = self._comparisons.settle(uid, self._index, listing)
        answers: list[Message] = []
        if settling.wanted:
            answers.append(Want(listing.nonce, settling.wanted))
        answers += make_pushes(self._known, settling.told)
        if settling.again:
            self._compare_later(uid, now_s + _AGAIN_S)
        return answers

    def _affordable(self, effects: Iterable[Effect], now_s: float) -> list[Effect]:
        """What there is no room for is found by comparing, later; a removed node is silent."""
        if self._directory.removed:
            return []
        wanted = list(effects)
        sent = self._neighbours.affordable(wanted, now_s)
        self.counters["over_rate"] += len(wanted) - len(sent)
        return sent

    def _between(self, bounds_s: tuple[float, float]) -> float:
        low_s, high_s = bounds_s
        return low_s + (high_s - low_s) * self._below(1000) / 1000
