"""Pairs of nodes that a relay joins, by its ports. No I/O here; time is passed in.

Each of two nodes has a port of its own at the relay. What it is sent there from the one place that
the node has proven to be at goes on to the other node, from the other's port. A place is moved by
a token, which is given to whoever asks from it and comes back from there: so the node, which signs
what it says, does get what is sent to the place. A token is good for one node, one port, one place
and some seconds, and moves an end only if it is younger than the one that moved it last: nothing
that was recorded puts an end back to where it was.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import NamedTuple

from limpet.base.addresses import Address, Endpoint
from limpet.relay.messages import TOKEN_BYTES, Refusal

LIFETIME_S = 120
"""Lifetime of a pair that neither end asks or checks: eight times what nodes check within."""
TOKEN_LIFETIME_S = 10.0
"""A round trip over the slowest of links, and the time for asking twice more."""
_TIME_BYTES = 5
"""Bytes of a time in milliseconds: it wraps after 34 years."""


class UdpFlow(NamedTuple):
    """Where packets of a node come from, and where to."""

    remote: Endpoint
    """The node, or the NAT in front of it, as the relay sees it."""
    local: Address
    """The one of the relay's own addresses that the node sends to."""


@dataclass(frozen=True, slots=True)
class PairEnd:
    """One node's half of a pair."""

    uid: str
    peer: str
    port: int
    other: int
    """The peer's port."""
    place: UdpFlow | None = None
    """Where the node has proven to be; None: nowhere yet."""
    streams: bool = False
    """The node has a TLS connection open for the pair."""
    by_stream: bool = False
    """Packets for the node go into its TLS connection."""
    moved_ms: int = -1
    """Creation time of the token that moved the end last."""
    wanted_until_s: float = -inf
    asked: bool = False
    """The node has asked for the pair, which counts against its quota."""

    @property
    def reachable(self) -> bool:
        return self.by_stream or self.place is not None


class Checked(Enum):
    """What became of a check."""

    MOVED = "moved"
    SAME = "same"
    """The end was at that place already."""
    NO_PAIR = "no_pair"
    """The port is none of the node's."""
    BAD_TOKEN = "bad_token"
    """Made for another place, too old, or not made here."""


class ForwardingEntry(NamedTuple):
    """What the relay does with what comes from one end, which has a place, by UDP."""

    end: PairEnd
    onward: UdpFlow | None
    """Where the kernel sends it; None: the agent takes it."""


@dataclass(slots=True)
class Relaying:
    """All pairs of a relay. `secret`: random bytes that nobody else knows, for the tokens."""

    ports: tuple[int, int]
    """First and last."""
    pairs_per_node: int
    secret: bytes = field(repr=False)
    _ends: dict[int, PairEnd] = field(default_factory=dict)
    _of: dict[str, dict[str, int]] = field(default_factory=dict)
    """Port by uid and peer."""
    _asked: Counter[str] = field(default_factory=Counter)
    _free: deque[int] = field(default_factory=deque)
    """Longest unused first, so that a port's late packets have died out."""

    def __post_init__(self) -> None:
        self._free.extend(range(self.ports[0], self.ports[1] + 1))

    def __len__(self) -> int:
        """Pairs."""
        return len(self._ends) // 2

    # What there is

    def end(self, uid: str, peer: str) -> PairEnd | None:
        port = self._of.get(uid, {}).get(peer)
        return None if port is None else self._ends[port]

    def at(self, port: int) -> PairEnd | None:
        return self._ends.get(port)

    def of(self, uid: str) -> list[PairEnd]:
        """The node's ends of all its pairs."""
        return [self._ends[port] for port in self._of.get(uid, {}).values()]

    def awaited(self, uid: str) -> list[PairEnd]:
        """Ends that the node may not know to be needed: it is at none of its places there, or the
        peer has come by a stream, which asks once and never again. Who is there by a stream of its
        own knows, and is not asked to try by UDP."""
        return [end for end in self.of(uid) if not end.reachable or self._is_unheard(end)]

    def _is_unheard(self, end: PairEnd) -> bool:
        return not end.by_stream and self._ends[end.other].streams

    def pairs(self) -> Iterator[tuple[PairEnd, PairEnd]]:
        for port, end in self._ends.items():
            if port < end.other:
                yield end, self._ends[end.other]

    def pairs_left(self, uid: str) -> int:
        """How many more pairs the node may ask for."""
        return max(0, min(self.pairs_per_node - self._asked[uid], len(self._free) // 2))

    # What nodes say

    def ask(self, uid: str, peer: str, now_s: float) -> PairEnd | Refusal:
        """`uid`'s half of the pair, which is made if it is not there. That they may talk is known.

        Asked again, by whichever of the two, it is the same pair.
        """
        end = self.end(uid, peer)
        if end is None or not end.asked:
            if self._asked[uid] >= self.pairs_per_node:
                return Refusal.QUOTA
            if end is None:
                if len(self._free) < 2:
                    return Refusal.FULL
                end = self._make(uid, peer)
            self._asked[uid] += 1
        return self._put(replace(end, asked=True, wanted_until_s=_later(end, now_s)))

    def make_token(self, uid: str, port: int, place: UdpFlow, now_s: float) -> bytes | None:
        """A token to send to `place`; None: the port is not the node's."""
        end = self._ends.get(port)
        if end is None or end.uid != uid:
            return None
        return self._token(end, place, _milliseconds(now_s))

    def check(self, uid: str, port: int, place: UdpFlow, token: bytes, now_s: float) -> Checked:
        """Moves the node's end to `place` if `token` came back from there. It keeps the pair if the
        node has asked for that."""
        end = self._ends.get(port)
        if end is None or end.uid != uid:
            return Checked.NO_PAIR
        made_ms, now_ms = int.from_bytes(token[:_TIME_BYTES]), _milliseconds(now_s)
        if not hmac.compare_digest(token, self._token(end, place, made_ms)):
            return Checked.BAD_TOKEN
        if not 0 <= now_ms - made_ms <= TOKEN_LIFETIME_S * 1000:
            return Checked.BAD_TOKEN
        same = place == end.place and not end.by_stream
        if not same and made_ms <= end.moved_ms:
            return Checked.BAD_TOKEN
        self._put(
            replace(
                end,
                place=place,
                by_stream=False,
                moved_ms=max(made_ms, end.moved_ms),
                # Else one member's pairs would outlive its questions, and the quota with them.
                wanted_until_s=_later(end, now_s) if end.asked else end.wanted_until_s,
            )
        )
        return Checked.SAME if same else Checked.MOVED

    def free(self, uid: str, peer: str) -> bool:
        """The node gives the pair up; True: so has the peer, and it is freed."""
        end = self.end(uid, peer)
        if end is None or end.streams:
            return False
        self._unask(end)
        self._put(replace(end, asked=False, wanted_until_s=-inf))
        return self._drop_unless_wanted(end.port, -inf)

    def attach(self, port: int) -> None:
        """The end is a stream from now on. Its place stays, for what still comes from there."""
        self._put(replace(self._ends[port], streams=True, by_stream=True, wanted_until_s=inf))

    def detach(self, port: int, now_s: float) -> None:
        """The stream has closed; the end is at its former place again, if it had one."""
        end = self._ends.get(port)
        if end is not None:
            until_s = now_s + LIFETIME_S
            self._put(replace(end, streams=False, by_stream=False, wanted_until_s=until_s))

    # What follows from time and grants

    def expire(self, now_s: float) -> list[PairEnd]:
        """Frees what nobody wants any more; returns one end of each pair that is gone."""
        for end in [e for e in self._ends.values() if e.asked and e.wanted_until_s <= now_s]:
            self._unask(end)
            self._put(replace(end, asked=False))
        gone = [end for end, _ in self.pairs()]
        return [end for end in gone if self._drop_unless_wanted(end.port, now_s)]

    def keep(self, may_talk: Callable[[str, str], bool], ends: Iterable[PairEnd]) -> list[PairEnd]:
        """Frees those of the pairs whose nodes may not talk; returns one end of each."""
        gone = [end for end in ends if not may_talk(end.uid, end.peer)]
        return [end for end in gone if self._drop(end.port)]

    def adopt(self, ends: Iterable[PairEnd], now_s: float) -> None:
        """Takes up ends as the kernel has kept them: whole and plausible pairs only."""
        by_port = {end.port: end for end in ends}
        free = set(self._free)
        for end in by_port.values():
            other = by_port.get(end.other)
            if (
                end.port < end.other
                and other is not None
                and (other.uid, other.peer, other.other) == (end.peer, end.uid, end.port)
                and free >= {end.port, end.other}
                and end.uid != end.peer
                and self.end(end.uid, end.peer) is None
            ):
                free -= {end.port, end.other}
                for half in (end, other):
                    self._put(replace(half, wanted_until_s=now_s + LIFETIME_S))
                    self._of.setdefault(half.uid, {})[half.peer] = half.port
        self._free = deque(port for port in self._free if port in free)

    # Its own

    def _make(self, uid: str, peer: str) -> PairEnd:
        port, other = self._free.popleft(), self._free.popleft()
        self._of.setdefault(uid, {})[peer] = port
        self._of.setdefault(peer, {})[uid] = other
        self._put(PairEnd(peer, uid, other, port))
        return self._put(PairEnd(uid, peer, port, other))

    def _put(self, end: PairEnd) -> PairEnd:
        self._ends[end.port] = end
        return end

    def _unask(self, end: PairEnd) -> None:
        if end.asked:
            self._asked[end.uid] -= 1
            if not self._asked[end.uid]:
                del self._asked[end.uid]

    def _drop_unless_wanted(self, port: int, now_s: float) -> bool:
        end = self._ends[port]
        wanted = max(end.wanted_until_s, self._ends[end.other].wanted_until_s)
        return wanted <= now_s and self._drop(port)

    def _drop(self, port: int) -> bool:
        """Whether there was such a pair."""
        end = self._ends.get(port)
        if end is None:
            return False
        for each in (end, self._ends[end.other]):
            self._unask(each)
            del self._ends[each.port], self._of[each.uid][each.peer]
            if not self._of[each.uid]:
                del self._of[each.uid]
            self._free.append(each.port)
        return True

    def _token(self, end: PairEnd, place: UdpFlow, made_ms: int) -> bytes:
        (address, udp_port), local = place
        made = made_ms.to_bytes(_TIME_BYTES)
        words = (end.uid, end.peer, end.port, address, udp_port, local)
        text = made + " ".join(map(str, words)).encode()
        mac = hashlib.blake2s(text, key=self.secret, digest_size=TOKEN_BYTES - _TIME_BYTES)
        return made + mac.digest()


def entries_of(
    one: PairEnd, other: PairEnd, forwarded: frozenset[int]
) -> dict[int, ForwardingEntry | None]:
    """What is to be done with what comes to each of the two ports; None: it is dropped.

    `forwarded`: IP versions that the node's kernel forwards. What the kernel cannot hand on, from
    one IP version to the other or into a stream, the agent does.
    """
    return {x.port: _entry(x, y, forwarded) for x, y in ((one, other), (other, one))}


def sockets_of(
    one: PairEnd, other: PairEnd, forwarded: frozenset[int]
) -> dict[int, UdpFlow | None]:
    """At which of the two ports the agent needs a socket, and for whom; None: no socket."""
    return {x.port: _socket(x, y, forwarded) for x, y in ((one, other), (other, one))}


def _entry(end: PairEnd, other: PairEnd, forwarded: frozenset[int]) -> ForwardingEntry | None:
    if end.place is None or not other.reachable:
        return None
    onward = other.place if _by_kernel(end, other, forwarded) else None
    return ForwardingEntry(end, onward)


def _socket(end: PairEnd, other: PairEnd, forwarded: frozenset[int]) -> UdpFlow | None:
    takes = other.reachable and not _by_kernel(end, other, forwarded)
    gives = not end.by_stream and (
        other.streams or (other.place is not None and not _by_kernel(other, end, forwarded))
    )
    return end.place if takes or gives else None


def _by_kernel(end: PairEnd, other: PairEnd, forwarded: frozenset[int]) -> bool:
    """Whether the kernel forwards the end's packets to the other."""
    if end.place is None or other.place is None or other.by_stream:
        return False
    versions = {each.remote[0].version for each in (end.place, other.place)}
    return len(versions) == 1 and versions <= forwarded


def _later(end: PairEnd, now_s: float) -> float:
    return max(end.wanted_until_s, now_s + LIFETIME_S)


def _milliseconds(now_s: float) -> int:
    return int(now_s * 1000) % (1 << 8 * _TIME_BYTES)
