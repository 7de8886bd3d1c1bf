"""Which way a peer is reached: what is asked next, and what the answers prove. Pure.

    LINK answered ──► OVERLAY over that link ──► ROUTE          better
      │  silent ──► SITE
      └───────────────┴────────────────────────► VXLAN
    TUNNEL, to an endpoint of the peer ────────► TUNNEL
    TUNNEL, to a relay ────────────────────────► RELAY, RELAY_TLS

A way that answers holds. One that falls silent is asked again in quick succession before it counts
as lost, and what else there is at the same time; another takes its place only if it has answered
since. Nobody answers: the last path stays. What was lost comes back when it has answered twice in
a row, after each further loss twice as often, so that a link that flaps does not carry the path
along.

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
from limpet.paths.ladder.backoff import ACTIVE_S, pause_s, slowest_retry_s
from limpet.paths.ladder.candidates import Facts, link_trial, trial_of_end, trials_for, tunnel_trial
from limpet.paths.ladder.choice import Choice
from limpet.paths.ladder.path_mtu import SizeSearch, search_of
from limpet.paths.ladder.probe_state import (
    QUICK_S,
    TRIES,
    ProbeState,
    Question,
    searches,
    way_to_tell,
)
from limpet.paths.ladder.relay_need import RelayNeed
from limpet.paths.probe.messages import Trial

PUNCH_EVERY_S = 1.5
_BELOW_ALL = 1 << 16
"""A preference that no transport has."""
_INVITED_EVERY_S = 1.0
"""How often the peer may make us try all of its endpoints."""


@dataclass(slots=True, eq=False)
class Ladder:
    """One peer's. `path`, when it is made: the last one that was proven; it holds until lost."""

    path: PeerPath | None = None
    leads: bool = True
    """This end chooses for both between tunnelled ways."""
    active: bool = False
    """Pods have traffic with the peer."""
    _facts: Facts = field(default_factory=Facts)
    _links: tuple[UnderlayLink, ...] = ()
    _standings: dict[Trial, ProbeState] = field(default_factory=dict)
    _lead: Trial | None = None
    """By which the peer was heard to send, if it chooses for both."""
    _punch_s: float = -math.inf
    _invited_s: float = -math.inf
    _was_direct: bool = False
    """Some endpoint of the peer has answered, so one may again."""
    _need: RelayNeed = field(default_factory=RelayNeed)

    # What is known changes

    def settle(
        self,
        facts: Facts,
        links: tuple[UnderlayLink, ...],
        *,
        at_s: float,
        urgent: bool,
        anew: bool = True,
    ) -> None:
        """Takes up what is known now.

        `anew`: from `at_s` on everything is asked again, else only what is new.
        """
        before, moved = self._standings, bool(self._links) and links != self._links
        withdrawn = {trial_of_end(end) for end in self._facts.relay_ends}
        withdrawn -= {trial_of_end(end) for end in facts.relay_ends}
        self._facts, self._links = facts, links
        self._standings = {}
        path = self.path
        if path is not None and not facts.clear and not path.rung.encrypted:
            self.path = path = None  # it would go unencrypted
        kept = self._choice().stands_on(path) if not before else frozenset()
        for trial in trials_for(facts, links, path):
            if trial in withdrawn:
                continue
            standing = before.get(trial)
            if standing is None:
                standing = ProbeState(at_s, urgent, proven=trial in kept)
                if path is not None and trial == tunnel_trial(path):
                    standing.sizes = search_of(path.mtu_bytes, at_s, sure=standing.proven)
            elif anew:
                standing.begin_anew(at_s, urgent=urgent)
            self._standings[trial] = standing
        choice = self._choice()
        for trial, standing in self._standings.items():
            standing.gates = tuple(self._gates_of(trial))
            if trial.ask is ProbeKind.TUNNEL:
                standing.rank = choice.rank(trial)
                if moved:
                    standing.doubt(at_s)
        self._mark_used()
        if path is not None and tunnel_trial(path) in withdrawn:
            self._look_around(at_s, every=True)
        self._choose(at_s)
        if self.path is path and path is not None:
            self.path = self._choice().without_link(path)
            if self.path is not path:
                self._mark_used()

    def set_active(self, now_s: float, *, active: bool) -> None:
        """Whether pods have traffic with the peer: then its path has to be right at any time."""
        if active and not self.active:
            firm = self._is_firm()
            for trial, standing in self._standings.items():
                if standing.used or not firm or (self._is_relayed and _is_direct(trial)):
                    lately = standing.sent_s + QUICK_S > now_s
                    at_s = standing.sent_s + ACTIVE_S if lately else now_s
                    standing.begin_anew(at_s, urgent=True)
        self.active = active

    def nudge(self, address: Address, now_s: float) -> None:
        """The peer writes from `address`: it may answer there now."""
        for trial, standing in self._standings.items():
            if trial.address == address and trial.ask is not ProbeKind.TUNNEL:
                standing.ask_soon(now_s)

    def heard(
        self, end: Endpoint, now_s: float, *, relayed: bool, in_use: bool, punch: bool
    ) -> None:
        """A probe of the peer came by the tunnel from `end`; the flags are the probe's."""
        for trial, standing in self._standings.items():
            if trial.ask is not ProbeKind.TUNNEL or bool(trial.relay) is not relayed:
                continue
            if (trial.address, trial.port) == end:
                standing.ask_soon(now_s)
                if in_use and not self.leads and trial != self._lead:
                    self._lead = trial
                    self._choose(now_s)
                elif in_use and not standing.used:
                    self._ask_path(now_s)
                break
        if punch and self._invited_s + _INVITED_EVERY_S <= now_s:
            # As if this end had punched: it is not to be answered with a punch in turn.
            self._invited_s = self._punch_s = now_s
            for trial, standing in self._standings.items():
                if _is_direct(trial) and not standing.proven and standing.is_idle(now_s):
                    standing.next_s = now_s

    def _ask_path(self, now_s: float) -> None:
        """The peer sends by another way: perhaps it knows of this one what is not known here."""
        for standing in self._standings.values():
            if standing.used and standing.is_idle(now_s) and standing.sent_s + ACTIVE_S <= now_s:
                standing.next_s = min(standing.next_s, now_s)

    def told(self, way: PeerPath | None) -> None:
        """The peer has said by which way it reaches us."""
        if way is None or not way.rung.encrypted:
            self._lead = None

    # Asking

    def due_s(self, *, vital: bool) -> float:
        """When the next trial is to be sent, or is overdue; infinity: none."""
        moments = [standing.next_s for _trial, standing in self._open(vital=vital)]
        moments += [each.next_s for _, _, each in searches(self._standings, vital=vital)]
        return min(moments, default=math.inf)

    def take_due(self, now_s: float, *, vital: bool, stretch: float = 1.0) -> list[Question]:
        """What is to be sent now; it counts as sent.

        `vital`: what the path depends on or has just changed, else what might be better.
        `stretch`: factor on what is waited before a trial that does not answer is sent again.
        """
        due: list[Trial] = []
        missed = False
        for trial, standing in list(self._open(vital=vital)):
            if standing.next_s > now_s:
                continue
            if standing.waiting:
                missed = True
                self._miss(trial, standing, now_s, stretch)
                if standing.next_s > now_s:
                    continue
            standing.send(now_s)
            due.append(trial)
        if missed:
            self._choose(now_s)
        punch = self._punch(due, now_s)
        questions = [self._question(trial, punch=trial == punch) for trial in due]
        if punch is not None and punch not in due:
            questions.append(self._question(punch, punch=True))
        return questions + self._size_questions(now_s, vital=vital, stretch=stretch)

    def _question(self, trial: Trial, *, punch: bool = False, packet_bytes: int = 0) -> Question:
        standing = self._standings[trial]
        in_use = standing.used and trial.ask is ProbeKind.TUNNEL
        return Question(trial, in_use, punch, packet_bytes)

    def _punch(self, due: list[Trial], now_s: float) -> Trial | None:
        """By which way the peer is told to try its own direct ways just now; None: by none."""
        tries = any(_is_direct(trial) and not self._standings[trial].proven for trial in due)
        if not tries or now_s < self._punch_s + PUNCH_EVERY_S:
            return None
        way = way_to_tell(self._standings)
        if way is not None:
            self._punch_s = now_s
        return way

    def _size_questions(self, now_s: float, *, vital: bool, stretch: float) -> list[Question]:
        found: list[Question] = []
        changed = False
        for trial, standing, search in list(searches(self._standings, vital=vital)):
            known = search.known_bytes
            wait_s = max(QUICK_S, min(2 * standing.rtt_s, 1.0))
            sizes = search.take_due(now_s, wait_s=wait_s, stretch=stretch)
            found += [self._question(trial, packet_bytes=size) for size in sizes]
            changed |= search.known_bytes != known
        if changed:
            self._choose(now_s)
        return found

    def _open(self, *, vital: bool) -> Iterator[tuple[Trial, ProbeState]]:
        """What is asked, as far as the answer could tell anything that others have not told."""
        bound = self._bound()
        for trial, standing in self._standings.items():
            if (standing.urgent or (standing.used and standing.proven)) is not vital:
                continue
            if trial.ask is ProbeKind.OVERLAY and not standing.gates[0].grade:
                continue
            if trial.ask is ProbeKind.SITE and not all(gate.misses for gate in standing.gates):
                continue
            beside = trial.ask is ProbeKind.TUNNEL and not standing.used and trial != self._lead
            # Other relays are measured beside the one in use.
            if beside and not (standing.rank < bound or (trial.relay and standing.rank == bound)):
                continue
            yield trial, standing

    def _bound(self) -> tuple[int, int]:
        """Rank of the path, if it is firm: what is not better is not asked."""
        if self.path is None or not self._is_firm():
            return (_BELOW_ALL, 0)
        present = tunnel_trial(self.path)
        return (-1, 0) if present is None else self._standings[present].rank

    @property
    def _is_relayed(self) -> bool:
        return self.path is not None and bool(self.path.relay)

    def _is_firm(self) -> bool:
        used = [each for each in self._standings.values() if each.used]
        return bool(used) and all(each.firm for each in used)

    def _gates_of(self, trial: Trial) -> Iterator[ProbeState]:
        if trial.ask is ProbeKind.OVERLAY:
            yield self._standings[link_trial(trial)]
        if trial.ask is ProbeKind.SITE:
            yield from self._choice().links_to(trial.address)

    def _miss(self, trial: Trial, standing: ProbeState, now_s: float, stretch: float) -> None:
        used = standing.used and standing.proven
        lost = standing.miss(now_s, self._slowest_s(trial, standing), stretch)
        if used and (lost or standing.misses == 1):
            self._look_around(now_s, every=lost)

    def _slowest_s(self, trial: Trial, standing: ProbeState) -> float:
        """At most between probes of what does not answer."""
        firm = self._is_firm()
        hopeful = standing.answered_s > -math.inf or (
            self._was_direct and _is_direct(trial) and (self._is_relayed or not firm)
        )
        # Who answers in no way is asked anew as soon as it does in one.
        return slowest_retry_s(active=self.active, hopeful=hopeful and (self.active or firm))

    def _look_around(self, now_s: float, *, every: bool) -> None:
        """The path is in doubt: what else there is has to be known soon."""
        for standing in self._standings.values():
            if not standing.waiting and (every or standing.misses < TRIES):
                standing.begin_anew(now_s, urgent=True)

    # Hearing

    def answered(
        self,
        trial: Trial,
        now_s: float,
        *,
        rtt_s: float,
        via: str,
        stretch: float = 1.0,
        packet_bytes: int = 0,
    ) -> None:
        """The peer has answered, by link `via`. `stretch`: factor on what is waited now.

        `packet_bytes`: size of the question's packet, if it was to tell what the way carries.
        """
        standing = self._standings.get(trial)
        if standing is None:
            return
        if packet_bytes:
            self._carries(standing, packet_bytes, now_s)
            return
        grade, via_before = standing.grade, standing.via
        if not any(each.grade for each in self._standings.values()):
            self._look_around(now_s, every=True)  # it is there again, perhaps by other ways too
        standing.answer(now_s, rtt_s, via)
        self._was_direct |= _is_direct(trial)
        if trial.ask is ProbeKind.LINK and not grade:
            for other, its in self._standings.items():
                if other.ask is ProbeKind.OVERLAY and its.gates[0] is standing and not its.waiting:
                    its.begin_anew(now_s, urgent=True)
        used = standing.used
        beside = bool(trial.relay) and not used  # it may be the faster one now
        if standing.grade != grade or via != via_before or beside or self._in_doubt():
            self._choose(now_s)
        if used or not standing.used or trial.ask is not ProbeKind.TUNNEL:
            standing.next_s = now_s + self._pause_s(trial, standing, rtt_s, stretch)

    def _carries(self, standing: ProbeState, packet_bytes: int, now_s: float) -> None:
        known = standing.mtu_bytes
        if standing.sizes is not None:
            standing.sizes.answered(packet_bytes, now_s)
        if standing.mtu_bytes != known:
            self._choose(now_s)

    def _pause_s(self, trial: Trial, standing: ProbeState, rtt_s: float, stretch: float) -> float:
        path = self.path
        # An answered overlay probe has used the link too.
        bears = standing.used and not (
            trial.ask is ProbeKind.LINK and path and path.rung.proof is ProbeKind.OVERLAY
        )
        return pause_s(trial, standing, rtt_s, bears=bears, active=self.active, stretch=stretch)

    # Choosing

    def _choice(self) -> Choice:
        return Choice(self._facts, self._links, self._standings, self.path, self._lead)

    def _in_doubt(self) -> bool:
        return any(each.used and not each.proven for each in self._standings.values())

    def _choose(self, now_s: float) -> None:
        choice = self._choice()
        best, grade = choice.best()
        now = self.path
        if best is None:
            return
        trial = tunnel_trial(best)
        if now is not None and trial is not None and trial == tunnel_trial(now):
            self.path = best  # the same way, of which more is known
            return
        if now is None or (
            best != now and choice.may_leave(best, grade, now_s, patient=not self.active)
        ):
            standing = self._standings[trial] if trial is not None else None
            if standing is not None and not standing.mtu_bytes:
                standing.sizes = standing.sizes or SizeSearch(now_s)
                if now is not None and self._is_firm():
                    return  # nothing is lost by waiting until it is known what it carries
            self.path = best
            self._mark_used()
            if standing is not None and not standing.waiting:
                standing.next_s = now_s  # so that the peer hears of it

    def _mark_used(self) -> None:
        used = self._choice().stands_on(self.path)
        for trial, standing in self._standings.items():
            standing.used = trial in used

    # What others want to know

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All there are, whether they are of use now or not."""
        return tuple(self._standings)

    def stands_on(self, trial: Trial) -> bool:
        """Whether the path does."""
        standing = self._standings.get(trial)
        return standing is not None and standing.used and standing.grade > 0

    @property
    def relay_in_doubt(self) -> bool:
        """The path is by a relay, and an answer is overdue: perhaps a NAT has forgotten us."""
        return any(
            each.used and each.misses > 0 and bool(trial.relay)
            for trial, each in self._standings.items()
        )

    def relay_need(self, now_s: float) -> bool | None:
        """Whether a relay is needed; None: not, but one that is there should be kept."""
        if not self._facts.tunnel:
            return False
        relayed = self._is_relayed
        direct = [each for trial, each in self._standings.items() if not trial.relay]
        return self._need.of(
            now_s,
            direct=not relayed and self._is_firm(),
            unanswered=relayed or not direct or any(each.is_overdue(now_s) for each in direct),
        )


def _is_direct(trial: Trial) -> bool:
    return trial.ask is ProbeKind.TUNNEL and not trial.relay
