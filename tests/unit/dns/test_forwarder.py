"""Questions for upstreams, with upstreams that answer, are silent, refuse and lie."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import count, cycle

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet.base.bounds.strangers import DNS_ASKERS, DNS_FORWARDED, DNS_FORWARDED_OF_ONE
from limpet.dns import wire
from limpet.dns.forward.cache import STALE_TTL_S, Cache
from limpet.dns.forward.effects import AskUpstream, CloseAttempt, Deliver
from limpet.dns.forward.forwarder import (
    FAILED_S,
    GIVE_UP_S,
    GIVE_UP_SOON_S,
    MOST_ATTEMPTS,
    Forwarder,
)
from limpet.dns.forward.health import LOOP_S, Upstream
from limpet.dns.wire import Query

FIRST, SECOND = Upstream(ip_address("192.0.2.1")), Upstream(ip_address("192.0.2.2"))
DAY_S = 86400.0


@dataclass
class World:
    """A forwarder, its time, and all that it has wanted."""

    upstreams: tuple[Upstream, ...] = (FIRST, SECOND)
    now_s: float = 1000.0
    sent: list[AskUpstream] = field(default_factory=list)
    open: dict[int, AskUpstream] = field(default_factory=dict)
    told: dict[int, Deliver[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = count(7)
        self.cache = Cache(most_bytes=1 << 20, stale_s=DAY_S)
        self.forwarder: Forwarder[int] = Forwarder(self.cache, lambda: next(numbers) & 0xFFFF)
        self.do(self.forwarder.use(self.upstreams, self.now_s))
        for probe in list(self.open.values()):
            self.answer(probe, code=dns.rcode.NXDOMAIN)
        self.sent.clear()
        self.waiters = count()

    def do(self, effects: list[AskUpstream | CloseAttempt | Deliver[int]]) -> None:
        for effect in effects:
            match effect:
                case AskUpstream():
                    self.sent.append(effect)
                    assert effect.attempt not in self.open
                    self.open[effect.attempt] = effect
                case CloseAttempt(attempt):
                    del self.open[attempt]
                case Deliver(waiter):
                    assert waiter not in self.told, "told twice"
                    self.told[waiter] = effect

    def ask(self, name: str = "a.example.com", who: str = "10.1.0.2") -> int:
        waiter = next(self.waiters)
        self.do(self.forwarder.ask(query(name), waiter, self.now_s, who))
        return waiter

    def answer(
        self, asked: AskUpstream, *records: str, code: int = dns.rcode.NOERROR, flags: int = 0
    ) -> None:
        response = dns.message.make_response(dns.message.from_wire(asked.message))
        for each in records:
            name, ttl, kind, value = each.split(maxsplit=3)
            response.answer.append(dns.rrset.from_text(name, int(ttl), "IN", kind, value))
        response.set_rcode(dns.rcode.Rcode(code))
        response.flags |= flags
        self.do(self.forwarder.heard(asked.attempt, response.to_wire(), self.now_s))

    def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.forwarder.next_s <= end_s:
            self.now_s = max(self.now_s, self.forwarder.next_s)
            self.do(self.forwarder.due(self.now_s))
        self.now_s = end_s

    def code(self, waiter: int) -> int:
        return self.told[waiter].answer.code


def query(name: str) -> Query:
    return wire.parse_query(dns.message.make_query(name, "A", use_edns=0).to_wire())


ANSWER = "a.example.com. 60 A 192.0.2.80"


def test_a_question_is_asked_once_however_many_wait_and_then_remembered() -> None:
    world = World()

    waiting = [world.ask(), world.ask("A.EXAMPLE.com")]
    assert len(world.sent) == 1
    world.answer(world.sent[0], ANSWER)
    world.now_s += 10
    later = world.ask()

    assert {world.code(each) for each in (*waiting, later)} == {wire.NOERROR}
    assert world.told[later].age_s == 10
    assert len(world.sent) == 1
    assert world.open == {}


def test_what_has_ended_is_asked_anew() -> None:
    world = World()
    world.ask()
    world.answer(world.sent[0], ANSWER)

    world.now_s += 61
    world.ask()

    assert len(world.sent) == 2


def test_a_no_is_remembered_as_long_as_its_soa_says() -> None:
    world = World()
    world.ask()
    response = dns.message.make_response(dns.message.from_wire(world.sent[0].message))
    response.set_rcode(dns.rcode.NXDOMAIN)
    soa = "ns.example.com. h.example.com. 1 2 3 4 30"
    response.authority.append(dns.rrset.from_text("example.com.", 3600, "IN", "SOA", soa))
    world.do(world.forwarder.heard(world.sent[0].attempt, response.to_wire(), world.now_s))

    world.now_s += 29
    assert world.code(world.ask()) == wire.NXDOMAIN
    assert len(world.sent) == 1
    world.now_s += 2
    world.ask()
    assert len(world.sent) == 2


def test_who_is_silent_is_passed_over_and_then_left_for_last() -> None:
    world = World()
    waiter = world.ask()

    world.pass_time(1.0)
    assert [each.upstream for each in world.sent] == [0, 1]
    world.answer(world.sent[1], ANSWER)

    assert world.code(waiter) == wire.NOERROR
    assert world.open == {}
    world.ask("b.example.com")
    assert world.sent[2].upstream == 1


def test_a_late_answer_of_the_first_is_taken_too() -> None:
    world = World()
    waiter = world.ask()

    world.pass_time(1.0)
    world.answer(world.sent[0], ANSWER)

    assert world.code(waiter) == wire.NOERROR
    assert world.open == {}


def test_who_cannot_be_reached_costs_no_time() -> None:
    world = World()
    waiter = world.ask()

    world.do(world.forwarder.failed(world.sent[0].attempt, world.now_s))
    world.answer(world.sent[1], ANSWER)

    assert world.code(waiter) == wire.NOERROR


@pytest.mark.parametrize("code", [dns.rcode.SERVFAIL, dns.rcode.REFUSED])
def test_who_refuses_is_not_the_last_word_of_all(code: int) -> None:
    world = World()
    waiter = world.ask()

    world.answer(world.sent[0], code=code)
    assert waiter not in world.told
    world.answer(world.sent[1], code=code)

    assert world.code(waiter) == code
    assert world.open == {}


def test_an_old_server_is_asked_without_edns() -> None:
    world = World()
    waiter = world.ask()

    world.answer(world.sent[0], code=dns.rcode.FORMERR)
    again = world.sent[1]
    assert again.upstream == 0
    assert dns.message.from_wire(again.message).edns == -1
    world.answer(again, ANSWER)

    assert world.code(waiter) == wire.NOERROR


def test_what_was_cut_is_asked_for_by_tcp() -> None:
    world = World()
    waiter = world.ask()

    world.answer(world.sent[0], flags=dns.flags.TC)
    assert (world.sent[1].by_tcp, world.sent[1].upstream) == (True, 0)
    world.answer(world.sent[1], ANSWER)

    assert world.code(waiter) == wire.NOERROR


def test_a_type_that_looks_like_a_letter_is_no_other_letters_type() -> None:
    """HTTPS is type 65, A, and type 97 is a."""
    world = World()
    for kind in ("TYPE97", "HTTPS"):
        query = wire.parse_query(dns.message.make_query("a.example.com", kind).to_wire())
        waiter = next(world.waiters)
        world.do(world.forwarder.ask(query, waiter, world.now_s, "10.1.0.2"))
        world.answer(world.sent[-1])
    assert len(world.sent) == 2


def test_who_cuts_its_answer_by_tcp_too_has_none_and_another_is_asked() -> None:
    world = World()
    waiter = world.ask()

    world.answer(world.sent[0], flags=dns.flags.TC)
    world.answer(world.sent[1], flags=dns.flags.TC)
    assert (world.sent[2].by_tcp, world.sent[2].upstream) == (False, 1)
    world.answer(world.sent[2], ANSWER)

    assert world.code(waiter) == wire.NOERROR


@given(st.lists(st.sampled_from(["cut", "old", "refuse", "fail"]), min_size=1))
def test_however_fast_and_badly_it_is_answered_a_question_is_asked_a_few_times(
    answers: list[str],
) -> None:
    world = World()
    waiter = world.ask()

    for what in cycle(answers):
        mine = [each for each in world.open.values() if b"example" in each.message]
        if not mine:
            break
        match what:
            case "cut":
                world.answer(mine[0], flags=dns.flags.TC)
            case "old":
                world.answer(mine[0], code=dns.rcode.FORMERR)
            case "refuse":
                world.answer(mine[0], code=dns.rcode.SERVFAIL)
            case _:
                world.do(world.forwarder.failed(mine[0].attempt, world.now_s))
        assert len([x for x in world.sent if b"example" in x.message]) <= 3 * MOST_ATTEMPTS

    world.pass_time(GIVE_UP_S)
    assert world.code(waiter) != wire.NOERROR


def test_everybody_silent_is_told_before_a_resolver_asks_again() -> None:
    world = World()
    waiter = world.ask()

    world.pass_time(GIVE_UP_S + 0.1)

    assert world.code(waiter) == wire.SERVFAIL
    assert world.open == {}
    assert world.forwarder.under_way == 0
    assert world.forwarder.next_s == math.inf


def test_while_nobody_answers_nobody_waits_for_long() -> None:
    """A C library asks for one name several times, and for several names until one is there."""
    world = World()
    world.ask()
    world.pass_time(GIVE_UP_S)
    world.sent.clear()
    world.now_s += FAILED_S / 2
    assert world.code(world.ask()) == wire.SERVFAIL, "it was asked a moment ago"
    assert world.sent == []
    world.now_s += FAILED_S
    again, other = world.ask(), world.ask("b.example.com")
    assert world.told.keys().isdisjoint((again, other))
    world.pass_time(GIVE_UP_SOON_S)
    assert {world.code(each) for each in (again, other)} == {wire.SERVFAIL}
    assert world.code(world.ask()) == wire.SERVFAIL, "it is asked for, and nobody waits any more"
    # An answer that comes later is kept, and there is time again.
    world.now_s += 0.5
    for asked in list(world.open.values()):
        world.answer(
            asked, f"{dns.message.from_wire(asked.message).question[0].name} 60 A 192.0.2.80"
        )
    assert world.open == {}
    assert world.code(world.ask()) == wire.NOERROR
    slow = world.ask("c.example.com")
    world.pass_time(GIVE_UP_S - 0.1)
    assert slow not in world.told


def test_what_nobody_answered_is_asked_at_once_of_the_servers_that_come() -> None:
    world = World()
    world.ask()
    world.pass_time(GIVE_UP_S)
    world.sent.clear()
    world.do(world.forwarder.use((Upstream(ip_address("192.0.2.9")),), world.now_s))
    world.sent.clear()
    world.ask()
    assert [each.upstream for each in world.sent] == [0]


def test_stale_answers_are_told_while_upstreams_are_away_and_never_beyond_the_bound() -> None:
    world = World()
    world.ask()
    world.answer(world.sent[0], ANSWER)

    world.now_s += 3600
    first = world.ask()
    world.pass_time(0.6)
    assert world.told[first].ttl_s == STALE_TTL_S
    world.pass_time(GIVE_UP_S)
    at_once = world.ask()
    assert world.told[at_once].ttl_s == STALE_TTL_S
    world.pass_time(DAY_S)
    too_late = world.ask()
    world.pass_time(GIVE_UP_S + 0.1)

    assert world.code(too_late) == wire.SERVFAIL


def test_a_fresh_answer_takes_the_place_of_a_stale_one_when_upstreams_are_back() -> None:
    world = World()
    world.ask()
    world.answer(world.sent[0], ANSWER)
    world.now_s += 3600
    world.ask()
    world.pass_time(0.6)  # it was told the stale one; the question goes on

    world.answer(world.sent[-1], "a.example.com. 60 A 192.0.2.81")

    later = world.ask()
    assert world.told[later].ttl_s is None
    assert bytes((192, 0, 2, 81)) in world.told[later].answer.records


@pytest.mark.parametrize("records", [(), ("a.example.com. 0 A 192.0.2.81",)])
def test_what_an_answer_that_is_for_nobody_else_has_contradicted_is_never_told_again(
    records: tuple[str, ...],
) -> None:
    world = World()
    world.ask()
    world.answer(world.sent[0], ANSWER)
    world.now_s += 3600
    told_now = world.ask()
    world.answer(
        world.sent[-1], *records, code=dns.rcode.NOERROR if records else dns.rcode.NXDOMAIN
    )
    assert world.told[told_now].ttl_s is None

    later = world.ask()
    world.pass_time(GIVE_UP_S + 0.1)

    assert world.code(later) == wire.SERVFAIL


@pytest.mark.parametrize(
    ("between", "after", "kept"),
    [
        ((), (SECOND,), False),
        ((SECOND,), (FIRST,), False),
        ((), (FIRST,), True),
        ((FIRST, SECOND), (SECOND,), True),
    ],
)
def test_of_name_servers_of_another_network_nothing_is_told(
    between: tuple[Upstream, ...], after: tuple[Upstream, ...], kept: bool
) -> None:
    """A node that moves has the name servers of where it is, and perhaps none on the way."""
    world = World(upstreams=(FIRST,))
    world.ask()
    world.answer(world.sent[0], ANSWER)

    world.do(world.forwarder.use(between, world.now_s))
    world.do(world.forwarder.use(after, world.now_s))

    assert (world.ask() in world.told) is kept


def test_what_is_under_way_is_asked_of_the_servers_that_come() -> None:
    """A node that goes from the one uplink to the other has others at just the wrong moment."""
    world = World(upstreams=(FIRST,))
    waiter = world.ask()
    world.pass_time(0.1)

    world.do(world.forwarder.use((SECOND, FIRST), world.now_s))

    assert world.told == {}
    asked = [each for each in world.open.values() if b"\1a\7example" in each.message]
    assert [each.upstream for each in asked] == [0]
    world.answer(asked[0], ANSWER)
    assert world.code(waiter) == dns.rcode.NOERROR


def test_what_is_under_way_ends_where_nobody_is_left_to_ask() -> None:
    world = World(upstreams=(FIRST,))
    waiter = world.ask()

    world.do(world.forwarder.use((), world.now_s))

    assert world.code(waiter) == dns.rcode.SERVFAIL
    assert world.open == {}


def test_a_guess_changes_nothing() -> None:
    world = World()
    waiter = world.ask()
    asked = world.sent[0]
    forged = bytes((asked.message[0] ^ 1,)) + asked.message[1:]
    wrong = AskUpstream(asked.attempt, asked.upstream, forged)

    world.answer(wrong, ANSWER.replace(".80", ".66"))
    assert waiter not in world.told
    world.answer(asked, ANSWER)

    assert bytes((192, 0, 2, 80)) in world.told[waiter].answer.records


def test_each_asking_has_a_number_of_its_own() -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.ask(f"{name}.example.com")
    assert len({each.message[:2] for each in world.sent}) == 3


def test_an_upstream_that_asks_us_in_turn_is_left_out() -> None:
    world = World(upstreams=())
    world.do(world.forwarder.use((FIRST, SECOND), world.now_s))
    probe = next(each for each in world.sent if each.upstream == 0)

    came_back = wire.parse_query(probe.message)
    world.do(world.forwarder.ask(came_back, 99, world.now_s, str(FIRST)))

    assert world.code(99) == wire.REFUSED
    world.sent.clear()
    world.ask()
    world.pass_time(GIVE_UP_S)
    assert {each.upstream for each in world.sent} == {1}
    world.now_s += LOOP_S
    world.ask("b.example.com")
    world.pass_time(GIVE_UP_S)
    assert 0 in {each.upstream for each in world.sent}


def test_an_upstream_that_begins_to_ask_us_later_is_found_when_it_fails() -> None:
    world = World(upstreams=(FIRST,))
    world.now_s += 3600
    asked = query("a.example.com")

    # It sends the question back, which then waits for itself.
    waiter = world.ask()
    world.do(world.forwarder.ask(asked, 99, world.now_s, str(FIRST)))
    world.pass_time(1.0)
    (probe,) = [each for each in world.sent if b"example" not in each.message]
    world.do(world.forwarder.ask(wire.parse_query(probe.message), 98, world.now_s, str(FIRST)))
    world.pass_time(GIVE_UP_S)

    assert world.code(98) == wire.REFUSED
    assert {world.code(waiter), world.code(99)} == {wire.SERVFAIL}
    world.pass_time(60)
    sent = len(world.sent)
    assert world.code(world.ask("b.example.com")) == wire.SERVFAIL, "it is left out"
    assert len(world.sent) == sent


def test_an_upstream_that_fails_for_long_is_looked_at_now_and_then() -> None:
    world = World(upstreams=(FIRST,))
    for number in range(100):
        world.now_s += 0.5
        world.ask(f"{number}.example.com")
        world.answer(world.sent[-1], code=dns.rcode.SERVFAIL)

    probes = [each for each in world.sent if b"example" not in each.message]
    assert len(probes) == 5  # in 50 s


def test_a_client_with_very_many_questions_leaves_room_for_others() -> None:
    world = World()

    flood = [
        world.ask(f"{number}.example.com", "10.1.0.66") for number in range(DNS_FORWARDED.most)
    ]
    refused = [waiter for waiter in flood if waiter in world.told]
    assert len(refused) == DNS_FORWARDED.most - DNS_FORWARDED_OF_ONE.most
    assert {world.code(waiter) for waiter in refused} == {wire.SERVFAIL}
    other = world.ask("other.example.com")
    world.answer(world.sent[-1], "other.example.com. 60 A 192.0.2.80")
    assert world.code(other) == wire.NOERROR
    assert world.code(world.ask("other.example.com", "10.1.0.66")) == wire.NOERROR, "it is kept"

    # Room comes again with each answer.
    world.answer(world.sent[0], "0.example.com. 60 A 192.0.2.80")
    asked = len(world.sent)
    world.ask("more.example.com", "10.1.0.66")
    assert len(world.sent) == asked + 1


def test_who_asks_for_a_name_again_and_again_keeps_nobody_else_from_it() -> None:
    world = World()

    flood = [world.ask(who="10.1.0.66") for _ in range(DNS_ASKERS.most + 1)]
    others = [world.ask(who=f"10.1.0.{number}") for number in (2, 2, 3)]
    refused = [waiter for waiter in flood if waiter in world.told]
    assert len(refused) == 1 + len(others)
    assert {world.code(waiter) for waiter in refused} == {wire.SERVFAIL}

    world.answer(world.sent[0], ANSWER)
    assert {world.code(waiter) for waiter in others} == {wire.NOERROR}
    assert len(world.told) == len(flood) + len(others)


def test_without_upstreams_the_answer_is_at_once() -> None:
    world = World(upstreams=())

    assert world.code(world.ask()) == wire.SERVFAIL


def test_the_cache_forgets_what_was_asked_longest_ago_within_its_bytes() -> None:
    cache = Cache(most_bytes=2000, stale_s=0)
    world = World()
    world.ask()
    world.answer(world.sent[0], ANSWER)
    answer = world.told[0].answer

    for number in range(50):
        cache.put((b"%d" % number, 0), answer, 0.0)

    assert 1 <= len(cache) <= 5
    assert cache.get((b"49", 0), 0.0) is not None
    assert cache.get((b"0", 0), 0.0) is None


@given(st.data())
def test_whatever_happens_everybody_is_told_once_and_nothing_stays_open(
    data: st.DataObject,
) -> None:
    world = World()
    asked = 0
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(
            st.sampled_from(["ask", "answer", "fail", "refuse", "junk", "cut", "wait"])
        ):
            case "ask":
                world.ask(data.draw(st.sampled_from(["a.example.com", "b.example.com"])))
                asked += 1
            case "wait":
                world.pass_time(data.draw(st.sampled_from([0.1, 1.0, 5.0, 90.0])))
            case what if world.open:
                attempt = world.open[data.draw(st.sampled_from(sorted(world.open)))]
                if what == "answer":
                    world.answer(attempt, data.draw(st.sampled_from([ANSWER, ""])) or ANSWER)
                elif what == "refuse":
                    code = data.draw(st.sampled_from([dns.rcode.SERVFAIL, dns.rcode.FORMERR]))
                    world.answer(attempt, code=code)
                elif what == "cut":
                    world.answer(attempt, flags=dns.flags.TC)
                elif what == "fail":
                    world.do(world.forwarder.failed(attempt.attempt, world.now_s))
                else:
                    junk = (
                        attempt.message[:2] + b"\x81\x80\0\1\0\5\0\0\0\0" + attempt.message[12:31]
                    )
                    world.do(world.forwarder.heard(attempt.attempt, junk, world.now_s))
    world.pass_time(2 * GIVE_UP_S + 1)  # who failed at last is looked at once more

    assert len(world.told) == asked
    assert world.open == {}
    assert world.forwarder.under_way == 0
