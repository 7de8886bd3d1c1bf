"""Who leads: never two at a time, whatever is slow, and somebody in the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from limpet.controller.leader.election import DURATION_S, RENEW_S, RETRY_S, Election, Held, Wish


@dataclass
class Server:
    """A Lease with compare-and-swap."""

    held: Held | None = None
    writes: int = 0

    def write(self, wish: Wish) -> Held | None:
        """None: it is another than the wish expects."""
        if (self.held.version if self.held is not None else "") != wish.version:
            return None
        self.writes += 1
        self.held = Held(wish.holder, DURATION_S, wish.transitions, str(self.writes))
        return self.held


@dataclass
class Candidate:
    election: Election
    asked: tuple[float, Wish] | None = None
    """What is under way."""
    late: Wish | None = None
    """What is under way still, though nobody waits for its answer any more."""
    history: list[str] = field(default_factory=list)


def step(candidate: Candidate, server: Server, what: str, now_s: float) -> None:
    if what == "read":
        candidate.election = candidate.election.observe(server.held, now_s)
    elif what == "ask":
        wish = candidate.election.wish(now_s)
        candidate.asked = (now_s, wish) if wish is not None else None
        if wish is not None:
            candidate.election = candidate.election.asked()
    elif what == "arrive" and candidate.asked is not None:
        asked_at_s, wish = candidate.asked
        candidate.asked = None
        found = server.write(wish)
        if found is not None:
            candidate.election = candidate.election.written(found, asked_at_s)
    elif what == "lose" and candidate.asked is not None:
        server.write(candidate.asked[1])  # done, and the answer is lost
        candidate.asked = None
    elif what == "delay" and candidate.asked is not None:
        candidate.late, candidate.asked = candidate.asked[1], None
    elif what == "late" and candidate.late is not None:
        server.write(candidate.late)  # done after all
        candidate.late = None


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(("read", "ask", "arrive", "lose", "delay", "late")),
        st.sampled_from((0.0, 0.1, RETRY_S, RENEW_S, DURATION_S, 60.0)),
    ),
    max_size=120,
)


@given(STEPS)
def test_no_two_lead_at_one_time(steps: list[tuple[int, str, float]]) -> None:
    """Steps come in any order with any time between: processes that stop and wake late."""
    server, now_s = Server(), 0.0
    candidates = [Candidate(Election(f"c{number}")) for number in range(3)]
    for number, what, after_s in steps:
        now_s += after_s
        step(candidates[number], server, what, now_s)
        assert sum(each.election.leads(now_s) for each in candidates) <= 1


@given(STEPS)
def test_somebody_leads_when_all_can_ask_again(steps: list[tuple[int, str, float]]) -> None:
    server, now_s = Server(), 0.0
    candidates = [Candidate(Election(f"c{number}")) for number in range(3)]
    for number, what, after_s in steps:
        now_s += after_s
        step(candidates[number], server, what, now_s)
    for _ in range(int(3 * DURATION_S / RETRY_S)):
        now_s += RETRY_S
        for each in candidates:
            for what in ("ask", "arrive") if each.election.sure else ("read", "ask", "arrive"):
                step(each, server, what, now_s)

    assert [each.election.leads(now_s) for each in candidates].count(True) == 1


def test_a_lease_of_a_clock_that_is_wrong_is_taken_by_what_is_seen_alone() -> None:
    """Times in the Lease are read by nobody: it is free when it has not changed for so long."""
    mine = Election("me").observe(Held("other", DURATION_S, 4, "7"), 100.0)

    assert mine.wish(100.0 + DURATION_S - 0.1) is None
    assert mine.wish(100.0 + DURATION_S) == Wish("me", 5, "7")


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    mine = Election("me").observe(Held("", DURATION_S, 4, "7"), 100.0)

    assert mine.wish(100.0) == Wish("me", 5, "7")


def test_a_leader_whose_renewals_fail_has_stopped_before_another_begins() -> None:
    server = Server()
    first, second = Candidate(Election("a")), Candidate(Election("b"))
    for what in ("read", "ask", "arrive"):
        step(first, server, what, 0.0)
    step(second, server, "read", 0.0)

    assert first.election.leads(RENEW_S - 0.1)
    assert not first.election.leads(RENEW_S)
    assert second.election.wish(RENEW_S) is None


def test_a_leader_that_wakes_late_does_not_lead() -> None:
    server = Server()
    first, second = Candidate(Election("a")), Candidate(Election("b"))
    for what in ("read", "ask", "arrive"):
        step(first, server, what, 0.0)
    step(second, server, "read", 1.0)
    step(first, server, "ask", 2.0)  # stopped here, before it was sent
    for what in ("read", "ask", "arrive"):
        step(second, server, what, 1.0 + DURATION_S)
    late_s = 2.0 + DURATION_S

    assert not first.election.leads(late_s)
    step(first, server, "arrive", late_s)
    assert not first.election.leads(late_s)
    assert second.election.leads(late_s)


def test_who_leads_renews_without_reading_until_an_answer_is_lost() -> None:
    server, leader = Server(), Candidate(Election("a"))
    for what in ("read", "ask", "arrive", "ask", "arrive"):
        step(leader, server, what, 0.0)
    assert leader.election.sure
    step(leader, server, "ask", RETRY_S)
    assert not leader.election.sure
    step(leader, server, "lose", RETRY_S)
    assert not leader.election.sure

    for what in ("read", "ask", "arrive"):
        step(leader, server, what, 2 * RETRY_S)
    assert leader.election.sure
    assert leader.election.leads(2 * RETRY_S + RENEW_S - 0.1)


def test_a_lease_that_its_leader_finds_with_another_is_not_led_any_more() -> None:
    """As after somebody has edited it by hand."""
    server, leader = Server(), Candidate(Election("a"))
    for what in ("read", "ask", "arrive"):
        step(leader, server, what, 0.0)
    server.held = Held("b", DURATION_S, 1, "edited")
    for what in ("ask", "arrive", "read"):
        step(leader, server, what, RETRY_S)

    assert not leader.election.leads(RETRY_S)
    assert leader.election.wish(RETRY_S) is None
