"""The neighbour exchange: digests, and whom a node tells what."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from limpet.base.bounds.neighbours import AMPLIFICATION, COMPARED_AT_ONCE
from limpet.cluster.documents import Document, Key, Known, Source
from limpet.cluster.exchange.digest import (
    MOST_LISTINGS,
    DocumentIndex,
    bucket_of,
    make_listings,
    make_pushes,
    mark_of,
)
from limpet.cluster.exchange.gossip import Gossip
from limpet.cluster.exchange.messages import (
    BUCKETS,
    GOOD_BODY_BYTES,
    SUM_BYTES,
    Digest,
    Listing,
    Message,
    Push,
    Want,
    datagram_bytes,
    encode,
)
from limpet.cluster.exchange.neighbours import Broadcast, Destination, Effect, SendTo
from limpet.cluster.kinds import PODS, PRESENCE
from limpet.cluster.kinds.pods import LabelledPod, LabelledPods
from limpet.cluster.merge import merge
from limpet.cluster.seal import seal
from tests.effort import examples
from tests.unit.cluster.exchange.exchange_world import (
    LINK,
    PORT,
    Members,
    Weather,
    World,
    key_of,
    known_of,
    network_of,
    node,
    place_of,
)
from tests.unit.cluster_values import NOTHING, grant, knowledge, merged, node_key, presence


def first(below: int) -> int:
    """Chance that always takes the first."""
    return 0 * below


# Digests


def listing_of(index: DocumentIndex) -> Listing:
    every = [item for bucket in range(BUCKETS) for item in index.items(bucket)]
    return Listing(b"", b"", more=False, buckets=frozenset(range(BUCKETS)), items=tuple(every))


def marks(known: Iterable[Document]) -> set[int]:
    return {mark_of(document.key) for document in known}


def not_in(one: Known, other: Known) -> set[Key]:
    """Documents of which the other does not know this one."""
    return {document.key for document in one if other.find(document.key) != document}


@given(knowledge(), knowledge())
def test_two_who_know_the_same_have_the_same_digest_and_no_others(one: Known, other: Known) -> None:
    changed = not_in(one, other) | not_in(other, one)
    differing = DocumentIndex(one).differing(DocumentIndex(other).digest(b""))
    assert set(differing) == {bucket_of(mark_of(key)) for key in changed}


def test_no_document_is_written_so_that_it_hides_another() -> None:
    """As a removed node would, whose grant is to look like its tombstone to who has not heard."""
    nodes = [node(number, None) for number in range(1, 250)]
    grants = sorted((document for each in nodes for document in each), key=_bucket)
    pairs = [pair for pair in itertools.pairwise(grants) if _bucket(pair[0]) == _bucket(pair[1])]

    def sums(known: Iterable[Document], bucket: int, nonce: bytes) -> int:
        told = DocumentIndex(known_of([known])).digest(nonce).sums
        return int.from_bytes(told[SUM_BYTES * bucket : SUM_BYTES * (bucket + 1)])

    assert pairs
    for pair in pairs:
        bucket = _bucket(pair[0])
        both = sums(pair, bucket, b"nonce 01")
        assert both != sums(pair[:1], bucket, b"nonce 01") ^ sums(pair[1:], bucket, b"nonce 01")
        assert both != sums(pair, bucket, b"nonce 02")


def _bucket(document: Document) -> int:
    return bucket_of(mark_of(document.key))


@given(knowledge(), knowledge())
def test_what_counts_as_newer_is_what_merging_would_change(one: Known, other: Known) -> None:
    both = merged(one, other)
    here, there = DocumentIndex(one).compare(listing_of(DocumentIndex(other)))
    news = not_in(both, other)
    assert news <= set(here)
    # What the other has as a tombstone silences what stood under it: that alone is told in vain.
    assert all(both.find(("grant", name)).tombstone for _, name in set(here) - news)  # type: ignore[union-attr]
    wanted = {mark_of(key) for key in not_in(both, one)}
    assert wanted <= set(there)


@given(knowledge(), st.lists(knowledge(), max_size=3))
def test_an_index_that_was_updated_equals_one_made_anew(start: Known, changes: list[Known]) -> None:
    index, known = DocumentIndex(start), start
    for change in changes:
        known, keys = merge(known, change)
        index.update(known, keys)
    assert index.digest(b"") == DocumentIndex(known).digest(b"")
    ours, anew = listing_of(index), listing_of(DocumentIndex(known))
    assert sorted(ours.items) == sorted(anew.items)


MANY = known_of(node(number) for number in range(1, 250))
EMPTY = Digest(bytes(8), bytes(SUM_BYTES * BUCKETS))


@given(room=st.none() | st.integers(0, 20_000), chance=st.randoms(use_true_random=False))
def test_listings_keep_to_their_room_and_say_when_there_is_more(
    room: int | None, chance: object
) -> None:
    below = chance.randrange  # type: ignore[attr-defined]
    index = DocumentIndex(MANY)
    listings = make_listings(index, EMPTY, bytes(8), room_bytes=room, below=below)

    assert 1 <= len(listings) <= MOST_LISTINGS
    assert all(len(encode(listing)) <= GOOD_BODY_BYTES for listing in listings)
    if room is not None and room > 1000:
        assert sum(map(datagram_bytes, listings)) <= room
    told = [item.mark for listing in listings for item in listing.items]  # type: ignore[union-attr]
    assert len(told) == len(set(told))
    assert {listing.more for listing in listings} == {len(told) < len(marks(MANY))}  # type: ignore[union-attr]
    if room is None:
        assert set(told) == marks(MANY)


def test_pushes_share_datagrams_where_they_fit_and_what_is_checked_with_comes_first() -> None:
    known = merge(MANY, [network_of(1)])[0]
    pushes = make_pushes(known, [key_of(number) for number in range(1, 250)] + [network_of(1).key])
    told = [sealed for push in pushes for sealed in push.documents]  # type: ignore[union-attr]
    assert told[0] == network_of(1).sealed
    assert len(told) == 1 + 2 * 249
    assert all(len(encode(push)) <= GOOD_BODY_BYTES for push in pushes)
    for push in pushes:
        # Each can be checked by who has the cluster's key and this datagram alone.
        kinds = [sealed.kind for sealed in push.documents if sealed.kind != "network"]  # type: ignore[union-attr]
        assert kinds == ["grant", "presence"] * (len(kinds) // 2)


# Worlds of several nodes

nodes_known = st.lists(
    st.builds(
        node,
        st.integers(1, 6),
        st.none() | st.integers(0, 3),
        generation=st.integers(1, 2),
        tombstone=st.sampled_from([False] * 5 + [True]),
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=examples(40))
@given(
    seed=st.integers(0, 2**32),
    known=st.lists(nodes_known, min_size=2, max_size=5),
    generations=st.lists(st.integers(1, 3), min_size=5, max_size=5),
    storm=st.builds(Weather, st.floats(0, 1), st.floats(0, 1), st.floats(0, 5)),
    changes=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(4, 6), st.sampled_from(Source)),
        max_size=6,
    ),
)
def test_nodes_that_hear_each_other_end_up_knowing_the_same(
    seed: int,
    known: list[list[tuple[Document, ...]]],
    generations: list[int],
    storm: Weather,
    changes: list[tuple[int, int, int, Source]],
) -> None:
    """Whatever was lost, late and repeated before, and nothing that anybody knew is lost."""
    world = World(seed)
    world.weather = storm
    everything = NOTHING
    for number, (nodes, generation) in enumerate(zip(known, generations, strict=False), start=1):
        alive = [each for each in nodes if not (each[0].tombstone and _is_host(each))]
        host = world.add(number, known_of([node(number), *alive]))
        world.post(host, host.learn([network_of(generation)], world.now_s, Source.CLOUD))
        everything = merged(everything, host.known)
    for at, about, sequence, origin in changes:
        number = min(at, len(world.hosts))
        news = node(number if origin is Source.SELF else about, sequence)
        world.change(number, news, origin)
        everything = merge(everything, news)[0]
        world.run(1.0)

    world.weather = Weather()
    world.run(120.0)

    for host in world.hosts.values():
        assert host.known == everything
    quiet_s = world.now_s
    world.run(30.0)
    assert world.bytes_since(quiet_s) / len(world.hosts) / 30 < 1_500


def _is_host(documents: tuple[Document, ...]) -> bool:
    """A removed one is heard by nobody, so it cannot take part."""
    return documents[0].name in {grant(number).uid for number in range(1, 6)}


def crowd(size: int) -> World:
    """Nodes that know each other, settled."""
    world = World(1)
    all_known = known_of(node(number) for number in range(1, size + 1))
    for number in range(1, size + 1):
        world.add(number, all_known)
    world.run(30.0)
    world.sent.clear()
    return world


def test_a_change_of_our_own_is_known_to_all_at_once_and_its_rumour_dies() -> None:
    world = crowd(25)
    started_s = world.now_s
    world.change(1, node(1, 2), Source.SELF)
    world.run(0.01)
    assert world.is_settled()

    world.run(60.0)
    others = [at_s for at_s, of, message in world.sent if of != 1 and _tells_of(message, 1)]
    # Each sends it on once and to a few, and then there is silence about it.
    assert len(others) <= 24 * 6
    assert max(others) < started_s + 1


def test_what_one_has_from_the_cloud_all_know_in_two_seconds() -> None:
    world = crowd(25)
    world.change(3, node(41), Source.CLOUD)
    world.run(2.0)
    assert world.is_settled()


def test_a_rumour_that_many_have_at_once_is_broadcast_by_few() -> None:
    world = crowd(25)
    for number in range(1, 26):
        world.change(number, node(41), Source.CLOUD)
    world.run(5.0)
    # A broadcast is one entry in `sent`, a message to one node too.
    assert len([1 for _, _, message in world.sent if _tells_of(message, 41)]) < 25


def test_a_switch_that_was_deaf_for_a_minute_keeps_nobody_apart() -> None:
    world = World(1)
    world.weather = Weather(loss=1.0)
    for number in (1, 2):
        world.add(number, known_of([node(number)]))
    world.run(60.0)
    world.weather = Weather()
    world.run(65.0)
    assert world.is_settled()


def test_a_node_that_knows_nothing_learns_hundreds_of_others_in_seconds() -> None:
    world = World(1)
    others = [node(number) for number in range(1, 250)]
    many = known_of([*others, *(node(number, 2) for number in (100, 101))])
    world.add(1, many)
    world.add(2, known_of([node(1), node(2)]))
    world.run(10.0)
    assert world.is_settled()


def _tells_of(message: Message, number: int) -> bool:
    return isinstance(message, Push) and any(
        f'"uid":"{grant(number).uid}"'.encode() in sealed.body for sealed in message.documents
    )


# One node alone


def lone(*others: int) -> Lone:
    """Node 1, which knows the others, with one link."""
    return Lone(known_of(node(number) for number in (1, *others)))


class Lone(Gossip):
    def __init__(self, known: Known, nonce: Callable[[], bytes] = lambda: b"12345678") -> None:
        self.members = Members(1, known)
        super().__init__(self.members, known, below=first, nonce=nonce, now_s=0)
        self.set_links([LINK], [], 0)

    def hear(
        self, *news: tuple[Document, ...], origin: Source, now_s: float, **told: Any
    ) -> list[Effect]:
        every = [document for each in news for document in each]
        self.members.known, keys = merge(self.members.known, every)
        return self.learn(self.members.known, frozenset(keys), origin, now_s, **told)


NOWHERE = Destination(ip_address("203.0.113.9"), 1234)
messages = st.one_of(
    st.just(Digest(bytes(8), b"\0\0\0\x09" * BUCKETS)),
    st.just(Push()),
    st.just(Push((node(2)[0].sealed,))),
    st.builds(
        Listing,
        st.binary(min_size=8, max_size=8),
        st.just(bytes(8)),
        st.booleans(),
        st.just(frozenset(range(BUCKETS))),
        st.just(()),
    ),
    st.builds(
        Want,
        st.binary(min_size=8, max_size=8),
        st.just(tuple(marks(MANY))),
    ),
)


@given(st.lists(st.tuples(st.floats(0, 20), messages), max_size=30), st.integers(0, 2**32))
def test_who_has_not_proven_its_address_gets_a_few_times_what_it_sent(
    said: list[tuple[float, Message]], seed: int
) -> None:
    """Old messages of a member, sent on in the name of a victim."""
    world = World(seed)
    nonces = iter(range(10**9))
    gossip = Gossip(
        Members(1, MANY),
        MANY,
        below=world.random.randrange,
        nonce=lambda: b"!" + next(nonces).to_bytes(7, "big"),
        now_s=0,
    )
    now_s, came, went = 0.0, 0, 0
    for passed_s, message in said:
        now_s += passed_s
        effects = gossip.tick(now_s)
        came += datagram_bytes(message)
        effects += gossip.receive(grant(2).uid, NOWHERE, LINK, message, now_s)
        went += sum(
            datagram_bytes(effect.message)
            for effect in effects
            if isinstance(effect, SendTo) and effect.place == NOWHERE
        )
        assert went <= AMPLIFICATION.most * came


def test_a_member_that_is_asked_at_one_place_proves_no_other_that_it_forges_or_names() -> None:
    """It hears the nonce where it is, and answers in the name of a victim."""
    uid, nonces = grant(2).uid, itertools.count()
    known = known_of(node(number) for number in (1, 2, 3))
    gossip = Lone(known, nonce=lambda: next(nonces).to_bytes(8, "big"))
    gossip.receive(uid, place_of(2), LINK, EMPTY, 1)
    listing = Listing(bytes(8), bytes(8), False, frozenset(range(BUCKETS)), ())
    everything = Want(bytes(8), (mark_of(key_of(1)), mark_of(key_of(3))))
    assert gossip.receive(uid, NOWHERE, LINK, listing, 2) == []
    assert gossip.receive(uid, NOWHERE, LINK, everything, 2) == []
    assert gossip.heard[uid].proven is None

    # It names the victim beside itself: each place is asked something else.
    addresses = (place_of(2).address, NOWHERE.address)
    said = presence(2, 9, port=PORT, addresses=addresses)
    gossip.hear((seal(PRESENCE, said, node_key(2)),), origin=Source.CLOUD, now_s=3)
    gossip.suspect(uid, 4)
    asked = {
        effect.place: effect.message.nonce
        for effect in gossip.tick(5)
        if isinstance(effect, SendTo) and isinstance(effect.message, Digest)
    }
    there = Destination(NOWHERE.address, PORT)
    assert asked.keys() == {place_of(2), there}
    own = asked[place_of(2)]
    assert gossip.receive(uid, there, LINK, replace(everything, echo=own), 6) == []
    assert gossip.receive(uid, place_of(2), LINK, replace(everything, echo=own), 6)


def test_an_answer_that_nobody_asked_for_is_dropped_and_counted() -> None:
    gossip = lone(2)
    listing = Listing(b"unasked!", bytes(8), False, frozenset(), ())
    want = Want(b"unasked!", (mark_of(key_of(1)),))
    assert gossip.receive(grant(2).uid, place_of(2), LINK, listing, 1) == []
    assert gossip.receive(grant(2).uid, place_of(2), LINK, want, 1) == []
    assert gossip.counters["unasked"] == 2


def test_a_listing_that_was_asked_for_is_answered_with_what_each_side_lacks() -> None:
    gossip = lone(2, 3)
    gossip.receive(grant(2).uid, place_of(2), LINK, EMPTY, 1)  # issues a nonce
    other = DocumentIndex(known_of([node(2), node(3, 2), node(4)]))
    listing = replace(listing_of(other), echo=b"12345678", nonce=b"my nonce")
    effects = gossip.receive(grant(2).uid, place_of(2), LINK, listing, 2)
    lacking = tuple(sorted(map(mark_of, (key_of(3), key_of(4), key_of(4, "grant")))))
    assert [effect.message for effect in effects] == [
        Want(b"my nonce", lacking),
        Push(tuple(document.sealed for document in node(1))),
    ]


def test_strangers_and_removed_nodes_get_no_answer_and_are_counted() -> None:
    gossip = lone(2)
    gone = node(2, tombstone=True)
    assert gossip.receive(grant(3).uid, place_of(3), LINK, EMPTY, 1) == []
    gossip.hear(gone, origin=Source.CLOUD, now_s=1)
    assert gossip.receive(grant(2).uid, place_of(2), LINK, EMPTY, 1) == []
    assert gossip.counters["stranger"] == 2
    assert gossip.heard == {}


def test_a_removed_node_is_silent() -> None:
    gossip = lone(2)
    effects = gossip.hear(node(1, tombstone=True), origin=Source.NEIGHBOUR, now_s=1)
    while gossip.wake_at_s < 100:
        effects += gossip.tick(gossip.wake_at_s)
    effects += gossip.receive(grant(2).uid, place_of(2), LINK, EMPTY, 101)
    assert effects == []


def test_a_member_that_says_over_and_over_that_it_knows_more_gets_few_digests() -> None:
    gossip = lone(2)
    while gossip.wake_at_s < 3:
        gossip.tick(gossip.wake_at_s)
    now_s = 3.0
    sent: list[SendTo] = []
    while now_s < 33:
        gossip.suspect(grant(2).uid, now_s)
        sent += [each for each in gossip.tick(now_s) if isinstance(each, SendTo)]
        now_s += 0.01
    digests = [each for each in sent if isinstance(each.message, Digest)]
    # Ten of them are those that it gets anyway.
    assert 10 <= len(digests) <= 25


def test_a_peer_that_answered_is_written_to_where_it_answered_from() -> None:
    gossip = lone(2)
    elsewhere = Destination(ip_address("198.51.100.2"), 999)
    uid = grant(2).uid
    gossip.receive(uid, elsewhere, LINK, Push(), 1)
    before = gossip.hear(node(1, 2), origin=Source.SELF, now_s=2)
    assert _written_to(before) == {place_of(2)}

    gossip.receive(uid, elsewhere, LINK, EMPTY, 3)  # issues a nonce, always the same here
    gossip.receive(uid, elsewhere, LINK, Want(b"12345678", ()), 4)
    after = gossip.hear(node(1, 3), origin=Source.SELF, now_s=5)
    assert _written_to(after) == {elsewhere}

    long_after = gossip.hear(node(1, 4), origin=Source.SELF, now_s=100)
    assert place_of(2) in _written_to(long_after)


def test_a_peer_that_says_it_moved_is_no_longer_written_to_where_it_was() -> None:
    gossip = lone(2)
    uid = grant(2).uid
    gossip.receive(uid, Destination(ip_address("198.51.100.2"), 999), LINK, EMPTY, 3)
    gossip.receive(
        uid, Destination(ip_address("198.51.100.2"), 999), LINK, Want(b"12345678", ()), 4
    )
    gossip.hear(node(2, 5), origin=Source.NEIGHBOUR, now_s=5)
    effects = gossip.hear(node(1, 2), origin=Source.SELF, now_s=5)
    assert _written_to(effects) == {place_of(2)}


def test_who_compares_without_an_end_is_answered_for_a_while_and_another_all_the_same() -> None:
    """By a nonce that it got once, and an empty listing of all buckets: it is sent all there is."""
    gossip, everything = lone(2, 3), frozenset(range(BUCKETS))

    def answers(number: int) -> int:
        uid, place = grant(number).uid, place_of(number)
        digest = Digest(b"question", bytes(4 * BUCKETS))
        gossip.receive(uid, place, LINK, digest, 5)
        empty = Listing(b"12345678", b"question", False, everything, ())
        return len(gossip.receive(uid, place, LINK, empty, 5))

    many = [answers(2) for _ in range(COMPARED_AT_ONCE.most // 8)]
    assert many[0]
    assert not many[-1]
    assert answers(3)
    assert gossip.counters["over_rate"]


def test_who_wants_large_documents_over_and_over_is_answered_for_a_while() -> None:
    """By a nonce that it got once; each is put together anew, whether there is room to send it."""
    pods = tuple(LabelledPod("a", f"b{n}", (), {"c" * 60: "d" * 60}) for n in range(64))
    large = [
        seal(PODS, LabelledPods(grant(3).uid, part, 1, pods), node_key(3)) for part in range(8)
    ]
    gossip, uid = Lone(merge(known_of([node(1), node(2), node(3)]), large)[0]), grant(2).uid
    gossip.receive(uid, place_of(2), LINK, EMPTY, 1)
    want = Want(b"12345678", tuple(mark_of(each.key) for each in large))
    most = COMPARED_AT_ONCE.most // (len(large) * (len(large[0].sealed.body) // 1024))
    for _ in range(most + 1):
        gossip.receive(uid, place_of(2), LINK, want, 1)
    before = gossip.counters["over_rate"]
    gossip.receive(uid, place_of(2), LINK, want, 1)
    assert gossip.counters["over_rate"] == before + 1  # it was not looked at


SECONDS = range(12)


def served_while(askers: list[int]) -> tuple[set[int], set[int]]:
    """Seconds in which the node's news go out, and in which node 3 is answered, while others ask
    for small documents over and over, each at an address where it proves that it is there."""
    nonces, others = itertools.count(), range(9, 19)
    gossip = Lone(
        known_of(node(number) for number in range(1, 19)),
        nonce=lambda: next(nonces).to_bytes(8, "big"),
    )
    wanted = tuple(mark_of(key_of(number, "grant")) for number in others)
    places = [(grant(number).uid, place_of(100 + at)) for at, number in enumerate(askers)]
    pods = tuple(LabelledPod("a", f"b{n}", (), {"c": "d"}) for n in range(64))
    told_in: set[int] = set()
    answered_in: set[int] = set()

    def ask_first(uid: str, place: Destination, now_s: float) -> bytes:
        """The nonce with which it goes on."""
        said = [each.message for each in gossip.receive(uid, place, LINK, EMPTY, now_s)]
        return next((each.nonce for each in said if isinstance(each, Listing)), b"")

    for second in SECONDS:
        proofs = [(*each, ask_first(*each, second)) for each in places]
        proof = ask_first(grant(3).uid, place_of(3), second)
        for turn in range(90):
            now_s = second + (turn + 1) / 100
            for uid, place, nonce in proofs:
                gossip.receive(uid, place, LINK, Want(nonce, wanted), now_s)
        told = seal(PODS, LabelledPods(grant(1).uid, 0, second + 1, pods), node_key(1))
        effects = gossip.hear((told,), origin=Source.SELF, now_s=now_s)
        if any(isinstance(each, Broadcast) for each in effects):
            told_in.add(second)
        if gossip.receive(grant(3).uid, place_of(3), LINK, Want(proof, wanted), now_s):
            answered_in.add(second)
    return told_in, answered_in


def test_a_member_with_many_addresses_keeps_no_news_and_no_answer_from_others() -> None:
    told_in, answered_in = served_while([2, 2, 2, 2, 2])
    assert told_in == set(SECONDS)
    assert answered_in == set(SECONDS)


def test_members_that_ask_without_an_end_keep_no_news_from_others_however_many_they_are() -> None:
    told_in, _ = served_while([2, 4, 5, 6, 7, 8])
    assert told_in == set(SECONDS)


def test_a_peer_behind_a_tunnel_is_compared_with_and_written_to_inside_it() -> None:
    gossip, uid, inner = lone(2), grant(2).uid, ip_address("10.244.2.0")
    gossip.set_tunnelled({uid: inner}, 50)
    effects = []
    while gossip.wake_at_s < 52:
        effects += gossip.tick(gossip.wake_at_s)
    asked = [each for each in effects if isinstance(each, SendTo) and each.uid == uid]
    assert {each.place for each in asked} == {Destination(inner, 7471)}
    assert asked

    told = gossip.hear(node(1, 2), origin=Source.SELF, now_s=60)
    assert _written_to(told) == {Destination(inner, 7471)}

    gossip.set_tunnelled({}, 70)
    told = gossip.hear(node(1, 3), origin=Source.SELF, now_s=71)
    assert _written_to(told) == {place_of(2)}


def test_a_new_link_hears_at_once_who_we_are_and_hears_it_again() -> None:
    gossip = lone(2)
    effects = gossip.set_links([LINK, 8], [8], 1)
    assert {effect.ifindex for effect in effects if isinstance(effect, Broadcast)} == {8}
    times = []
    while gossip.wake_at_s < 4:
        now_s = gossip.wake_at_s
        if any(isinstance(effect, Broadcast) for effect in gossip.tick(now_s)):
            times.append(round(now_s - 1, 3))
    assert times[:3] == [0.2, 0.7, 1.5]


@pytest.mark.parametrize("origin", list(Source))
def test_a_change_is_not_told_to_whom_it_came_from_nor_where_all_heard_it(origin: Source) -> None:
    gossip = lone(2, 3)
    effects = gossip.hear(node(4, 2), origin=origin, now_s=1, from_uid=grant(2).uid, from_link=LINK)
    while gossip.wake_at_s < 3.5:
        effects += gossip.tick(gossip.wake_at_s)
    told = [effect for effect in effects if _tells_of(effect.message, 4)]
    assert told
    assert _written_to(told) == {place_of(3)}
    assert not any(isinstance(effect, Broadcast) for effect in told)


def _written_to(effects: object) -> set[Destination]:
    return {
        effect.place
        for effect in effects  # type: ignore[attr-defined]
        if isinstance(effect, SendTo) and isinstance(effect.message, Push)
    }
