"""What a node sends to where nobody has answered is bounded, whatever members claim and ask for."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Address, ip_address, ip_interface

from hypothesis import given
from hypothesis import strategies as st

from limpet.base.addresses import UnderlayLink
from limpet.cluster.datagrams.unproven_budget import (
    ADDRESS_BURST,
    ADDRESS_LONG_BURST,
    ADDRESS_LONG_PER_S,
    ADDRESS_PER_S,
    PEER_BURST,
    PEER_LONG_BURST,
    PEER_LONG_PER_S,
    PEER_PER_S,
    UnprovenBudget,
)
from limpet.cluster.kinds.presence import Presence
from limpet.cluster.topology.transports import ProbeKind
from limpet.paths.ladder.candidates import CandidateFacts, tunnel_endpoints
from limpet.paths.ladder.ladder import Ladder

LINK = UnderlayLink("eth0", 2, "02:00:00:00:00:01", 1500, (ip_interface("10.1.0.2/24"),))
VICTIMS = [IPv4Address("198.51.100.0") + number for number in range(16)]
asks = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(VICTIMS[:6]), st.floats(0, 2)), max_size=400
)


@given(asks)
def test_neither_an_address_nor_a_peer_gets_more_than_its_share_of_any_stretch_of_time(
    wanted: list[tuple[str, IPv4Address, float]],
) -> None:
    strangers, now_s = UnprovenBudget(), 0.0
    sent: list[tuple[str, IPv4Address, float]] = []
    for uid, address, pause_s in wanted:
        now_s += pause_s * (len(sent) % 2)
        if strangers.may_ask(uid, address, now_s):
            sent.append((uid, address, now_s))
    for first in range(0, len(sent), 7):
        stretch_s = now_s - sent[first][2]
        to = Counter(address for _uid, address, _at_s in sent[first:])
        of = Counter(uid for uid, _address, _at_s in sent[first:])
        assert all(n <= ADDRESS_BURST + ADDRESS_PER_S * stretch_s + 1e-6 for n in to.values())
        assert all(n <= PEER_BURST + PEER_PER_S * stretch_s + 1e-6 for n in of.values())


def test_where_a_member_has_answered_a_thousand_others_may_be_looked_for() -> None:
    strangers = UnprovenBudget()
    strangers.answered("one", VICTIMS[0], 0.0)
    assert all(strangers.may_ask(f"peer-{n}", VICTIMS[0], 1.0) for n in range(1000))
    other = [strangers.may_ask(f"peer-{n}", VICTIMS[1], 1.0) for n in range(1000)]
    assert sum(other) == ADDRESS_BURST
    assert not all(strangers.may_ask("peer", VICTIMS[0], 90_000.0) for _ in range(1000))


def test_who_names_where_another_member_is_has_no_more_than_its_own_share_of_it() -> None:
    strangers = UnprovenBudget()
    strangers.answered("victim", VICTIMS[0], 0.0)
    asked = [strangers.may_ask("liar", VICTIMS[0], 1.0) for _ in range(1000)]
    assert sum(asked) == PEER_BURST
    assert all(strangers.may_ask("victim", VICTIMS[0], 1.0) for _ in range(1000))


def test_a_peer_that_has_used_up_its_share_takes_none_of_an_addresss() -> None:
    strangers = UnprovenBudget()
    while strangers.may_ask("liar", VICTIMS[1], 0.0) or strangers.may_ask("liar", VICTIMS[2], 0.0):
        pass
    for address in VICTIMS[3:]:
        strangers.may_ask("liar", address, 0.0)
    found = [strangers.may_ask("honest", VICTIMS[15], 0.0) for _ in range(ADDRESS_BURST + 1)]
    assert found == [True] * ADDRESS_BURST + [False]


def test_of_thousands_of_claimed_endpoints_twelve_are_looked_at() -> None:
    everything = [ip_address(0xCB007100 + number) for number in range(256)]
    presence = Presence(
        "liar",
        1,
        "boot",
        tuple(everything),
        tunnel_port=51820,
        endpoints=tuple((address, port) for address in everything for port in range(1, 20)),
    )
    heard = [(everything[0], 60_000 + number) for number in range(3)]
    assert len(tunnel_endpoints(presence, heard, (LINK,))) == 12


def test_a_member_that_has_others_try_a_stranger_all_the_time_is_no_amplifier() -> None:
    """It names a stranger's ports, tells of others now and then, and says `punch` each second."""
    ladder, strangers = Ladder(leads=True, active=True), UnprovenBudget()
    sent = wanted = 0
    minutes = 5
    for tenth in range(600 * minutes):
        now_s = tenth / 10
        if tenth % 100 == 0:
            ends = tuple((VICTIMS[0], 1000 + tenth + number) for number in range(12))
            facts = CandidateFacts(tunnel=True, endpoints=ends)
            ladder.settle(facts, (LINK,), at_s=now_s, urgent=True)
        if tenth % 10 == 0:
            forged = (VICTIMS[0], 7)
            ladder.heard(forged, now_s, relayed=False, in_use=False, punch=True)
        for vital in (True, False):
            for question in ladder.take_due(now_s, vital=vital):
                assert question.candidate.kind is ProbeKind.TUNNEL
                wanted += 1
                sent += strangers.may_ask("liar", question.candidate.address, now_s)
    assert wanted > 8 * 60 * minutes, "without a bound it would be one"
    assert sent <= ADDRESS_LONG_BURST + ADDRESS_LONG_PER_S * 60 * minutes


def test_where_nobody_answers_a_victim_of_five_thousand_nodes_hears_little_of_them() -> None:
    """Each of them is told of it, by one member or by many, for a day."""
    nodes, day_s = 5000, 86_400
    for members, of_all in ((1, False), (60, False), (1, True)):
        strangers = UnprovenBudget()
        sent = sum(
            strangers.may_ask(
                f"m{second % members}", VICTIMS[second % 16 if of_all else 0], float(second)
            )
            for second in range(day_s)
        )
        assert sent > 100, "it is tried all the same"
        most, per_s = ADDRESS_LONG_BURST, ADDRESS_LONG_PER_S
        if of_all:  # one member names a whole network
            most, per_s = PEER_LONG_BURST, PEER_LONG_PER_S
        assert sent <= most + per_s * day_s + 1
        probe_bytes = 250
        mbit_per_s = nodes * per_s * probe_bytes * 8 / 1e6
        assert mbit_per_s <= (2.0 if of_all else 0.4)


def test_who_is_heard_is_asked_once_for_each_question_where_it_was_heard() -> None:
    strangers = UnprovenBudget()
    while strangers.may_ask("late", VICTIMS[0], 0.0):
        pass
    for heard, asked in ((1, 1), (2, 2), (50, 3)):
        for _ in range(heard):
            strangers.heard("late", VICTIMS[0])
        assert sum(strangers.may_ask("late", VICTIMS[0], 0.0) for _ in range(100)) == asked
    strangers.heard("late", VICTIMS[0])
    assert not strangers.may_ask("liar", VICTIMS[0], 0.0)
