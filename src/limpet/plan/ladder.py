"""Which way a peer is reached: what is asked next, and what the answers prove. Pure.

    LINK answered ──► OVERLAY over that link ──► ROUTE
      │  silent ──► SITE
      └───────────────┴────────────────────────► VXLAN

A way that answers holds. One that falls silent is asked three times in quick succession before it
counts as lost; another takes its place only if it has answered since. Nobody answers: the last
path stays. What was lost comes back when it has answered twice in a row, after each further loss
twice as often, so that a link that flaps does not carry the path along.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from limpet.model.network import Address
from limpet.model.overlay import PeerPath, Rung, UnderlayLink
from limpet.model.probe import Ask, Trial
from limpet.plan.trials import Facts, joined_hops, known_addresses, link_trial, port_of, trials_for

QUICK_S = 0.3
"""Between probes while something is unclear; longer where answers take longer."""
STEADY_S = 5.0
"""Between probes of what carries the path."""
STANDBY_S = 20.0
"""Between probes of what works beside it."""
SLOWEST_S = 60.0
"""Between probes of what does not answer."""
MISSES = 3
"""In a row, then it is lost."""
_SLOWEST_QUICK_S = 2.0
_SLOWEST_QUICK = 4
_FIRST_DELAY_S = 1.0
_MOST_NEEDED = 16
_FORGIVEN_AFTER = 100
"""Answers in a row, then a loss long ago counts no more than the first one."""
_PATIENCE_S = 10.0
"""Without an answer, then what is not proven yet is good enough."""
_MTU_BYTES = 1500
_FIRM, _SHAKY = 2, 1
"""Proven; or it answers again after a loss, but not yet often enough."""


@dataclass(slots=True)
class _Standing:
    """How a trial stands."""

    next_s: float
    """When it is sent again; while `waiting`, when the answer is overdue."""
    urgent: bool
    proven: bool = False
    """It has answered, and was not lost since."""
    waiting: bool = False
    misses: int = 0
    answers: int = 0
    """In a row, like the misses."""
    needed: int = 1
    """Answers in a row that prove it."""
    sent_s: float = -math.inf
    answered_s: float = -math.inf
    failing_s: float = -math.inf
    """Since when it missed answers, the last time that it did."""
    rtt_s: float = 0.0
    via: str = ""
    """Link that the last answer came by."""
    used: bool = False
    """The path stands on it."""
    gates: tuple[_Standing, ...] = ()
    """Overlay: of its link. Site: of the links to the same address."""

    @property
    def grade(self) -> int:
        return _FIRM if self.proven else _SHAKY if self.answers else 0


@dataclass(slots=True, eq=False)
class Ladder:
    """One peer's. `path`, when it is made: the last one that was proven; it holds until lost."""

    path: PeerPath | None = None
    _facts: Facts = field(default_factory=Facts)
    _links: tuple[UnderlayLink, ...] = ()
    _standings: dict[Trial, _Standing] = field(default_factory=dict)

    # What is known changes

    def settle(
        self, facts: Facts, links: tuple[UnderlayLink, ...], *, at_s: float, urgent: bool
    ) -> None:
        """Takes up what is known now; from `at_s` on everything is asked anew."""
        before = self._standings
        self._facts, self._links = facts, links
        self._standings = {}
        kept = self._stands_on(self.path) if not before else frozenset()
        for trial in trials_for(facts, links, self.path):
            standing = before.get(trial)
            if standing is None:
                standing = _Standing(at_s, urgent, proven=trial in kept)
            else:
                _begin_anew(standing, at_s, urgent=urgent)
            self._standings[trial] = standing
        for trial, standing in self._standings.items():
            standing.gates = tuple(self._gates_of(trial))
        path = self.path
        self._take(path)
        self._choose(at_s)
        if self.path is path and path is not None and path.rung is Rung.ROUTE:
            self._leave_lost_link(path)

    def _leave_lost_link(self, path: PeerPath) -> None:
        """VXLAN goes by whatever link there will be; a route over a lost one leads nowhere."""
        if path.underlay is None or any(link.ifname == path.device for link in self._links):
            return
        self._take(PeerPath(Rung.VXLAN, path.mtu_bytes, underlay=path.underlay))

    def nudge(self, address: Address, now_s: float) -> None:
        """The peer writes from `address`: it may answer there now."""
        for trial, standing in self._standings.items():
            idle = not standing.waiting and standing.sent_s + QUICK_S <= now_s
            if trial.address == address and not standing.proven and idle:
                _begin_anew(standing, now_s, urgent=True)

    # Asking

    def due_s(self, *, vital: bool) -> float:
        """When the next trial is to be sent, or is overdue; infinity: none."""
        return min(
            (standing.next_s for _trial, standing in self._open(vital=vital)), default=math.inf
        )

    def take_due(self, now_s: float, *, vital: bool, stretch: float = 1.0) -> list[Trial]:
        """What is to be sent now; it counts as sent.

        `vital`: what the path depends on or has just changed, else what might be better.
        `stretch`: factor on what is waited before a trial that does not answer is sent again.
        """
        due = []
        missed = False
        for trial, standing in list(self._open(vital=vital)):
            if standing.next_s > now_s:
                continue
            if standing.waiting:
                missed = True
                self._miss(standing, now_s, stretch)
                if standing.next_s > now_s:
                    continue
            standing.waiting, standing.sent_s = True, now_s
            standing.next_s = now_s + min(max(QUICK_S, 2 * standing.rtt_s), _SLOWEST_QUICK_S)
            due.append(trial)
        if missed:
            self._choose(now_s)
        return due

    def _open(self, *, vital: bool) -> Iterator[tuple[Trial, _Standing]]:
        """What is asked, as far as the answer could tell anything that others have not told."""
        for trial, standing in self._standings.items():
            if (standing.urgent or (standing.used and standing.proven)) is not vital:
                continue
            if trial.ask is Ask.OVERLAY and not standing.gates[0].grade:
                continue
            if trial.ask is Ask.SITE and not all(gate.misses for gate in standing.gates):
                continue
            yield trial, standing

    def _gates_of(self, trial: Trial) -> Iterator[_Standing]:
        if trial.ask is Ask.OVERLAY:
            yield self._standings[link_trial(trial)]
        if trial.ask is Ask.SITE:
            yield from self._links_to(trial.address)

    def _miss(self, standing: _Standing, now_s: float, stretch: float) -> None:
        standing.waiting = False
        standing.answers = 0
        if not standing.misses:
            standing.failing_s = standing.sent_s
        standing.misses += 1
        if standing.used and standing.proven and standing.misses in (1, MISSES):
            self._look_around(now_s)
        if standing.misses < MISSES:
            return
        if standing.proven:
            standing.proven = False
            standing.needed = min(2 * standing.needed, _MOST_NEEDED)
        standing.urgent = False
        delay_s = _FIRST_DELAY_S * 2 ** min(standing.misses - MISSES, 10)
        standing.next_s = now_s + min(delay_s, SLOWEST_S) * stretch

    def _look_around(self, now_s: float) -> None:
        """The path is in doubt: what else there is has to be known soon."""
        for standing in self._standings.values():
            if not standing.waiting:
                _begin_anew(standing, now_s, urgent=True)

    # Hearing

    def answered(
        self, trial: Trial, now_s: float, *, rtt_s: float, via: str, stretch: float = 1.0
    ) -> None:
        """The peer has answered, by link `via`. `stretch`: factor on what is waited now."""
        standing = self._standings.get(trial)
        if standing is None:
            return
        grade, via_before = standing.grade, standing.via
        standing.waiting = False
        standing.misses = 0
        standing.answers += 1
        standing.answered_s = now_s
        standing.rtt_s, standing.via = rtt_s, via
        if standing.answers >= standing.needed:
            standing.proven, standing.urgent = True, False
        if standing.answers >= _FORGIVEN_AFTER:
            standing.needed = min(standing.needed, 2)
        if trial.ask is Ask.LINK and not grade:
            for other, its in self._standings.items():
                if other.ask is Ask.OVERLAY and its.gates[0] is standing and not its.waiting:
                    _begin_anew(its, now_s, urgent=True)
        if standing.grade != grade or via != via_before or self._in_doubt():
            self._choose(now_s)
        standing.next_s = now_s + self._pause_s(trial, standing, stretch)

    def _pause_s(self, trial: Trial, standing: _Standing, stretch: float) -> float:
        if not standing.proven:
            return QUICK_S * min(max(standing.needed // 2, 1), _SLOWEST_QUICK)
        path = self.path
        # An answered overlay probe has used the link too.
        if standing.used and not (trial.ask is Ask.LINK and path and path.rung is Rung.ROUTE):
            return STEADY_S * stretch
        return STANDBY_S * stretch

    # Choosing

    def _in_doubt(self) -> bool:
        return any(each.used and not each.proven for each in self._standings.values())

    def _choose(self, now_s: float) -> None:
        best, grade = self._best()
        now = self.path
        if best is None or best == now:
            return
        if now is None or self._may_leave(now, best, grade, now_s):
            self._take(best)

    def _may_leave(self, now: PeerPath, best: PeerPath, grade: int, now_s: float) -> bool:
        proofs = self._proofs(now)
        lost = [proof for proof in proofs if not _any_of(proof, _FIRM)]
        if not lost:
            return True
        if all(_any_of(proof, _SHAKY) for proof in proofs):
            return False  # it answers again
        last_s = min(max(standing.answered_s for standing in proof) for proof in lost)
        if grade < _FIRM and last_s > now_s - _PATIENCE_S:
            return False
        since_s = min(standing.failing_s for proof in lost for standing in proof)
        return all(
            max(each.answered_s for each in proof if each.grade >= grade) >= since_s
            for proof in self._proofs(best)
        )

    def _best(self) -> tuple[PeerPath | None, int]:
        """The best path and how firm it is: addresses that the peer still names come first."""
        named = self._facts.named
        every = known_addresses(self._facts, self.path)
        grades = {standing.grade for standing in self._standings.values()}
        for grade in sorted(grades - {0}, reverse=True):
            for addresses in (named, every) if named != every else (named,):
                path = self._route(addresses, grade) or self._vxlan(addresses, grade)
                if path is not None:
                    return path, grade
        return None, 0

    def _route(self, addresses: Iterable[Address], grade: int) -> PeerPath | None:
        now = self.path
        device, hops = (now.device, now.next_hops) if now is not None else ("", ())
        named = tuple(addresses)
        # Stability: what is in use stays, as long as nothing else is better.
        ordered = (*(hop for hop in hops if hop in named), *(a for a in named if a not in hops))
        for link in sorted(self._links, key=lambda link: link.ifname != device):
            found: dict[int, Address] = {}
            for address in ordered:
                for version in self._facts.overlay:
                    trial = Trial(Ask.OVERLAY, address, self._port(address), link.ifname, version)
                    if self._grade(trial) >= grade and self._grade(link_trial(trial)) >= grade:
                        found.setdefault(version, address)
            next_hops = joined_hops(found, self._facts.overlay)
            if next_hops:
                underlay = self._underlay(named, grade, first=next_hops[0])
                return PeerPath(
                    Rung.ROUTE,
                    link.mtu_bytes,
                    link.ifname,
                    next_hops,
                    underlay[0] if underlay is not None else None,
                )
        return None

    def _vxlan(self, addresses: Iterable[Address], grade: int) -> PeerPath | None:
        found = self._underlay(addresses, grade)
        if found is None:
            return None
        address, via = found
        kept = self.path.mtu_bytes if self.path is not None else _MTU_BYTES
        mtu_bytes = next((link.mtu_bytes for link in self._links if link.ifname == via), kept)
        return PeerPath(Rung.VXLAN, mtu_bytes, underlay=address)

    def _underlay(
        self, addresses: Iterable[Address], grade: int, *, first: Address | None = None
    ) -> tuple[Address, str] | None:
        """Where VXLAN packets may go, and the link that they take."""
        best: tuple[tuple[bool, bool, bool], Address, str] | None = None
        now = self.path.underlay if self.path is not None else None
        for address in addresses:
            if address.version not in self._facts.vxlan:
                continue
            links = [standing for standing in self._links_to(address) if standing.grade >= grade]
            site = self._standings.get(Trial(Ask.SITE, address, self._port(address)))
            proof = links or [each for each in (site,) if each and each.grade >= grade]
            if proof:
                rank = (address != first, address != now, not links)
                if best is None or rank < best[0]:
                    best = rank, address, proof[0].via
        return best[1:] if best is not None else None

    # What a path stands on

    def _proofs(self, path: PeerPath) -> list[list[_Standing]]:
        """Of each group one has to answer. What is asked no more is in none."""
        groups = ([self._standings.get(trial) for trial in group] for group in self._groups(path))
        return [found for group in groups if (found := [each for each in group if each])]

    def _groups(self, path: PeerPath) -> Iterator[list[Trial]]:
        if path.rung is Rung.VXLAN:
            if path.underlay is not None:
                site = Trial(Ask.SITE, path.underlay, self._port(path.underlay))
                links = (link.ifname for link in self._links)
                yield [site, *(site._replace(ask=Ask.LINK, device=name) for name in links)]
            return
        four = any(hop.version == 4 for hop in path.next_hops)
        for hop in path.next_hops:
            versions = (4, 6) if hop.version == 6 and not four else (hop.version,)
            over = Trial(Ask.OVERLAY, hop, self._port(hop), path.device)
            yield [link_trial(over)]
            for version in versions:
                if version in self._facts.overlay:
                    yield [over._replace(version=version)]

    def _take(self, path: PeerPath | None) -> None:
        self.path = path
        used = self._stands_on(path)
        for trial, standing in self._standings.items():
            standing.used = trial in used

    def _stands_on(self, path: PeerPath | None) -> frozenset[Trial]:
        groups = self._groups(path) if path is not None else ()
        return frozenset(trial for group in groups for trial in group)

    def _links_to(self, address: Address) -> Iterator[_Standing]:
        for trial, standing in self._standings.items():
            if trial.ask is Ask.LINK and trial.address == address:
                yield standing

    def _grade(self, trial: Trial) -> int:
        standing = self._standings.get(trial)
        return standing.grade if standing is not None else 0

    def _port(self, address: Address) -> int:
        return port_of(self._facts, address)

    # What others want to know

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All there are, whether they are of use now or not."""
        return tuple(self._standings)

    def stands_on(self, trial: Trial) -> bool:
        """Whether the path does."""
        standing = self._standings.get(trial)
        return standing is not None and standing.used and standing.grade > 0


def _begin_anew(standing: _Standing, at_s: float, *, urgent: bool) -> None:
    if not standing.proven:
        standing.misses = min(standing.misses, 1)
    if not standing.waiting:
        standing.next_s = at_s
    standing.urgent = urgent


def _any_of(proof: list[_Standing], grade: int) -> bool:
    return any(standing.grade >= grade for standing in proof)
