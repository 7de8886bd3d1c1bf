"""The ladder of ways to a peer: what is asked next, and what the answers prove. Pure.

    LINK answered ──► OVERLAY over that link ──► ROUTE          better
      │  silent ──► SITE
      └───────────────┴────────────────────────► VXLAN
    TUNNEL, to an endpoint of the peer ────────► TUNNEL
    TUNNEL, to a relay ────────────────────────► RELAY, RELAY_TLS

A way that answers holds. One that falls silent is asked again in quick succession before it counts
as lost, and what else there is at the same time; another takes its place only if it has answered
since. Nobody answers: the last path stays, one in clear only where it was proven. What was lost
comes back when it has answered twice in a row, after each further loss twice as often, so that a
link that flaps does not carry the path along.

Of two ends that tunnel to each other one chooses for both (`leads`): tunnels follow the packets of
the other end, so packets would go by ways that only the other end watches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from limpet.base.addresses import Address, Endpoint, UnderlayLink
from limpet.cluster.topology.paths import PeerPath
from limpet.cluster.topology.transports import ProbeKind
from limpet.paths.ladder.candidates import (
    CandidateFacts,
    candidate_of_end,
    candidates_for,
    is_direct,
    link_candidate,
    links_left,
    tunnel_candidate,
)
from limpet.paths.ladder.choice import PathChoice
from limpet.paths.ladder.path_mtu import SizeSearch, search_of
from limpet.paths.ladder.probe_state import (
    ACTIVE_S,
    QUICK_S,
    TRIES,
    ProbeState,
    Question,
    pause_s,
    rested_s,
    searches,
    slowest_retry_s,
    way_to_tell,
)
from limpet.paths.ladder.silence import is_silent, round_trip_s
from limpet.paths.probe.messages import AnsweredBy, Candidate

PUNCH_EVERY_S = 1.5
_BELOW_ALL = 1 << 16
"""A preference that no transport has."""
_INVITED_EVERY_S = 1.0
"""How often the peer may make us try all of its endpoints."""
_RELAY_KEPT_S = 30.0
"""A direct way holds for so long, then no relay is needed any more."""


@dataclass(slots=True, eq=False)
class Ladder:
    """One peer's. `path`, when it is made: the last one that was proven; it holds until lost."""

    path: PeerPath | None = None
    leads: bool = True
    """This end chooses for both between tunnelled ways."""
    active: bool = False
    """Pods have traffic with the peer."""
    watched: bool = False  # whether the peer is silent has to be known soon
    _facts: CandidateFacts = field(default_factory=CandidateFacts)
    _links: tuple[UnderlayLink, ...] = ()
    _states: dict[Candidate, ProbeState] = field(default_factory=dict)
    _lead: Candidate | None = None
    """By which the peer was heard to send, if it chooses for both."""
    _punch_s: float = -math.inf
    _invited_s: float = -math.inf
    _was_direct: bool = False
    """Some endpoint of the peer has answered, so one may again."""
    _direct_s: float = math.inf
    """Since when a direct way holds."""

    # What is known changes

    def settle(
        self,
        facts: CandidateFacts,
        links: tuple[UnderlayLink, ...],
        *,
        at_s: float,
        urgent: bool,
        reprobe: bool = True,
        stretch: float = 1.0,
    ) -> None:
        """Takes up what is known now.

        `reprobe`: from `at_s` on everything is asked again, else only what is new.
        `stretch`: factor on what is waited before a way of the last run is asked for its size.
        """
        before, moved = self._states, bool(self._links) and links != self._links
        elsewhere = facts.places != self._facts.places
        left = links_left(self._links, links)
        withdrawn = {candidate_of_end(end) for end in self._facts.relay_ends}
        withdrawn -= {candidate_of_end(end) for end in facts.relay_ends}
        self._facts, self._links, self._states = facts, links, {}
        path = self.path
        if path is not None:  # it may go unencrypted, but not to whoever else is here
            path = path.left_on(links) if facts.clear or path.rung.encrypted else None
            self.path = path
        stands_on = self.choice().stands_on(path)
        for candidate in candidates_for(facts, links, path):
            if candidate in withdrawn:
                continue
            state = before.get(candidate)
            if candidate not in stands_on and state is not None and state.is_of(candidate, left):
                state = None  # here somebody else may have the peer's address
            if state is None:
                state = ProbeState(at_s, urgent, proven=not before and candidate in stands_on)
                if path is not None and candidate == tunnel_candidate(path):
                    state.sizes = search_of(path.mtu_bytes, at_s, stretch, holds=state.proven)
            elif reprobe:
                state.restart(at_s, urgent=urgent)
            self._states[candidate] = state
        choice = self.choice()
        for candidate, state in self._states.items():
            state.gates = tuple(self._gates_of(candidate))
            if candidate.kind is ProbeKind.TUNNEL:
                state.rank = choice.rank(candidate)
                if moved:
                    state.doubt(at_s)
                elif elsewhere:
                    state.doubt_size()
        self._mark_used()
        if path is not None and tunnel_candidate(path) in withdrawn:
            self._look_around(at_s, every=True)
        self._choose(at_s)

    def set_active(self, now_s: float, *, active: bool) -> None:
        """Whether pods have traffic with the peer: then its path has to be right at any time."""
        if active and not self.active:
            firm = self._is_firm()
            for candidate, state in self._states.items():
                if state.used or not firm or (self._is_relayed and is_direct(candidate)):
                    lately = state.sent_s + QUICK_S > now_s
                    at_s = state.sent_s + ACTIVE_S if lately else now_s
                    state.restart(at_s, urgent=True)
        self.active = active

    def nudge(self, address: Address, now_s: float) -> None:
        """The peer writes from `address`: it may answer there now."""
        for candidate, state in self._states.items():
            if candidate.address == address and candidate.kind is not ProbeKind.TUNNEL:
                state.nudge(now_s)

    def heard(
        self, end: Endpoint, now_s: float, *, relayed: bool, in_use: bool, punch: bool
    ) -> None:
        """A probe of the peer came by the tunnel from `end`; the flags are the probe's."""
        for candidate, state in self._states.items():
            if candidate.kind is not ProbeKind.TUNNEL or bool(candidate.relay) is not relayed:
                continue
            if (candidate.address, candidate.port) == end:
                state.ask_soon(now_s)
                if in_use and not self.leads and candidate != self._lead:
                    self._lead = candidate
                    self._choose(now_s)
                elif in_use and not state.used:
                    self._ask_path(now_s)
                break
        if punch and self._invited_s + _INVITED_EVERY_S <= now_s:
            # As if this end had punched: it is not to be answered with a punch in turn.
            self._invited_s = self._punch_s = now_s
            for candidate, state in self._states.items():
                if is_direct(candidate) and not state.proven and state.is_idle(now_s):
                    state.next_s = now_s

    def _ask_path(self, now_s: float) -> None:
        """The peer sends by another way: perhaps it knows of this one what is not known here."""
        for state in self._states.values():
            if state.used and state.is_idle(now_s) and state.sent_s + ACTIVE_S <= now_s:
                state.next_s = min(state.next_s, now_s)

    def told(self, way: PeerPath | None) -> None:
        """The peer has said by which way it reaches us."""
        if way is None or not way.rung.encrypted:
            self._lead = None

    # Asking

    def due_s(self, *, vital: bool) -> float:
        """When the next candidate is to be sent, or is overdue; infinity: none."""
        moments = [state.next_s for _candidate, state in self._open(vital=vital)]
        moments += [each.next_s for _, _, each in searches(self._states, vital=vital)]
        return min(moments, default=math.inf)

    def take_due(self, now_s: float, *, vital: bool, stretch: float = 1.0) -> list[Question]:
        """What is to be sent now; it counts as sent.

        `vital`: what the path depends on or has just changed, else what might be better.
        `stretch`: factor on what is waited before a candidate that does not answer is sent again.
        """
        due: list[Candidate] = []
        missed = False
        for candidate, state in list(self._open(vital=vital)):
            if state.next_s > now_s:
                continue
            if state.waiting:
                missed = True
                self._miss(candidate, state, now_s, stretch)
                if state.next_s > now_s:
                    continue
            state.send(now_s, pressed=self.watched and state.used and state.proven)
            due.append(candidate)
        if missed:
            self._choose(now_s)
        punch = self._punch(due, now_s)
        questions = [self._question(candidate, punch=candidate == punch) for candidate in due]
        if punch is not None and punch not in due:
            questions.append(self._question(punch, punch=True))
        return questions + self._size_questions(now_s, vital=vital, stretch=stretch)

    def _question(
        self, candidate: Candidate, *, punch: bool = False, packet_bytes: int = 0
    ) -> Question:
        state = self._states[candidate]
        in_use = state.used and candidate.kind is ProbeKind.TUNNEL
        return Question(candidate, in_use, punch, packet_bytes)

    def _punch(self, due: list[Candidate], now_s: float) -> Candidate | None:
        """By which way the peer is told to try its own direct ways just now; None: by none."""
        tries = any(
            is_direct(candidate) and not self._states[candidate].proven for candidate in due
        )
        if not tries or now_s < self._punch_s + PUNCH_EVERY_S:
            return None
        if (way := way_to_tell(self._states)) is not None:
            self._punch_s = now_s
        return way

    def _size_questions(self, now_s: float, *, vital: bool, stretch: float) -> list[Question]:
        found: list[Question] = []
        changed = False
        for candidate, state, search in list(searches(self._states, vital=vital)):
            known = search.known_bytes
            wait_s = max(QUICK_S, min(2 * state.rtt_s, 1.0))
            sizes = search.take_due(now_s, wait_s=wait_s, stretch=stretch)
            found += [self._question(candidate, packet_bytes=size) for size in sizes]
            changed |= search.known_bytes != known
        if changed:
            self._choose(now_s)
        return found

    def _open(self, *, vital: bool) -> Iterator[tuple[Candidate, ProbeState]]:
        """What is asked, as far as the answer could tell anything that others have not told."""
        bound: tuple[int, int] | None = None
        for candidate, state in self._states.items():
            if (state.urgent or (state.used and state.proven)) is not vital:
                continue
            if candidate.kind is ProbeKind.OVERLAY and not state.gates[0].grade:
                continue
            if candidate.kind is ProbeKind.SITE and not all(
                gate.streaks.misses for gate in state.gates
            ):
                continue
            if candidate.kind is ProbeKind.TUNNEL and not state.used and candidate != self._lead:
                bound = bound or self._bound()
                # Other relays are measured beside the one in use.
                if not (state.rank < bound or (candidate.relay and state.rank == bound)):
                    continue
            yield candidate, state

    def _bound(self) -> tuple[int, int]:
        """Rank of the path, if it is firm: what is not better is not asked."""
        if self.path is None or not self._is_firm():
            return (_BELOW_ALL, 0)
        present = tunnel_candidate(self.path)
        return (-1, 0) if present is None else self._states[present].rank

    @property
    def _is_relayed(self) -> bool:
        return self.path is not None and bool(self.path.relay)

    def _is_firm(self) -> bool:
        used = [each for each in self._states.values() if each.used]
        return bool(used) and all(each.firm for each in used)

    def _gates_of(self, candidate: Candidate) -> Iterator[ProbeState]:
        if candidate.kind is ProbeKind.OVERLAY:
            yield self._states[link_candidate(candidate)]
        if candidate.kind is ProbeKind.SITE:
            yield from self.choice().links_to(candidate.address)

    def _miss(self, candidate: Candidate, state: ProbeState, now_s: float, stretch: float) -> None:
        used = state.used and state.proven
        lost = state.miss(now_s, self._slowest_s(candidate, state), stretch)
        if used and (lost or state.streaks.misses == 1):
            self._look_around(now_s, every=lost)

    def _slowest_s(self, candidate: Candidate, state: ProbeState) -> float:
        """At most between probes of what does not answer."""
        firm = self._is_firm()
        hopeful = state.streaks.answered_s > -math.inf or (
            self._was_direct and is_direct(candidate) and (self._is_relayed or not firm)
        )
        # Who answers in no way is asked again as soon as it does in one.
        return slowest_retry_s(active=self.active, hopeful=hopeful and (self.active or firm))

    def _look_around(self, now_s: float, *, every: bool) -> None:
        """The path is in doubt: what else there is has to be known soon."""
        for state in self._states.values():
            if not state.waiting and (every or state.streaks.misses < TRIES):
                state.restart(now_s, urgent=True)

    # Hearing

    def answered(
        self,
        candidate: Candidate,
        now_s: float,
        *,
        rtt_s: float,
        via: AnsweredBy,
        stretch: float = 1.0,
        first_share: float = 1.0,
        packet_bytes: int = 0,
    ) -> None:
        """The peer has answered. `stretch`: factor on what is waited now.

        `first_share`: how much of that is waited the first time, by chance, so that peers that were
        asked together when the node started are not for ever after.
        `packet_bytes`: size of the question's packet, if it was to tell what the way carries.
        """
        state = self._states.get(candidate)
        if state is None:
            return
        if packet_bytes:
            if state.carries(packet_bytes, now_s):
                self._choose(now_s)
            return
        grade, via_before = state.grade, state.via
        if not any(each.grade for each in self._states.values()):
            self._look_around(now_s, every=True)  # it is there again, perhaps by other ways too
        state.answer(now_s, rtt_s, via, active=self.active)
        self._was_direct |= is_direct(candidate)
        if candidate.kind is ProbeKind.LINK and not grade:
            for other, its in self._states.items():
                if other.kind is ProbeKind.OVERLAY and its.gates[0] is state and not its.waiting:
                    its.restart(now_s, urgent=True)
        used = state.used
        beside = bool(candidate.relay) and not used  # it may be the faster one now
        if state.grade != grade or via != via_before or beside or self._in_doubt():
            self._choose(now_s)
        if used or not state.used or candidate.kind is not ProbeKind.TUNNEL:
            if state.proven and not state.streaks.rested:
                state.streaks.rested = True
                stretch *= first_share
            state.next_s = rested_s(now_s, self._pause_s(candidate, state, rtt_s, stretch))

    def _pause_s(
        self, candidate: Candidate, state: ProbeState, rtt_s: float, stretch: float
    ) -> float:
        path = self.path
        # An answered overlay probe has used the link too.
        bears = state.used and not (
            candidate.kind is ProbeKind.LINK and path and path.rung.proof is ProbeKind.OVERLAY
        )
        return pause_s(candidate, state, rtt_s, bears=bears, active=self.active, stretch=stretch)

    # Choosing

    def choice(self) -> PathChoice:
        return PathChoice(self._facts, self._links, self._states, self.path, self._lead)

    def _in_doubt(self) -> bool:
        return any(each.used and not each.proven for each in self._states.values())

    def _choose(self, now_s: float) -> None:
        choice = self.choice()
        best, grade = choice.best()
        now = self.path
        if best is None:
            return
        candidate = tunnel_candidate(best)
        if now is not None and candidate is not None and candidate == tunnel_candidate(now):
            self.path = best  # the same way, of which more is known
            return
        if now is None or (
            best != now and choice.may_leave(best, grade, now_s, patient=not self.active)
        ):
            state = self._states[candidate] if candidate is not None else None
            if state is not None and not state.mtu_bytes:
                state.sizes = state.sizes or SizeSearch(now_s)
                if now is not None and self._is_firm():
                    return  # nothing is lost by waiting until it is known what it carries
            self.path = best
            self._mark_used()
            if state is not None and not state.waiting:
                state.next_s = now_s  # so that the peer hears of it

    def _mark_used(self) -> None:
        used = self.choice().stands_on(self.path)
        for candidate, state in self._states.items():
            state.used = candidate in used

    # What others want to know

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All there are, whether they are of use now or not."""
        return tuple(self._states)

    def stands_on(self, candidate: Candidate) -> bool:
        """Whether the path does."""
        state = self._states.get(candidate)
        return state is not None and state.used and state.grade > 0

    @property
    def is_silent(self) -> bool:
        """The peer answers by no way."""
        return not (self.path is not None and self._is_firm()) and is_silent(self.choice())

    @property
    def round_trip_s(self) -> float:
        """Round trip of the path; 0: not measured yet."""
        return round_trip_s(self.choice())

    @property
    def relay_in_doubt(self) -> bool:
        """The path is by a relay, and an answer is overdue: perhaps a NAT has forgotten us."""
        return any(
            each.used and each.streaks.misses > 0 and bool(candidate.relay)
            for candidate, each in self._states.items()
        )

    def relay_need(self, now_s: float) -> bool | None:
        """Whether a relay is needed; None: not, but one that is there should be kept."""
        if not self._facts.tunnel:
            return False
        if not self._is_relayed and self._is_firm():
            self._direct_s = min(self._direct_s, now_s)
            return False if now_s >= self._direct_s + _RELAY_KEPT_S else None
        self._direct_s = math.inf
        direct = [each for candidate, each in self._states.items() if not candidate.relay]
        overdue = not direct or any(each.is_overdue(now_s) for each in direct)
        return True if self._is_relayed or overdue else None
