"""Where the other members are, and how much may be sent there. Time and chance are passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from limpet.base.addresses import Address
from limpet.base.bounds.neighbours import AMPLIFICATION, CONTACT_PLACES, HEARD_CREDIT, HEARD_MEMBERS
from limpet.base.rate_limit import TokenBucket, TokenBuckets
from limpet.cluster.documents import Key
from limpet.cluster.exchange.messages import Listing, Message, datagram_bytes

FRESH_S = 60.0
"""How long a proven address counts before others are tried too."""
_MOST_HEARD = HEARD_MEMBERS.most
_PEER_BYTES_PER_S, _PEER_BYTES = 128_000, 256_000
_ALL_BYTES_PER_S, _ALL_BYTES = 400_000, 1_000_000
_ASKED_BYTES_PER_S, _ASKED_BYTES = 300_000, 750_000
"""What is said to single members, within all: however many ask, there is room to tell news."""


@dataclass(frozen=True, slots=True)
class Contact:
    """Where a member says that it is."""

    addresses: tuple[Address, ...]
    port: int
    """0: it is not to be written to."""


class Directory(Protocol):
    """Who the members of the cluster are."""

    @property
    def uid(self) -> str:
        """Uid of this node."""

    @property
    def removed(self) -> bool:
        """This node was removed: it is silent."""

    @property
    def introduction(self) -> Key:
        """The document with which this node says who it is."""

    def is_member(self, uid: str) -> bool: ...

    def contact(self, uid: str) -> Contact | None:
        """None: it has not said where it is, or was removed."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a node is written to."""

    address: Address
    port: int
    ifindex: int | None = None
    """The link, for a link-local address."""


@dataclass(frozen=True, slots=True)
class SendTo:
    """`uid` empty: also others may read it."""

    uid: str
    place: Destination
    message: Message


@dataclass(frozen=True, slots=True)
class Broadcast:
    ifindex: int
    message: Message


Effect = SendTo | Broadcast


@dataclass(slots=True)
class Heard:
    """What came from a member."""

    place: Destination
    """Place that it wrote from last."""
    ifindex: int
    """Index of the link that it came in by."""
    at_s: float
    proven: Destination | None = None
    """Place that has answered what was sent there."""
    proven_s: float = 0.0
    credit_bytes: int = 0
    """Bytes that may go to `place` while it is not the proven one."""


class Neighbours:
    """The other members, as far as the exchange has to know them."""

    def __init__(
        self,
        directory: Directory,
        uids: Iterable[str],
        *,
        below: Callable[[int], int],
        now_s: float,
    ) -> None:
        """`uids`: of all that may be members. `below`: a random number below its argument."""
        self.heard: OrderedDict[str, Heard] = OrderedDict()
        """By uid, members only; those heard last are at the end."""
        self.tunnelled: Mapping[str, Address] = {}
        """Overlay addresses of those that are reached through a tunnel only, by uid."""
        self._directory = directory
        self._below = below
        self._listed: set[str] = set()
        self._members: list[str] = []
        """All others that have said where they are."""
        self._peer_bytes = TokenBuckets(_PEER_BYTES_PER_S, _PEER_BYTES, most=_MOST_HEARD)
        self._member_bytes = TokenBuckets(_PEER_BYTES_PER_S, _PEER_BYTES, most=_MOST_HEARD)
        """By uid, at whatever addresses it is."""
        self._asked_bytes = TokenBucket(_ASKED_BYTES_PER_S, _ASKED_BYTES, now_s)
        self._all_bytes = TokenBucket(_ALL_BYTES_PER_S, _ALL_BYTES, now_s)
        self.learn(uids)

    def learn(self, names: Iterable[str]) -> None:
        """What is known of these has changed; those that are no node's uid do not matter."""
        before = len(self._listed)
        changed = False
        for uid in names:
            contact = self._directory.contact(uid)
            if contact is None or uid == self._directory.uid:
                changed |= uid in self._listed
                self._listed.discard(uid)
            else:
                self._listed.add(uid)
            heard = self.heard.get(uid)
            if heard is not None and not self.is_member(uid):
                del self.heard[uid]
            elif (
                heard is not None
                and heard.proven is not None
                and contact is not None
                and heard.proven.address not in (*contact.addresses, self.tunnelled.get(uid))
            ):
                heard.proven = None  # it may have moved
        if changed or len(self._listed) != before:
            self._members = sorted(self._listed)

    def is_member(self, uid: str) -> bool:
        return uid != self._directory.uid and self._directory.is_member(uid)

    def hear(self, uid: str, place: Destination, ifindex: int, size: int, now_s: float) -> bool:
        """A member has written `size` bytes from `place`; whether it was silent for long before."""
        heard = self.heard.get(uid)
        is_new = heard is None or now_s - heard.at_s > FRESH_S
        if heard is None:
            heard = self.heard[uid] = Heard(place, ifindex, now_s)
            if len(self.heard) > _MOST_HEARD:
                self.heard.popitem(last=False)
        elif heard.place != place:
            heard.place, heard.credit_bytes = place, 0
        heard.ifindex, heard.at_s = ifindex, now_s
        heard.credit_bytes = min(heard.credit_bytes + AMPLIFICATION.most * size, HEARD_CREDIT.most)
        self.heard.move_to_end(uid)
        return is_new

    def prove(self, uid: str, now_s: float) -> None:
        """What it wrote last answers what was sent there."""
        heard = self.heard[uid]
        heard.proven, heard.proven_s = heard.place, now_s

    def room_bytes(self, uid: str, place: Destination) -> int | None:
        """How much may be sent in answer to what came from `place`; None: all that is wanted."""
        heard = self.heard[uid]
        return None if heard.proven == place else heard.credit_bytes

    def places(self, uid: str, now_s: float) -> list[Destination]:
        """Where it has answered of late, else where it says that it is."""
        heard = self.heard.get(uid)
        if heard is not None and heard.proven and now_s - heard.proven_s < FRESH_S:
            return [heard.proven]
        return self._named(uid)

    def _named(self, uid: str) -> list[Destination]:
        """Its overlay address, if it is behind a tunnel, else the first that it names itself."""
        contact, inner = self._directory.contact(uid), self.tunnelled.get(uid)
        if contact is None or not contact.port:
            return []
        addresses = contact.addresses if inner is None else (inner,)
        return [Destination(address, contact.port) for address in addresses[: CONTACT_PLACES.most]]

    def recent(self, count: int, but: Collection[str]) -> list[str]:
        """Those heard last."""
        return list(islice((uid for uid in reversed(self.heard) if uid not in but), count))

    def sample(self, count: int, but: Collection[str]) -> list[str]:
        """Up to `count` random ones."""
        if len(self._members) <= 4 * count:
            rest = [uid for uid in self._members if uid not in but]
            return [rest.pop(self._below(len(rest))) for _ in range(min(count, len(rest)))]
        found: dict[str, None] = {}
        for _ in range(2 * count):  # of many not all are looked at
            uid = self._members[self._below(len(self._members))]
            if uid not in but and len(found) < count:
                found[uid] = None
        return list(found)

    def anybody(self, now_s: float) -> str:
        """A random one, mostly of those heard of late; empty: there is none."""
        recent = [uid for uid, heard in self.heard.items() if now_s - heard.at_s < FRESH_S]
        if recent and self._below(4):
            return recent[self._below(len(recent))]
        return self._members[self._below(len(self._members))] if self._members else ""

    def affordable(self, effects: Iterable[Effect], now_s: float) -> list[Effect]:
        """Those for which there is room now; it is taken."""
        return [effect for effect in effects if self._take(effect, now_s)]

    def _take(self, effect: Effect, now_s: float) -> bool:
        size, uid = datagram_bytes(effect.message), ""
        if isinstance(effect, SendTo):
            if not self._is_allowed(effect, size):
                return False
            where: object = effect.place.address
            uid = effect.uid
        else:
            where = effect.ifindex
        if not self._peer_bytes.take(where, now_s, size):
            return False
        if uid and not self._member_bytes.take(uid, now_s, size):
            return False
        if uid and not self._asked_bytes.take(now_s, size):
            return False
        return self._all_bytes.take(now_s, size)

    def _is_allowed(self, effect: SendTo, size: int) -> bool:
        """Its place is proven, or enough came from there, or it names it itself.

        Who sends on an old message of a member from elsewhere has no use of it.
        """
        heard = self.heard.get(effect.uid)
        if heard is None or effect.place not in (heard.place, heard.proven):
            return True
        if effect.place == heard.proven:
            return True
        if not isinstance(effect.message, Listing) and effect.place in self._named(effect.uid):
            return True
        if heard.credit_bytes < size:
            return False
        heard.credit_bytes -= size
        return True
