"""The neighbour exchange between real sockets and real memberships, no cloud in sight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

import msgspec
import pytest

from limpet.base.bounds.neighbours import STRANGERS_TOLD_AT_ONCE, STRANGERS_TOLD_PER_S
from limpet.cluster.datagrams.peer_datagram import BodyKind
from limpet.cluster.datagrams.peer_socket import PeerSocket
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.exchange import gossip
from limpet.cluster.exchange.digest import item_digest
from limpet.cluster.exchange.exchange import Exchange
from limpet.cluster.exchange.inner_traffic import InnerTraffic
from limpet.cluster.exchange.messages import BUCKETS, SUM_BYTES, Digest, Push, encode
from limpet.cluster.keys import ClusterKey, endorse, public_key_of
from tests.beds.member import membership_of
from tests.cluster.courier_bed import PORT, CourierBed, Host, Post, run
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    grant,
    network,
    node_key,
    seal_grant,
    seal_network,
    told,
)
from tests.waiting import until


class Node:
    """All of a node that takes part in the exchange."""

    def __init__(self, host: Host, folder: Path) -> None:
        """It knows its own grant and the network. Within a running loop."""
        self.host = host
        folder.mkdir(exist_ok=True)
        identity = host.identity(folder)
        self.uid = identity.uid
        self.membership = membership_of(identity, boot_id=f"boot-{host.number}")
        self.courier = PeerSocket(
            identity,
            port=PORT,
            is_member=self.membership.is_member,
            is_removed=self.membership.removal_of,
        )
        self.exchange = Exchange(self.membership, self.courier, InnerTraffic())
        self.hear_from_cloud(told(host.number))

    def start(self) -> None:
        with self.host.netns.entered():
            self.courier.start()
        self.link_is_up()
        self.exchange.start()
        self.membership.replica.subscribe(self.exchange.hear)

    def link_is_up(self) -> None:
        self.courier.set_links((self.host.link,))
        self.exchange.set_links((self.host.link,))

    def link_is_down(self) -> None:
        self.courier.set_links(())
        self.exchange.set_links(())

    async def stop(self) -> None:
        await self.exchange.stop()
        self.courier.stop()
        self.membership.close()

    def hear_from_cloud(self, *nodes: list[Sealed]) -> None:
        documents = [document for each in nodes for document in each]
        self.membership.offer(
            [seal_network(network(), CLUSTER_KEY), *documents], source=Source.CLOUD
        )

    def announce(self, *addresses: str) -> None:
        self.membership.announce(
            addresses=tuple(map(ip_address, addresses)),
            port=PORT,
            vtep_macs={},
            link_mtu_bytes=1500,
        )

    def knows(self, other: Node, *addresses: str) -> bool:
        """What the other announced last."""
        known = self.membership.snapshot.nodes.get(other.uid)
        said = known.presence if known is not None else None
        return said is not None and tuple(map(str, said.addresses)) == addresses


Scenario = Callable[..., Awaitable[None]]


def with_nodes(
    tmp_path: Path, count: int, scenario: Scenario, versions: tuple[int, ...] = (4, 6)
) -> None:
    """Runs the scenario with nodes on one switch that were not started."""
    bed = CourierBed(versions)

    async def main() -> None:
        nodes = [Node(bed.host(n), tmp_path / f"n{n}") for n in range(1, count + 1)]
        try:
            await scenario(*nodes)
        finally:
            for node in nodes:
                await node.stop()

    try:
        run(main)
    finally:
        bed.close()


@pytest.fixture
def never_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody is told at once nobody finds out later."""
    monkeypatch.setattr(gossip, "_COMPARE_S", (1e6, 1e6))


@pytest.mark.usefixtures("never_compares")
@pytest.mark.parametrize("versions", [(4,), (6,), (4, 6)])
def test_a_change_gets_to_all_on_the_link_without_any_known_address(
    tmp_path: Path, versions: tuple[int, ...]
) -> None:
    async def scenario(one: Node, two: Node, three: Node) -> None:
        for node in (one, two, three):
            node.start()
        one.announce("203.0.113.1")
        await until(lambda: two.knows(one, "203.0.113.1") and three.knows(one, "203.0.113.1"))
        one.announce("203.0.113.77")
        await until(lambda: two.knows(one, "203.0.113.77") and three.knows(one, "203.0.113.77"))
        assert two.membership.replica.counters["neighbour_fresh"] >= 2

    with_nodes(tmp_path, 3, scenario, versions)


@pytest.mark.usefixtures("never_compares")
def test_two_nodes_that_change_at_once_find_each_other(tmp_path: Path) -> None:
    async def scenario(one: Node, two: Node) -> None:
        old = [told(1, sequence=5), told(2, sequence=5)]  # addresses that nobody has any more
        for node in (one, two):
            node.hear_from_cloud(*old)
            node.start()
        one.announce("192.0.2.1")
        two.announce("192.0.2.2")
        await until(lambda: one.knows(two, "192.0.2.2") and two.knows(one, "192.0.2.1"))

    with_nodes(tmp_path, 2, scenario)


def test_a_member_that_publishes_in_a_loop_keeps_others_disks_quiet_and_is_known_in_the_end(
    tmp_path: Path,
) -> None:
    async def scenario(one: Node, two: Node) -> None:
        for node in (one, two):
            node.start()
            node.announce(f"192.0.2.{node.host.number}")
        await until(lambda: one.knows(two, "192.0.2.2") and two.knows(one, "192.0.2.1"))
        for number in range(200):
            one.announce("192.0.2.1", f"198.51.100.{number}")
            await asyncio.wrap_future(one.membership.replica.file.durable())
        one.announce("192.0.2.1", "203.0.113.9")
        await until(lambda: two.exchange.counters["over_rate"] > 0)
        await until(lambda: two.knows(one, "192.0.2.1", "203.0.113.9"))
        assert two.membership.replica.counters["neighbour_fresh"] < 100

        two.hear_from_cloud(told(3, tombstone=True, generation=2))
        one.hear_from_cloud(told(2, tombstone=True, generation=2))
        await until(lambda: two.membership.removed)

    with_nodes(tmp_path, 2, scenario)


def test_a_removal_spreads_also_to_the_one_that_is_removed(tmp_path: Path) -> None:
    async def scenario(one: Node, two: Node, three: Node) -> None:
        nodes = (one, two, three)
        for node in nodes:
            node.start()
            node.announce(f"192.0.2.{node.host.number}")
        await until(lambda: all(len(node.membership.snapshot.nodes) == 3 for node in nodes))
        one.hear_from_cloud(told(3, tombstone=True, generation=2))
        await until(lambda: two.membership.tombstone_of(three.uid) is not None)
        await until(lambda: three.membership.removed)
        assert three.uid not in two.exchange.heard

    with_nodes(tmp_path, 3, scenario)


def test_a_removed_node_that_comes_back_with_its_old_grant_is_refused_and_told(
    tmp_path: Path,
) -> None:
    async def scenario(one: Node, two: Node) -> None:
        one.hear_from_cloud(told(2, tombstone=True, generation=2))
        one.start()
        two.announce("192.0.2.2")
        two.start()
        await until(lambda: two.membership.removed)
        assert one.courier.counters["removed"] > 0
        assert two.uid not in one.exchange.heard

    with_nodes(tmp_path, 2, scenario)


def test_a_node_that_missed_a_rotation_and_was_then_removed_is_told_by_a_neighbour(
    tmp_path: Path,
) -> None:
    keys = (CLUSTER_KEY, node_key(201))
    endorsed = (ClusterKey(public_key_of(keys[0])), endorse(public_key_of(keys[1]), keys[0]))
    rotated = network(2, keys=endorsed, revision=10, rotated_at=(10,))
    removed = grant(2, generation=2, revision=11, era=1, tombstone=True)

    async def scenario(one: Node, two: Node) -> None:
        one.membership.offer(
            [seal_network(rotated, keys[1]), seal_grant(removed, keys[1])], source=Source.CLOUD
        )
        one.start()
        two.announce("192.0.2.2")
        two.start()
        await until(lambda: two.membership.removed)
        assert two.membership.era == 1

    with_nodes(tmp_path, 2, scenario)


def test_a_node_that_was_cut_off_catches_up_with_its_neighbours(tmp_path: Path) -> None:
    async def scenario(one: Node, two: Node) -> None:
        for node in (one, two):
            node.start()
            node.announce(f"192.0.2.{node.host.number}")
        await until(lambda: one.knows(two, "192.0.2.2") and two.knows(one, "192.0.2.1"))
        two.host.netns.ip("link set eth0 down")
        two.link_is_down()
        one.hear_from_cloud(*(told(n, sequence=1) for n in range(10, 110)))
        two.hear_from_cloud(*(told(n, sequence=2) for n in range(60, 120)))
        two.host.netns.ip("link set eth0 up")
        two.link_is_up()
        await until(lambda: one.membership.snapshot.nodes == two.membership.snapshot.nodes)
        assert len(one.membership.snapshot.nodes) == 112

    with_nodes(tmp_path, 2, scenario)


def test_what_a_stranger_says_is_dropped_and_counted(tmp_path: Path) -> None:
    async def scenario(one: Node) -> None:
        one.start()
        stranger = Post(one.host.bed.host(9))
        forged = seal_grant(grant(9), node_key(9))
        try:
            for body in (encode(one_digest()), encode(Push((forged,))), b"no message at all"):
                assert stranger.courier.send(
                    BodyKind.EXCHANGE,
                    body,
                    to_uid=one.uid,
                    address=ip_address("192.0.2.1"),
                    port=PORT,
                )
            await until(lambda: one.exchange.counters.get("malformed", 0) == 1)
            assert one.exchange.counters["stranger"] == 2
            assert one.membership.replica.counters["neighbour_bad"] == 1
            assert stranger.got == []
            assert stranger.uid not in one.membership.snapshot.nodes
            assert stranger.uid not in one.exchange.heard
        finally:
            stranger.courier.stop()

    with_nodes(tmp_path, 1, scenario)


def test_what_a_member_tells_and_nobody_here_reads_is_remembered_and_of_a_stranger_it_is_not(
    tmp_path: Path,
) -> None:
    async def scenario(one: Node) -> None:
        one.start()
        one.hear_from_cloud(told(2))
        member, stranger = Post(one.host.bed.host(2)), Post(one.host.bed.host(9))
        later, forged = Sealed("later", b"{}", bytes(64)), seal_grant(grant(3), node_key(9))
        strange = Sealed("later", b"[]", bytes(64))
        try:
            for teller, push in ((stranger, (strange,)), (member, (later, forged))):
                teller.courier.send(
                    BodyKind.EXCHANGE,
                    encode(Push(push)),
                    to_uid=one.uid,
                    address=ip_address("192.0.2.1"),
                    port=PORT,
                )
            await until(lambda: one.membership.replica.counters["neighbour_bad"] == 3)
            assert one.exchange._gossip is not None
            assert [*one.exchange._gossip._comparisons._refused] == [item_digest(later)]
        finally:
            member.courier.stop()
            stranger.courier.stop()

    with_nodes(tmp_path, 1, scenario)


def test_a_large_document_of_a_stranger_counts_as_many_before_it_is_read(tmp_path: Path) -> None:
    """Who has signed it is known only then: one of 59 kB took a twelfth of a second."""

    async def scenario(one: Node) -> None:
        one.start()
        stranger = Post(one.host.bed.host(9))
        segments = tuple(map(ip_network, (f"10.{n >> 8}.{n & 255}.0/24" for n in range(3_600))))
        forged = seal_grant(grant(9, segments=segments), node_key(9))
        heavy = len(forged.body) // 1024 + 1
        most, counters = STRANGERS_TOLD_AT_ONCE.most, one.membership.replica.counters
        began_s = time.monotonic()
        try:
            for number in range(most // heavy + 10):
                other = msgspec.structs.replace(forged, signature=bytes(60) + b"%04d" % number)
                stranger.courier.send(
                    BodyKind.EXCHANGE,
                    encode(Push((other,))),
                    to_uid="",
                    address=ip_address("192.0.2.1"),
                    port=PORT,
                )
            await until(lambda: one.exchange.counters.get("over_rate", 0) > 0)
            earned = STRANGERS_TOLD_PER_S.most * (time.monotonic() - began_s)
            assert 1 <= counters["neighbour_bad"] <= (most + earned) // heavy + 1
        finally:
            stranger.courier.stop()

    with_nodes(tmp_path, 1, scenario)


def test_a_newcomer_that_the_cloud_has_granted_is_believed_by_its_own_word(tmp_path: Path) -> None:
    async def scenario(one: Node, two: Node) -> None:
        two.announce("192.0.2.2")
        one.start()
        two.start()
        await until(lambda: one.knows(two, "192.0.2.2"))
        await until(lambda: two.uid in one.exchange.heard)
        heard = one.exchange.heard[two.uid]
        assert heard.place.port == PORT
        assert heard.ifindex == one.host.link.ifindex

    with_nodes(tmp_path, 2, scenario)


@pytest.mark.parametrize("second", ["192.0.2.101/24", "2001:db8::101/64"])
def test_who_asks_at_one_of_several_addresses_is_answered_from_that_one(
    tmp_path: Path, second: str
) -> None:
    """No answer that comes from another address is taken."""

    async def scenario(one: Node) -> None:
        one.host.netns.ip(f"addr add {second} dev eth0{' nodad' * (':' in second)}")
        one.hear_from_cloud(told(2))
        one.start()
        asking = Post(one.host.bed.host(2))
        address = ip_interface(second).ip
        try:
            body = encode(one_digest())
            asking.courier.send(BodyKind.EXCHANGE, body, to_uid=one.uid, address=address, port=PORT)
            await until(lambda: any(each.address == address for each in asking.got))
        finally:
            asking.courier.stop()

    with_nodes(tmp_path, 1, scenario)


def one_digest() -> Digest:
    return Digest(bytes(8), bytes(SUM_BYTES * BUCKETS))
