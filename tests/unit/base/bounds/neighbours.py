"""Probes of what nodes say to each other."""

from __future__ import annotations

import itertools
from ipaddress import IPv4Address
from pathlib import Path

from limpet.base.bounds import neighbours
from limpet.base.bounds.bound import Bound
from limpet.base.bounds.members import PACKET_SOURCES
from limpet.base.rate_limit import TokenBucket, TokenBuckets
from limpet.cluster.datagrams.peer_datagram import Codec, DatagramError, DropReason
from limpet.cluster.datagrams.peer_socket import PeerSocket, Rates
from limpet.cluster.datagrams.udp_sockets import Arrival
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.cluster.documents import Known, Sealed
from limpet.cluster.exchange.change_rates import ChangeRates
from limpet.cluster.exchange.digest import item_digest
from limpet.cluster.exchange.exchange import ExchangeBudget
from limpet.cluster.exchange.gossip import Gossip
from limpet.cluster.exchange.messages import (
    BUCKETS,
    Digest,
    Item,
    Listing,
    Message,
    MessageError,
    Push,
    Want,
    decode,
    encode,
)
from limpet.cluster.exchange.neighbours import Destination, Neighbours
from limpet.cluster.exchange.pod_lookup import PodLookup
from limpet.cluster.exchange.pod_messages import PodsTold, ToldPod, parse_told
from limpet.cluster.exchange.pod_messages import encode as encode_pods
from limpet.cluster.identity import Identity
from limpet.cluster.kinds import KINDS, PRESENCE
from limpet.cluster.kinds.grant import Role
from limpet.cluster.nodes import NodeEntry
from limpet.datapath.overlay.plan import plan_peer
from limpet.datapath.overlay.state import PeerPart
from limpet.datapath.tunnel.handshake_reset import HandshakeReset
from limpet.paths.ladder.candidates import CandidateFacts, tunnel_endpoints
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.peer_facts import Learnt
from limpet.paths.ladder.peer_ladders import Peer
from tests.beds.member import member_without_disk
from tests.unit.base.bounds.probes import is_remembered, probe
from tests.unit.cluster_values import PINNED, grant, node_key, presence, seal_presence, told
from tests.unit.datapath.overlay.overlay_values import node, view

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
    room = ExchangeBudget().of_members
    return all(room.take("a", 0.0) for _ in range(amount)) and room.take("b", 0.0)


@probe(neighbours.TOLD_PER_S)
def _(amount: int) -> bool:
    room = ExchangeBudget().of_members
    assert room.take("a", 0.0, neighbours.TOLD_AT_ONCE.most)
    return room.take("a", 1.0001, amount)


@probe(neighbours.STRANGERS_TOLD_AT_ONCE)
def _(amount: int) -> bool:
    room = ExchangeBudget().of_strangers
    return all(room.take(0.0) for _ in range(amount))


@probe(neighbours.STRANGERS_TOLD_PER_S)
def _(amount: int) -> bool:
    room: TokenBucket = ExchangeBudget().of_strangers
    assert room.take(0.0, neighbours.STRANGERS_TOLD_AT_ONCE.most)
    return room.take(1.0001, amount)


class _Changes:
    """What nodes say of themselves, as it is told: each change is noted once it is taken."""

    def __init__(self) -> None:
        self._rates = ChangeRates(KINDS)

    def take(self, node: int, now_s: float) -> bool:
        key = (PRESENCE.name, str(node))
        has_room = self._rates.has_room(key, now_s)
        if has_room:
            self._rates.note(key, now_s)
        return has_room


@probe(neighbours.CHANGES_AT_ONCE)
def _(amount: int) -> bool:
    changes = _Changes()
    return all(changes.take(0, 0.0) for _ in range(amount)) and changes.take(1, 0.0)


@probe(neighbours.CHANGES_PER_MINUTE)
def _(amount: int) -> bool:
    changes = _Changes()
    assert all(changes.take(0, 0.0) for _ in range(neighbours.CHANGES_AT_ONCE.most))
    most = neighbours.CHANGES_PER_MINUTE.most
    return all(changes.take(0, 60.001 * min((n + 1) / most, 1.0)) for n in range(amount))


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


@probe(neighbours.HEARD_MEMBERS)
def _(amount: int) -> bool:
    """Whether the first one is still kept in mind."""
    heard = Neighbours(member_without_disk(), (), below=lambda most: 0, now_s=0.0)
    for number in range(amount):
        heard.hear(f"n{number}", Destination(_FROM, 7471), 1, 100, 0.0)
    return "n0" in heard.heard


def _courier() -> PeerSocket:
    """It has opened nothing yet."""
    own = Identity(Path("/nonexistent"), node_key(1), "node-1", PINNED, ())
    return PeerSocket(own, port=7471, is_member=lambda _: True, is_removed=lambda _: ())


def _question_rates() -> TokenBuckets:
    """Those of a node that answers which pods it has."""
    return PodLookup(member_without_disk(), _courier(), lambda _uid: [], lambda *_: ()).rates


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


# What peers have a node check and send, all of them together.

_FIRST = IPv4Address("198.51.100.0")
_LATER_S = 1.0001
_MINUTE_S = 60.001
_PLACES = itertools.count()


def _heard(amount: int, now_s: float, *, members: bool, rates: Rates | None = None) -> Rates | None:
    """So many from a hundred addresses; None: one of them is not looked at."""
    rates = rates or Rates()
    for each in range(amount):
        address = _FIRST + each % 100
        if members:
            rates.heard.know(address, part=7471)
        if not rates.heard.take(address, now_s, part=7471):
            return None
    return rates


def _probe_signatures(at_once: Bound, per_s: Bound, *, members: bool) -> None:
    @probe(at_once)
    def _(amount: int) -> bool:
        return _heard(amount, 0.0, members=members) is not None

    @probe(per_s)
    def _(amount: int) -> bool:
        used_up = _heard(at_once.most, 0.0, members=members)
        return _heard(amount, _LATER_S, members=members, rates=used_up) is not None


_probe_signatures(neighbours.MEMBERS_SIGNATURES, neighbours.MEMBERS_SIGNATURES_PER_S, members=True)
_probe_signatures(
    neighbours.STRANGERS_SIGNATURES, neighbours.STRANGERS_SIGNATURES_PER_S, members=False
)


def _asked(budget: UnprovenBudget, amount: int, now_s: float, *, of_peer: bool) -> bool:
    """All of so many probes are sent: to one address, or to all that one peer names."""
    return all(
        budget.may_ask("peer", _FIRST + next(_PLACES) % 4000, now_s)
        if of_peer
        else budget.may_ask(f"peer-{each % 64}", _FIRST, now_s)
        for each in range(amount)
    )


def _used_up(budget: UnprovenBudget, *, of_peer: bool) -> float:
    """Until nothing is left for minutes; when that is."""
    now_s = 0.0
    while any(_asked(budget, 1, now_s, of_peer=of_peer) for _ in range(100)):
        now_s += 1.0
    return now_s


def _probe_budget(rows: tuple[Bound, Bound, Bound, Bound], *, of_peer: bool) -> None:
    at_once, per_s, in_all, per_minute = rows

    @probe(at_once)
    def _(amount: int) -> bool:
        return _asked(UnprovenBudget(), amount, 0.0, of_peer=of_peer)

    @probe(per_s)
    def _(amount: int) -> bool:
        budget = UnprovenBudget()
        assert _asked(budget, at_once.most, 0.0, of_peer=of_peer)
        return _asked(budget, amount, _LATER_S, of_peer=of_peer)

    # What comes back in the meantime is in the sum.
    @probe(in_all, above=in_all.most + 1 + in_all.most // per_s.most * per_minute.most // 60)
    def _(amount: int) -> bool:
        budget, sent, now_s = UnprovenBudget(), 0, 0.0
        while sent < amount and now_s < in_all.most / per_s.most:
            sent += _asked(budget, 1, now_s, of_peer=of_peer)
            now_s += 0.5 / per_s.most
        return sent == amount

    @probe(per_minute)
    def _(amount: int) -> bool:
        budget = UnprovenBudget()
        now_s = _used_up(budget, of_peer=of_peer)
        step_s = _MINUTE_S / per_minute.most
        return all(
            _asked(budget, 1, now_s + min((n + 1) * step_s, _MINUTE_S), of_peer=of_peer)
            for n in range(amount)
        )


_probe_budget(
    (
        neighbours.UNPROVEN_ADDRESS,
        neighbours.UNPROVEN_ADDRESS_PER_S,
        neighbours.UNPROVEN_ADDRESS_LONG,
        neighbours.UNPROVEN_ADDRESS_PER_MINUTE,
    ),
    of_peer=False,
)
_probe_budget(
    (
        neighbours.UNPROVEN_PEER,
        neighbours.UNPROVEN_PEER_PER_S,
        neighbours.UNPROVEN_PEER_LONG,
        neighbours.UNPROVEN_PEER_PER_MINUTE,
    ),
    of_peer=True,
)


@probe(neighbours.UNPROVEN_ANSWERS)
def _(amount: int) -> bool:
    budget = UnprovenBudget()
    now_s = _used_up(budget, of_peer=True)
    for _ in range(amount):
        budget.heard("peer", _FIRST)
    return all(budget.may_ask("peer", _FIRST, now_s) for _ in range(amount))


# How many are kept in mind, and of what they say how much.


@probe(neighbours.POD_ASKERS)
def _(amount: int) -> bool:
    return is_remembered(amount, _question_rates())


@probe(neighbours.TUNNEL_RESETS)
def _(amount: int) -> bool:
    resets = HandshakeReset(_courier(), may_talk=lambda _: True, take=lambda *_: None)
    return is_remembered(amount, resets._rate)


def _gossip() -> Gossip:
    return Gossip(
        member_without_disk(), Known(KINDS), below=lambda _: 0, nonce=lambda: _NONCE, now_s=0.0
    )


def _suspicions() -> TokenBuckets:
    return _gossip()._comparisons.suspicions


_COMPARING = [grant(number).uid for number in (2, 3, 4)]


def _comparing() -> Gossip:
    """Of a node that knows of three others, and of no document besides."""
    own = member_without_disk(*(sealed for number in (2, 3, 4) for sealed in told(number)))
    return Gossip(own, Known(KINDS), below=lambda _: 0, nonce=lambda: _NONCE, now_s=0.0)


def _compares(gossip: Gossip, uid: str, documents: int, now_s: float = 0.0) -> bool:
    """Whether what a member says is looked at, for which so many documents are: it begins, and goes
    on with what it wants."""
    place, before = Destination(_FROM, 7471), gossip.counters["over_rate"]
    gossip.receive(uid, place, 1, Digest(_NONCE, bytes(4 * BUCKETS)), now_s)
    if documents > 1:
        gossip.receive(uid, place, 1, Want(_NONCE, (1,) * (documents - 2)), now_s)
    assert not gossip.counters["unasked"]
    assert not gossip.counters["stranger"]
    return gossip.counters["over_rate"] == before


@probe(neighbours.COMPARED_AT_ONCE)
def _(amount: int) -> bool:
    """Who says more than all of it in one message is looked at, for all of it."""
    one, other, third = _COMPARING
    gossip, place = _comparing(), Destination(_FROM, 7471)
    assert _compares(gossip, third, 1)
    large = Want(_NONCE, (1,) * (2 * neighbours.COMPARED_AT_ONCE.most))
    gossip.receive(third, place, 1, large, 5.0)
    assert not gossip.counters["over_rate"]
    return _compares(gossip, one, amount) and _compares(gossip, other, amount)


@probe(neighbours.COMPARED_PER_S)
def _(amount: int) -> bool:
    gossip, uid = _comparing(), _COMPARING[0]
    assert _compares(gossip, uid, neighbours.COMPARED_AT_ONCE.most)
    return _compares(gossip, uid, amount, 1.0)


@probe(neighbours.COMPARED_MEMBERS)
def _(amount: int) -> bool:
    room = _gossip()._comparisons.looked_at
    assert room.take(0, 0.0, neighbours.COMPARED_AT_ONCE.most)
    return is_remembered(amount, room)


@probe(neighbours.SUSPICIONS_AT_ONCE)
def _(amount: int) -> bool:
    room = _suspicions()
    return all(room.take("a", 0.0) for _ in range(amount)) and room.take("b", 0.0)


@probe(neighbours.SUSPICIONS_PER_MINUTE)
def _(amount: int) -> bool:
    room, most = _suspicions(), neighbours.SUSPICIONS_PER_MINUTE.most
    assert room.take("a", 0.0, neighbours.SUSPICIONS_AT_ONCE.most)
    return all(room.take("a", 60.001 * min((n + 1) / most, 1.0)) for n in range(amount))


@probe(neighbours.SUSPECTED_MEMBERS)
def _(amount: int) -> bool:
    return is_remembered(amount, _suspicions())


@probe(neighbours.REFUSED_DOCUMENTS)
def _(amount: int) -> bool:
    comparisons = _gossip()._comparisons
    comparisons.note_refused(Sealed("later", b"%d" % number, b"") for number in range(amount))
    return item_digest(Sealed("later", b"0", b"")) in comparisons._refused


@probe(neighbours.HEARD_AT)
def _(amount: int) -> bool:
    peer = Peer("a", Ladder())
    for number in range(amount):
        peer.heard_in_clear((_FROM, 1_000 + number))
    return (_FROM, 1_000) in peer.heard_at


@probe(neighbours.TUNNEL_HEARD_AT)
def _(amount: int) -> bool:
    learnt = Learnt()
    for number in range(amount):
        learnt = learnt.with_tunnel_heard((_FROM, 1_000 + number))
    return (_FROM, 1_000) in learnt.tunnel_heard


@probe(neighbours.UNPROVEN_KEPT)
def _(amount: int) -> bool:
    """By how many addresses and members are asked, and who has asked from where."""
    of_members, of_addresses, credits = UnprovenBudget(), UnprovenBudget(), UnprovenBudget()
    for each in range(100):
        of_members.may_ask("first", _FIRST + each, 0.0)
        of_addresses.may_ask(f"before {each}", _FIRST, 0.0)
    credits.heard("first", _FIRST)
    for number in range(1, amount):
        of_members.may_ask(f"{number}", _FIRST + number, 0.0)
        of_addresses.may_ask(f"{number % 3000}", _FIRST + number, 0.0)
        credits.heard(f"{number}", _FIRST)
    kept = {
        not of_members.may_ask("first", _FIRST + 100_000, 0.0),
        not of_addresses.may_ask("another", _FIRST, 0.0),
        credits._has_credit(("first", _FIRST)),
    }
    assert len(kept) == 1
    return kept.pop()


@probe(neighbours.PROVEN_KEPT)
def _(amount: int) -> bool:
    budget = UnprovenBudget()
    for number in range(amount - 1):  # one is the address itself
        budget.answered(f"{number}", _FIRST, 0.0)
    return budget.has_answered(("0", _FIRST), 1.0)


@probe(neighbours.AMPLIFICATION)
def _(amount: int) -> bool:
    heard, place = Neighbours(member_without_disk(), (), below=lambda most: 0, now_s=0.0), _FROM
    heard.hear("a", Destination(place, 7471), 1, 100, 0.0)
    room = heard.room_bytes("a", Destination(place, 7471))
    return room is not None and room >= 100 * amount


@probe(neighbours.REFUSALS_AT_ONCE)
def _(amount: int) -> bool:
    rates = Rates().refused
    return all(rates.take(f"uid-{number}", 0.0) for number in range(amount))


@probe(neighbours.REFUSALS_PER_S)
def _(amount: int) -> bool:
    rates = Rates().refused
    assert all(rates.take(f"uid-{n}", 0.0) for n in range(neighbours.REFUSALS_AT_ONCE.most))
    return all(rates.take(f"later-{number}", 1.0001) for number in range(amount))


@probe(neighbours.REFUSALS_OF_ONE_PER_MINUTE)
def _(amount: int) -> bool:
    rates, most = Rates().refused, neighbours.REFUSALS_OF_ONE_PER_MINUTE.most
    assert rates.take("uid", 0.0)
    return all(rates.take("uid", 60.001 * min((n + 1) / most, 1.0)) for n in range(amount))


@probe(neighbours.HEARD_CREDIT)
def _(amount: int) -> bool:
    heard, place = Neighbours(member_without_disk(), (), below=lambda most: 0, now_s=0.0), _FROM
    for _ in range(amount):
        heard.hear("a", Destination(place, 7471), 1, 1, 0.0)
    room = heard.room_bytes("a", Destination(place, 7471))
    return room is not None and room >= amount


@probe(neighbours.CONTACT_PLACES)
def _(amount: int) -> bool:
    said = presence(2, addresses=tuple(_FIRST + each for each in range(amount)), port=7471)
    known = member_without_disk(*told(2), seal_presence(said, node_key(2)))
    found = Neighbours(known, (), below=lambda most: 0, now_s=0.0)
    return len(found.places(said.uid, 0.0)) == amount


@probe(neighbours.PROBED_ADDRESSES)
def _(amount: int) -> bool:
    addresses = tuple(_FIRST + each for each in range(amount))
    return CandidateFacts(addresses=addresses).named == addresses


def _tunnel_endpoints(told: int, heard: int) -> int:
    """How many are probed of so many that a peer tells, and from where it was heard."""
    ends = tuple((_FIRST + each, 7472) for each in range(told + heard))
    said = presence(1, addresses=(), endpoints=ends[:told], tunnel_port=7472)
    return len(tunnel_endpoints(said, ends[told:], ()))


@probe(neighbours.PROBED_TOLD)
def _(amount: int) -> bool:
    return _tunnel_endpoints(amount, 0) == amount


@probe(neighbours.PROBED_ENDPOINTS)
def _(amount: int) -> bool:
    return _tunnel_endpoints(0, amount) == amount


@probe(neighbours.HEARD_SOURCES)
def _(amount: int) -> bool:
    """What is counted of each, and of those who are refused."""
    rates = _rates()
    kept = {is_remembered(amount, rates.heard._each), is_remembered(amount, rates.refused._each)}
    assert len(kept) == 1
    return kept.pop()


@probe(neighbours.TELLERS)
def _(amount: int) -> bool:
    return is_remembered(amount, ExchangeBudget().of_members)


@probe(neighbours.CHANGERS)
def _(amount: int) -> bool:
    return is_remembered(amount, _Changes())


def _arrival(source: IPv4Address) -> Arrival:
    return Arrival(source, 7471, 1, 64, IPv4Address("192.0.2.9"))


@probe(neighbours.REPLAYED)
def _(amount: int) -> bool:
    """The first of so many is known as it comes again."""
    other = Codec(node_key(2), PINNED)
    node = _courier()
    first = other.encode(1, b"0")
    for number in range(amount):
        node._rates = _rates()  # as if each came a while after the one before
        data = first if not number else other.encode(1, str(number).encode())
        node._hear(data, lambda: _arrival(_FROM), by_tunnel=False)
    node._hear(first, lambda: _arrival(_FROM), by_tunnel=False)
    return node.counters[DropReason.REPLAYED] == 1


@probe(PACKET_SOURCES)
def _(amount: int) -> bool:
    """In clear, and of its tunnel."""
    planned = _planned(amount)
    assert len(planned.addresses) == len(planned.tunnel_ends)
    return len(planned.addresses) == amount


@probe(PACKET_SOURCES)
def _(amount: int) -> bool:
    """In clear, of a node of flannel's, whose addresses the cluster has signed."""
    return len(_planned(amount, roles=frozenset((Role.FLANNEL,))).outer) == amount


def _planned(amount: int, **changes: object) -> PeerPart:
    """What is planned for a peer that says so many addresses, and that no path leads to yet."""
    addresses = tuple(_FIRST + each for each in range(amount))
    entry = NodeEntry(node(2, **changes).grant, presence(2, addresses=addresses, tunnel_port=23000))
    return plan_peer(view(entry, paths={}), entry.grant.uid)
