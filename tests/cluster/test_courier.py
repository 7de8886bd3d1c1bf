"""The courier over real links of one switch: both families, strangers, floods, lost links."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address

import pytest

from limpet.base.errors import ConfigError
from limpet.base.rate_limit import TokenBucket
from limpet.cluster.datagrams.peer_datagram import MAX_BODY_BYTES, BodyKind, Codec, DatagramError
from limpet.cluster.datagrams.peer_socket import GROUP
from limpet.cluster.exchange.messages import Push, decode
from limpet.cluster.keys import public_key_of
from tests.cluster.courier_bed import PORT, CourierBed, Post, run
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    PINNED,
    grant,
    network,
    node_key,
    seal_grant,
    seal_network,
)
from tests.waiting import until


@pytest.fixture(name="bed")
def _bed() -> Iterator[CourierBed]:
    bed = CourierBed()
    yield bed
    bed.close()


@contextmanager
def switch_of(*versions: int) -> Iterator[CourierBed]:
    bed = CourierBed(versions)
    try:
        yield bed
    finally:
        bed.close()


@asynccontextmanager
async def posts(*made: Post) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for post in made:
            post.courier.stop()


SECOND = ("192.0.2.2", "2001:db8::2")
"""Addresses of the second host."""


@pytest.mark.parametrize("address", SECOND)
def test_a_message_says_who_sent_it_and_where_an_answer_goes(bed: CourierBed, address: str) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        async with posts(one, two):
            to = ip_address(address)
            assert one.courier.send(
                BodyKind.PROBE, b"are you there", to_uid=two.uid, address=to, port=PORT, hop_limit=1
            )
            (received,) = await two.receive()
            assert (received.kind, received.body) == (BodyKind.PROBE, b"are you there")
            assert received.uid == one.uid
            assert str(received.address) == one.host.address(to.version).partition("/")[0]
            assert (received.port, received.to_address) == (PORT, to)
            assert received.ifindex == two.host.link.ifindex
            assert received.hop_limit == 1
            assert not received.to_anybody
            two.courier.answer(received, BodyKind.ANSWER, b"I am")
            (answer,) = await one.receive()
            assert (answer.uid, answer.body, answer.address) == (two.uid, b"I am", to)
            assert answer.hop_limit == 64

    run(scenario)


@pytest.mark.parametrize("versions", [(4,), (6,), (4, 6)])
def test_a_broadcast_reaches_everybody_on_the_link_once_and_can_be_answered(
    versions: tuple[int, ...],
) -> None:
    async def scenario(bed: CourierBed) -> None:
        one, two, three = (Post(bed.host(number)) for number in (1, 2, 3))
        async with posts(one, two, three):
            one.courier.broadcast(BodyKind.EXCHANGE, b"I am new", [one.host.link.ifindex])
            for other in (two, three):
                (received,) = await other.receive()
                assert (received.uid, received.body, received.hop_limit) == (
                    one.uid,
                    b"I am new",
                    1,
                )
                assert received.to_anybody
                assert received.address.is_link_local == (6 in versions)
                other.courier.answer(received, BodyKind.PROBE, b"hello")
            answers = await one.receive(2)
            assert {answer.uid for answer in answers} == {two.uid, three.uid}
            copies = 2 if versions == (4, 6) else 1
            await until(
                lambda: two.courier.counters["replayed"] + len(two.got) == copies,
            )
            assert len(two.got) == 1

    with switch_of(*versions) as bed:
        run(lambda: scenario(bed))


def test_what_comes_twice_counts_once(bed: CourierBed) -> None:
    async def scenario() -> None:
        one, two = bed.host(1), Post(bed.host(2))
        async with posts(two):
            data = Codec(node_key(1), PINNED).encode(BodyKind.EXCHANGE, b"once", to_uid=two.uid)
            with one.netns.open_socket(4, socket.SOCK_DGRAM) as raw:
                for _ in range(3):
                    raw.sendto(data, ("192.0.2.2", PORT))
            await until(lambda: two.courier.counters["replayed"] == 2)
            assert len(two.got) == 1

    run(scenario)


def test_what_is_not_a_neighbours_word_for_us_is_dropped_and_counted(bed: CourierBed) -> None:
    foreign = public_key_of(node_key(99))
    good = Codec(node_key(1), PINNED).encode(BodyKind.EXCHANGE, b"good")
    spoilt = bytes((*good[:-65], good[-65] ^ 1, *good[-64:]))
    others = Codec(node_key(1), PINNED).encode(BodyKind.EXCHANGE, b"", to_uid=grant(7).uid)
    own = Codec(node_key(2), PINNED).encode(BodyKind.EXCHANGE, b"echo")
    said = {
        "foreign": [b"", b"hello", os.urandom(500), Codec(node_key(1), foreign).encode(1, b"")],
        "malformed": [good[:100]],
        "bad_signature": [spoilt],
        "not_for_us": [others],
        "own": [own],
        "unhandled": [Codec(node_key(1), PINNED).encode(200, b"")],
        "too_big": [good + bytes(MAX_BODY_BYTES)],
    }

    async def scenario() -> None:
        one, two = bed.host(1), Post(bed.host(2))
        async with posts(two):
            with one.netns.open_socket(4, socket.SOCK_DGRAM) as raw:
                for datagrams in said.values():
                    for data in datagrams:
                        raw.sendto(data, ("192.0.2.2", PORT))
                raw.sendto(good, ("192.0.2.2", PORT))
            (received,) = await two.receive()
            assert received.body == b"good"
            counted = {why: two.courier.counters[why] for why in said}
            assert counted == {why: len(datagrams) for why, datagrams in said.items()}

    run(scenario)


def test_a_handler_that_fails_costs_its_message_alone(bed: CourierBed) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        async with posts(one, two):
            two.courier.on(BodyKind.PROBE, lambda _received: bool(1 // 0))
            for kind in (BodyKind.PROBE, BodyKind.EXCHANGE):
                one.courier.send(
                    kind, b"", to_uid=two.uid, address=ip_address("192.0.2.2"), port=PORT
                )
            await two.receive()
            assert two.courier.counters["handler_failed"] == 1

    run(scenario)


@pytest.mark.parametrize("address", SECOND)
def test_a_removed_node_is_told_so_and_not_heard(bed: CourierBed, address: str) -> None:
    tombstone = seal_grant(grant(1, tombstone=True), CLUSTER_KEY)
    told = (seal_network(network(), CLUSTER_KEY), tombstone)

    async def scenario() -> None:
        one = Post(bed.host(1))
        two = Post(bed.host(2), is_removed=lambda uid: told if uid == one.uid else ())
        async with posts(one, two):
            for body in (b"a", b"b", b"c"):
                one.courier.send(
                    BodyKind.EXCHANGE,
                    body,
                    to_uid=two.uid,
                    address=ip_address(address),
                    port=PORT,
                )
            answers = await one.receive(2)
            assert [decode(each.body) for each in answers] == [Push((each,)) for each in told]
            await until(lambda: two.courier.counters["removed"] == 3)
            assert two.got == []
            assert two.courier.counters["sent"] == 2

    run(scenario)


@pytest.mark.parametrize("address", SECOND)
def test_a_strangers_flood_costs_few_checks_and_a_member_is_still_heard(
    bed: CourierBed, address: str
) -> None:
    junk = Codec(node_key(9), PINNED).encode(BodyKind.EXCHANGE, b"x" * 500)

    async def scenario() -> None:
        one, two, three = Post(bed.host(1)), Post(bed.host(2)), bed.host(3)
        two.courier._is_member = lambda uid: uid == one.uid
        async with posts(one, two):

            def call(body: bytes) -> None:
                one.courier.send(
                    BodyKind.EXCHANGE,
                    body,
                    to_uid=two.uid,
                    address=ip_address(address),
                    port=PORT,
                )

            call(b"first")
            await two.receive()
            counters = two.courier.counters
            began_s = time.monotonic()
            with three.netns.open_socket(ip_address(address).version, socket.SOCK_DGRAM) as raw:
                # Until the neighbour is found the kernel keeps but the last hundred or so.
                raw.sendto(junk[:-4] + bytes(4), (address, PORT))
                await until(lambda: counters["bad_signature"] == 1)
                for number in range(3000):
                    forged = junk[:-4] + number.to_bytes(4, "big")
                    raw.sendto(forged, (address, PORT))
            call(b"second")
            _, second = await two.receive(2)
            assert second.body == b"second"
            # What came by another wire may have been overtaken.
            await until(lambda: bool(counters["over_rate"]))
            # The burst, and what the rate allows in the time that the machine took.
            assert counters["bad_signature"] <= 400 + 200 * (time.monotonic() - began_s)

    run(scenario)


VALID = Codec(node_key(9), PINNED).encode(BodyKind.EXCHANGE, b"x" * 500)


@pytest.mark.parametrize(
    ("drop", "data"),
    [
        ("newer", b"Lmp\x02" + bytes(96)),
        ("malformed", VALID[:20]),
        ("foreign", b"nothing of ours"),
        ("replayed", VALID),
        ("over_rate", VALID[:-4] + bytes(4)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_flood_of_whatever_kind_is_read_with_pauses(
    bed: CourierBed, drop: str, data: bytes
) -> None:
    """64 datagrams, and then 20 ms for everybody else."""

    async def scenario() -> None:
        two, three = Post(bed.host(2)), bed.host(3)
        async with posts(two):
            counters = two.courier.counters
            sent_s = time.monotonic()
            with three.netns.open_socket(4, socket.SOCK_DGRAM) as raw:
                raw.sendto(data, (SECOND[0], PORT))
                await until(lambda: counters.total() == 1)  # the neighbour is found
                for _ in range(1663):
                    raw.sendto(data, (SECOND[0], PORT))
            began_s = time.monotonic()
            # What was left over of the first of its kind, and what the rate lets through.
            await until(lambda: counters.total() >= 1664)
            let_through = counters["bad_signature"] if drop == "over_rate" else 0
            assert let_through <= 400 + 200 * (time.monotonic() - sent_s)
            assert counters[drop] + let_through > 640
            assert time.monotonic() - began_s > 20 * 0.02

    run(scenario)


@pytest.mark.parametrize("address", SECOND)
def test_a_flood_from_another_port_of_a_members_address_uses_up_nothing_of_the_members(
    bed: CourierBed, address: str
) -> None:
    """As of a pod behind its node's masquerade, or of whoever shares a NAT with the node."""
    junk = Codec(node_key(9), PINNED).encode(BodyKind.EXCHANGE, b"x" * 500)

    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        two.courier._is_member = lambda uid: uid == one.uid
        async with posts(one, two):

            def call(body: bytes) -> None:
                one.courier.send(
                    BodyKind.EXCHANGE,
                    body,
                    to_uid=two.uid,
                    address=ip_address(address),
                    port=PORT,
                )

            call(b"first")
            await two.receive()
            began_s = time.monotonic()
            with one.host.netns.open_socket(ip_address(address).version, socket.SOCK_DGRAM) as raw:
                for number in range(3000):
                    forged = junk[:-4] + number.to_bytes(4, "big")
                    raw.sendto(forged, (address, PORT))
            call(b"second")
            _, second = await two.receive(2)
            assert second.body == b"second"
            counters = two.courier.counters
            most = 400 + 200 * (time.monotonic() - began_s)
            assert counters["bad_signature"] <= most, "it is a stranger's"
            assert counters["over_rate"]

    run(scenario)


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(8, 3, now_s=100)
    assert [bucket.take(100) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(100.125), bucket.take(100.125)] == [True, False]
    assert not bucket.take(50), "a clock that goes back gives nothing"
    assert [bucket.take(10_000) for _ in range(4)] == [True, True, True, False]


def test_a_link_that_went_and_came_back_is_heard_again(bed: CourierBed) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        async with posts(one, two):
            one.courier.broadcast(BodyKind.EXCHANGE, b"before", [one.host.link.ifindex])
            await two.receive()
            old = two.host.link.ifindex
            two.host.netns.ip("link del eth0")
            two.courier.set_links(())
            two.courier.broadcast(BodyKind.EXCHANGE, b"nowhere", [old])
            assert two.courier.counters["unsendable"] > 0
            two.host.plug()
            assert two.host.link.ifindex != old
            two.courier.set_links((two.host.link,))
            one.courier.broadcast(BodyKind.EXCHANGE, b"after", [one.host.link.ifindex])
            assert [received.body for received in await two.receive(2)] == [b"before", b"after"]
            group = str(GROUP)
            assert group in two.host.netns.run("ip", "maddr", "show", "dev", "eth0")
            two.courier.set_links(())
            assert group not in two.host.netns.run("ip", "maddr", "show", "dev", "eth0")

    run(scenario)


def test_a_large_message_goes_in_fragments_and_a_larger_one_is_refused(bed: CourierBed) -> None:
    async def scenario() -> None:
        one, two = Post(bed.host(1)), Post(bed.host(2))
        async with posts(one, two):
            for address in ("192.0.2.2", "2001:db8::2"):
                body = os.urandom(MAX_BODY_BYTES)
                to = ip_address(address)
                one.courier.send(BodyKind.EXCHANGE, body, to_uid=two.uid, address=to, port=PORT)
            for received in await two.receive(2):
                assert len(received.body) == MAX_BODY_BYTES
            with pytest.raises(DatagramError):
                one.courier.send(
                    BodyKind.EXCHANGE, bytes(MAX_BODY_BYTES + 1), to_uid="", address=to, port=PORT
                )

    run(scenario)


def test_a_port_that_another_program_has_is_named_with_what_to_do(bed: CourierBed) -> None:
    async def scenario() -> None:
        host = bed.host(1)
        with contextlib.ExitStack() as held:
            taken = held.enter_context(host.netns.open_socket(6, socket.SOCK_DGRAM))
            taken.bind(("::", PORT))
            with pytest.raises(ConfigError, match=r"UDP port 7471: Address already in use \(`ss"):
                Post(host)
        async with posts(Post(host)):
            pass  # nothing of the first attempt is in the way

    run(scenario)
