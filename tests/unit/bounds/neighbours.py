"""Probes of what nodes say to each other."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import cast

from limpet.base.bounds import neighbours
from limpet.base.rate_limit import TokenBucket, TokenBuckets
from limpet.cluster.datagrams.peer_datagram import Codec, DatagramError, Kind
from limpet.cluster.datagrams.peer_socket import Handler, PeerSocket, Rates
from limpet.cluster.documents import Key, Sealed
from limpet.cluster.exchange.exchange import Room
from limpet.cluster.exchange.messages import (
    Item,
    Listing,
    Message,
    MessageError,
    Push,
    Want,
    decode,
    encode,
)
from limpet.cluster.exchange.neighbours import Contact, Neighbours, Place
from limpet.cluster.exchange.pod_lookup import PodLookup
from limpet.cluster.exchange.pod_messages import PodsTold, ToldPod, parse_told
from limpet.cluster.exchange.pod_messages import encode as encode_pods
from limpet.cluster.membership import Membership
from tests.unit.bounds.probes import probe

_NONCE = bytes(8)
_FROM = IPv4Address("192.0.2.1")


def _is_decoded(message: Message) -> bool:
    try:
        decode(encode(message))
    except MessageError:
        return False
    return True


@probe(neighbours.DATAGRAM_BODY)
def _(amount: int) -> bool:
    ours, others = Codec(b"1" * 32, bytes(32)), Codec(b"2" * 32, bytes(32))
    empty = others.encode(1, b"")
    try:
        ours.parse(empty[:-64] + bytes(amount) + empty[-64:])
    except DatagramError:
        return False
    return True


@probe(neighbours.PUSHED_DOCUMENTS)
def _(amount: int) -> bool:
    return _is_decoded(Push((Sealed("presence", b"", b""),) * amount))


@probe(neighbours.LISTED_ITEMS)
def _(amount: int) -> bool:
    return _is_decoded(Listing(_NONCE, _NONCE, False, frozenset(), (Item(1, 1, 1),) * amount))


@probe(neighbours.WANTED_MARKS)
def _(amount: int) -> bool:
    return _is_decoded(Want(_NONCE, (1,) * amount))


@probe(neighbours.TOLD_AT_ONCE)
def _(amount: int) -> bool:
    room = Room().of_members
    return all(room.take("a", 0.0) for _ in range(amount)) and room.take("b", 0.0)


@probe(neighbours.TOLD_PER_S)
def _(amount: int) -> bool:
    room = Room().of_members
    assert room.take("a", 0.0, neighbours.TOLD_AT_ONCE.most)
    return room.take("a", 1.0001, amount)


@probe(neighbours.STRANGERS_TOLD_AT_ONCE)
def _(amount: int) -> bool:
    room = Room().of_strangers
    return all(room.take(0.0) for _ in range(amount))


@probe(neighbours.STRANGERS_TOLD_PER_S)
def _(amount: int) -> bool:
    room: TokenBucket = Room().of_strangers
    assert room.take(0.0, neighbours.STRANGERS_TOLD_AT_ONCE.most)
    return room.take(1.0001, amount)


@probe(neighbours.CHANGES_AT_ONCE)
def _(amount: int) -> bool:
    room = Room().of_changes
    return all(room.take("a", 0.0) for _ in range(amount)) and room.take("b", 0.0)


@probe(neighbours.CHANGES_PER_MINUTE)
def _(amount: int) -> bool:
    room = Room().of_changes
    assert room.take("a", 0.0, neighbours.CHANGES_AT_ONCE.most)
    most = neighbours.CHANGES_PER_MINUTE.most
    return all(room.take("a", 60.001 * min((n + 1) / most, 1.0)) for n in range(amount))


def _rates() -> Rates:
    rates = Rates()
    rates.heard.know(_FROM)
    return rates


@probe(neighbours.SIGNATURES_AT_ONCE)
def _(amount: int) -> bool:
    heard = _rates().heard
    return all(heard.take(_FROM, 0.0) for _ in range(amount))


@probe(neighbours.SIGNATURES_PER_S)
def _(amount: int) -> bool:
    heard = _rates().heard
    while heard.take(_FROM, 0.0):
        pass
    return all(heard.take(_FROM, 1.0001) for _ in range(amount))


class _Members:
    uid = "us"
    removed = False
    introduction: Key = ("presence", "us")

    def is_member(self, uid: str) -> bool:
        return True

    def contact(self, uid: str) -> Contact | None:
        return None


@probe(neighbours.HEARD_MEMBERS)
def _(amount: int) -> bool:
    """Whether the first one is still kept in mind."""
    heard = Neighbours(_Members(), (), below=lambda most: 0, now_s=0.0)
    for number in range(amount):
        heard.hear(f"n{number}", Place(_FROM, 7471), 1, 100, 0.0)
    return "n0" in heard.heard


class _Courier:
    def on(self, kind: Kind, handler: Handler) -> None: ...


def _question_rates() -> TokenBuckets:
    """Those of a node that answers which pods it has."""
    courier, membership = cast(PeerSocket, _Courier()), cast(Membership, None)
    return PodLookup(membership, courier, lambda _uid: [], lambda *_: ()).rates


@probe(neighbours.POD_QUESTIONS_AT_ONCE)
def _(amount: int) -> bool:
    rates = _question_rates()
    return all(rates.take("a", 0.0) for _ in range(amount)) and rates.take("b", 0.0)


@probe(neighbours.POD_QUESTIONS_PER_S)
def _(amount: int) -> bool:
    rates = _question_rates()
    assert rates.take("a", 0.0, neighbours.POD_QUESTIONS_AT_ONCE.most)
    return rates.take("a", 1.0001, amount)


@probe(neighbours.FOUND_PODS)
def _(amount: int) -> bool:
    body = encode_pods(PodsTold(_NONCE, (ToldPod("shop", "web", ()),) * amount))
    try:
        parse_told(body)
    except DatagramError:
        return False
    return True
