"""Nodes of which one has what the other cannot read: the difference stays, and costs little."""

from __future__ import annotations

from functools import cache

from limpet.cluster.documents import Document, Source
from limpet.cluster.exchange.messages import Push
from limpet.cluster.kinds import POLICY
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.cluster.merge import merge
from limpet.cluster.seal import seal
from tests.unit.cluster.exchange.exchange_world import Weather, World, known_of, node, remember
from tests.unit.cluster_values import CLUSTER_KEY, grant


@cache
def later_documents(count: int) -> tuple[Document, ...]:
    """Documents as a node of a later version has them."""
    return tuple(
        remember(seal(POLICY, SignedPolicy(f"Later/{number}", 1, {"a": "b" * 300}), CLUSTER_KEY))
        for number in range(count)
    )


def mixed(count: int) -> World:
    """Node 1 is of a later version, and has so many documents that the other one cannot read."""
    world = World(1)
    members = known_of([node(1), node(2)])
    world.add(1, merge(members, later_documents(count))[0])
    world.add(2, members).reads = lambda sealed: sealed.kind != POLICY.name
    return world


def test_what_the_other_cannot_read_is_not_told_and_asked_for_without_an_end() -> None:
    world = mixed(1_000)
    world.run(60.0)
    started_s = world.now_s
    world.run(240.0)
    assert world.bytes_since(started_s) / 240.0 < 4_000
    assert len(world.hosts[2].known.of("grant")) == 2


def test_news_that_come_by_themselves_make_no_comparison_worth_more() -> None:
    """A pod that comes every ten seconds had thousands of documents compared again."""
    world = mixed(1_000)
    world.run(60.0)
    started_s = world.now_s
    for number in range(24):
        world.change(1, node(3 + number), Source.CLOUD)
        world.run(10.0)
    assert world.bytes_since(started_s) / 240.0 < 6_000
    assert grant(26).uid in world.hosts[2].known.of("presence")


def test_among_what_cannot_be_read_what_can_is_found_all_the_same() -> None:
    world = mixed(300)
    world.run(60.0)
    world.weather = Weather(loss=1.0)  # no rumour comes through
    world.change(1, node(3), Source.CLOUD)
    world.change(2, node(4), Source.CLOUD)
    world.run(5.0)
    world.weather = Weather()
    world.run(90.0)
    for host in world.hosts.values():
        assert {grant(number).uid for number in (3, 4)} <= host.known.of("presence").keys()


def test_what_can_be_read_after_a_restart_is_told_at_once() -> None:
    world = mixed(1_000)
    world.run(60.0)
    world.add(2, world.hosts[2].known)  # it was upgraded, and reads all
    world.run(20.0)
    assert world.is_settled()


def test_documents_that_one_lacks_are_told_until_none_is_left_though_packets_are_lost() -> None:
    world = World(1)
    world.weather = Weather(loss=0.3)
    world.add(1, merge(known_of([node(1), node(2)]), later_documents(1_000))[0])
    world.add(2, known_of([node(1), node(2)]))
    world.run(120.0)
    assert world.is_settled()
    pushes = [message for _, _, message in world.sent if isinstance(message, Push)]
    assert sum(len(push.documents) for push in pushes) < 10_000
