"""Where hellos to relays go: a relay says itself where it is, and may lie."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from ipaddress import IPv4Address, ip_address

import pytest

from limpet.base.addresses import Endpoint
from limpet.base.bounds.neighbours import CHANGES_PER_MINUTE
from limpet.cluster.datagrams.unproven_budget import (
    ADDRESS_LONG_BURST,
    ADDRESS_LONG_PER_S,
    PEER_LONG_BURST,
    PEER_LONG_PER_S,
    UnprovenBudget,
)
from limpet.relay.client.choice import RelayChoice, Send
from limpet.relay.client.contact import MOVED_S, MOVES, Contacts, RelaySite
from tests.unit.relay.client.relay_world import RelayWorld, SimRelay

VICTIM = IPv4Address("198.51.100.9")
OWN: Endpoint = (ip_address("203.0.113.1"), 51820)
TEN_MINUTES_S = 600.0


def contacts() -> Contacts:
    nonces = (f"{n:08d}".encode() for n in itertools.count(1))
    return Contacts(lambda: next(nonces), UnprovenBudget())


def hellos(names: Callable[[int], tuple[Endpoint, ...]], every_s: float) -> int:
    """That a node sends in ten minutes to one relay, which never answers, while a peer needs one.

    `names`: the relay's endpoints after so many changes, one each `every_s`."""
    choice = RelayChoice("a", contacts())
    count, now_s, changes = 0, 0.0, 0
    effects = choice.need("b", True, now_s)
    while now_s < TEN_MINUTES_S:
        if now_s >= changes * every_s:
            effects += choice.set_sites({"r": RelaySite(names(changes))}, now_s)
            changes += 1
        if now_s >= choice.wake_at_s:
            effects += choice.tick(now_s)
        if int(now_s * 10) % 50 == 0:
            effects += choice.need("b", True, now_s)  # as the ladder says while nobody answers
        count += sum(isinstance(each, Send) for each in effects)
        effects = []
        now_s = round(now_s + 0.1, 1)
    return count


def six_ports(change: int) -> tuple[Endpoint, ...]:
    return tuple((VICTIM, 1000 + change * 6 + each) for each in range(6))


def six_hosts(change: int) -> tuple[Endpoint, ...]:
    return tuple((VICTIM + change * 6 + each, 51820) for each in range(6))


@pytest.mark.parametrize("every_s", [60.0 / CHANGES_PER_MINUTE.most, 2 * TEN_MINUTES_S])
def test_a_host_that_a_relay_names_hears_no_more_of_hellos_than_of_probes(every_s: float) -> None:
    sent = hellos(six_ports, every_s)

    assert 0 < sent <= ADDRESS_LONG_BURST + ADDRESS_LONG_PER_S * TEN_MINUTES_S + 1


def test_all_hosts_that_a_relay_names_hear_what_one_member_may_have_sent() -> None:
    sent = hellos(six_hosts, 60.0 / CHANGES_PER_MINUTE.most)

    assert 0 < sent <= PEER_LONG_BURST + PEER_LONG_PER_S * TEN_MINUTES_S + 1


def test_a_relay_that_does_not_answer_is_asked_for_few_of_its_changes_at_once() -> None:
    found = contacts()
    found.set_sites({"r": RelaySite((OWN,))}, 0.0)
    (line,) = found.lines.values()
    while line.next_s < 100.0:
        found.take_due(line, line.next_s)
    asked = 0
    for change in range(100):
        now_s = 100.0 + change / 10
        found.set_sites({"r": RelaySite(six_hosts(change)[:1])}, now_s)
        if line.next_s <= now_s:
            found.take_due(line, now_s)
            asked += 1
    # What was asked for at first has come back since.
    assert asked <= MOVES + 10 / MOVED_S + 1


def test_who_answers_from_an_address_that_it_forges_proves_nothing_there() -> None:
    found, victim = contacts(), (VICTIM, 51820)
    found.set_sites({"r": RelaySite((victim, OWN))}, 0.0)
    (line,) = found.lines.values()
    asked = dict(found.take_due(line, 0.0))

    assert found.seen("r", asked[OWN].nonce, victim, 0.1) is None
    assert not line.alive
    assert found.seen("r", asked[OWN].nonce, OWN, 0.1) is line
    assert (line.alive, line.at) == (True, OWN)


def test_where_a_relay_has_answered_it_is_asked_as_often_as_it_takes() -> None:
    found = contacts()
    found.set_sites({"r": RelaySite((OWN,))}, 0.0)
    (line,) = found.lines.values()
    for number in range(1000):
        now_s = number / 2
        ((at, hello),) = found.take_due(line, now_s)
        assert found.seen("r", hello.nonce, at, now_s + 0.1) is line


def test_a_relay_that_was_gone_for_hours_is_found_at_once_at_another_address() -> None:
    relay = SimRelay("r1", 1)
    world = RelayWorld(relay)
    a, b = world.node("a"), world.node("b")
    world.run(1)
    a.need("b")
    b.need("a")
    world.run(1)
    relay.up = False
    for _ in range(3 * 3600 // 5):
        world.run(5)
        for node, peer in ((a, "b"), (b, "a")):
            node.need(peer)
    assert not a.choice.contacts.alive
    relay.up, relay.number = True, 77
    for each in (relay.pairs, relay.bound, relay.places):
        each.clear()
    world.tell_sites()
    world.run(1)

    assert a.working("b")
    assert b.working("a")
    assert a.choice.contacts.alive == ["r1"]


def test_a_relay_that_was_gone_for_hours_is_found_within_half_a_minute_where_it_was() -> None:
    relay = SimRelay("r1", 1)
    world = RelayWorld(relay)
    a = world.node("a")
    a.need("b")
    world.run(5)
    relay.up = False
    for _ in range(3 * 3600 // 5):
        world.run(5)
        a.need("b")
    relay.up = True
    begun_s = world.now_s
    while not a.choice.contacts.alive:
        world.run(1)
        a.need("b")

    assert world.now_s - begun_s <= 1 / ADDRESS_LONG_PER_S + 1
