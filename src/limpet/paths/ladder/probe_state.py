"""How each question that may be put to a peer stands, and when it is asked again. Pure.

answers and bears the path ──► every second with traffic, else every 5 or 20 s
answers beside it ───────────► every 20 or 60 s
answers again after a loss ──► in quick succession, until it has done so often enough
silent ──────────────────────► after 1, 2, 4 … s, at most `slowest_retry_s`
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from limpet.cluster.topology.transports import ProbeKind
from limpet.paths.ladder.path_mtu import SizeSearch
from limpet.paths.probe.messages import AnsweredBy, Candidate

QUICK_S = 0.3
"""Between probes while something is unclear; longer where answers take longer."""
PRESSED_S = 0.2
"""Instead, where others have to know soon whether the peer is there at all."""
MISSES = 5
"""In a row, then what was proven is lost: a fifth of the packets may be lost by chance."""
TRIES = 3
"""In quick succession for what is not proven."""
FIRM, SHAKY = 2, 1
"""Proven; or it answers again after a loss, but not yet often enough."""
_HASTY_MISSES = 2
"""Until it is lost when the node's links are others: its own link may be gone."""
_FIRST_S, _FIRST_RTTS = 0.7, 1.25
"""The first answer of several is waited for two round trips, but no longer than the larger."""
_FIRST_DELAY_S = 1.0
_MOST_NEEDED = 16
_FORGIVEN_AFTER_S = 120.0
"""Each time that it has held for so long, one loss of the past counts no more."""
_RTT_WEIGHT = 0.25
MEASURED = 3
"""Answers after which the round trip of a relay is known."""
ACTIVE_S = 1.0
"""Between probes of what carries the path of a peer with traffic."""
STEADY_S = 5.0
"""Between probes of what carries the path of another, unencrypted."""
STANDBY_S = 20.0
"""Between probes of what works beside it, and of a tunnelled path without traffic."""
BESIDE_S = 60.0
"""Between probes of tunnelled ways that work beside the path."""
ACTIVE_RETRY_S, IDLE_RETRY_S, RARE_RETRY_S = 10.0, 30.0, 60.0
"""At most between probes of what does not answer but has done so: of a peer with traffic, and of
another, which is soon enough for two ends whose NATs remember for 30 s whom they sent to. What has
never answered is asked at most every 30 s with traffic and every 60 s without.
"""
_SLOWEST_NUDGE_S = 30.0
_SLOWEST_QUICK = 4
_LONG_S, _TOGETHER_S = 30.0, 4.0
_LATELY = 1 << 32


class Question(NamedTuple):
    """A probe to be sent."""

    candidate: Candidate
    in_use: bool = False
    punch: bool = False
    packet_bytes: int = 0
    """Size of the whole IP packet; 0: as small as it is."""


@dataclass(slots=True)
class Streaks:
    """What was answered and what was missed, in a row."""

    misses: int = 0
    answers: int = 0
    needed: int = 1
    """Answers that prove it."""
    answered_s: float = -math.inf
    failing_s: float = -math.inf
    """Since when answers were missed, the last time that any was."""
    proven_s: float = -math.inf
    rested: bool = False
    """Proven, it was left alone for a pause at least once."""
    nudged_s: float = -math.inf
    in_vain: int = 0
    """Nudges since the last answer."""
    lately: int = 1
    """The last 32 in bits, 1 for a miss, the newest lowest; a 1 stands before the first."""

    def note(self, *, missed: bool) -> None:
        self.lately = self.lately << 1 | missed
        if self.lately > 2 * _LATELY:
            self.lately = self.lately % _LATELY | _LATELY

    @property
    def loss(self) -> float | None:
        """Share of misses, 0 to 1; None: nothing was asked yet."""
        count = self.lately.bit_length() - 1
        return (self.lately.bit_count() - 1) / count if count else None


@dataclass(slots=True)
class ProbeState:
    """How a candidate stands."""

    next_s: float
    """When it is sent again; while `waiting`, when the answer is overdue."""
    urgent: bool
    proven: bool = False
    """It has answered, and was not lost since."""
    waiting: bool = False
    streaks: Streaks = field(default_factory=Streaks)
    sent_s: float = -math.inf
    rtt_s: float = 0.0
    """Smoothed."""
    via: AnsweredBy = AnsweredBy()
    """As the last answer came."""
    used: bool = False
    """The path stands on it."""
    gates: tuple[ProbeState, ...] = ()
    """Overlay: of its link. Site: of the links to the same address."""
    rank: tuple[int, int] = (0, 0)
    """Tunnel: lower is better."""
    sizes: SizeSearch | None = None
    """Tunnel: what it carries, once that is of interest."""

    @property
    def grade(self) -> int:
        return FIRM if self.proven else SHAKY if self.streaks.answers else 0

    @property
    def firm(self) -> bool:
        """Proven, and nothing is missing since."""
        return self.proven and not self.streaks.misses

    @property
    def mtu_bytes(self) -> int:
        """Tunnel: the largest packet that is carried; 0: not known."""
        return self.sizes.known_bytes if self.sizes is not None else 0

    def is_overdue(self, now_s: float) -> bool:
        """Something was asked, and the answer is missing."""
        return bool(self.streaks.misses) and self.streaks.failing_s + QUICK_S <= now_s

    def is_of(self, candidate: Candidate, links: Collection[str]) -> bool:
        """Whether it is about a way in clear by one of the links, or by nobody knows which."""
        by = candidate.device or self.via.ifname
        return candidate.kind is not ProbeKind.TUNNEL and bool(links) and (not by or by in links)

    def restart(self, at_s: float, *, urgent: bool) -> None:
        """It is asked at that moment; what bears the path not later than it would have been."""
        if not self.proven:
            self.streaks.misses = min(self.streaks.misses, 1)
        if not self.waiting:
            bears = self.used and self.proven
            self.next_s = min(self.next_s, at_s) if bears else at_s
        self.urgent = urgent

    def doubt(self, at_s: float) -> None:
        """The node's links are others: its own may be gone, or another NAT in the way."""
        if self.proven:
            self.streaks.misses = max(self.streaks.misses, MISSES - _HASTY_MISSES)
            self.streaks.failing_s = at_s
        if self.sizes is not None:
            self.sizes.begin(at_s)

    def doubt_size(self) -> None:
        """What it carries may be less, or more, although it answers."""
        if self.sizes is not None:
            self.sizes.doubted = True

    def carries(self, packet_bytes: int, now_s: float) -> bool:
        """A packet of that size was answered. Whether more is known by that."""
        known = self.mtu_bytes
        if self.sizes is not None:
            self.sizes.answered(packet_bytes, now_s)
        return self.mtu_bytes != known

    def is_idle(self, now_s: float) -> bool:
        """It was not asked just now."""
        return not self.waiting and self.sent_s + QUICK_S <= now_s

    def ask_soon(self, now_s: float) -> None:
        """Something speaks for an answer."""
        if not self.proven and (self.waiting or self.is_idle(now_s)):
            self.restart(now_s, urgent=True)

    def nudge(self, now_s: float) -> None:
        """The peer was heard from there. Each time that it does not answer all the same, the next
        nudge that counts is later: two ends between which nothing can be proven, as a NAT is
        there, would nudge each other without end."""
        rest_s = min(2.0**self.streaks.in_vain, _SLOWEST_NUDGE_S)
        if not self.proven and now_s >= self.streaks.nudged_s + rest_s:
            self.streaks.nudged_s = now_s
            self.streaks.in_vain = min(self.streaks.in_vain + 1, 10)
            self.ask_soon(now_s)

    def send(self, now_s: float, *, pressed: bool = False) -> None:
        """`pressed`: whether it answers at all has to be known soon."""
        self.waiting, self.sent_s = True, now_s
        if self.streaks.misses:  # the answer to any of them does
            self.next_s = now_s + max(PRESSED_S if pressed else QUICK_S, self.rtt_s / 2)
        else:
            most_s = max(_FIRST_S, _FIRST_RTTS * self.rtt_s)
            self.next_s = now_s + max(QUICK_S, min(2 * self.rtt_s, most_s))

    def miss(self, now_s: float, slowest_s: float, stretch: float) -> bool:
        """No answer came in time. Whether it was proven, and is lost now.

        `slowest_s`: it is asked again after no more than that, times `stretch`.
        """
        self.waiting = False
        self.streaks.answers = 0
        first = not self.streaks.misses
        self.streaks.failing_s = self.sent_s if first else min(self.streaks.failing_s, self.sent_s)
        self.streaks.misses += 1
        self.streaks.note(missed=True)
        if self.streaks.misses < (MISSES if self.proven else TRIES):
            return False
        lost, self.proven, self.urgent = self.proven, False, False
        if lost:
            forgiven = int(min((now_s - self.streaks.proven_s) / _FORGIVEN_AFTER_S, 10))
            self.streaks.needed = min(2 * max(self.streaks.needed >> forgiven, 1), _MOST_NEEDED)
            self.streaks.misses = TRIES
        delay_s = _FIRST_DELAY_S * 2 ** min(self.streaks.misses - TRIES, 10)
        self.next_s = now_s + min(delay_s, slowest_s) * stretch
        return lost

    def answer(self, now_s: float, rtt_s: float, via: AnsweredBy, *, active: bool) -> None:
        """`active`: packets of any size go by it now, if it is used."""
        first = self.streaks.answered_s == -math.inf
        self.waiting, self.streaks.misses, self.streaks.in_vain = False, 0, 0
        self.streaks.answers += 1
        self.streaks.note(missed=False)
        self.streaks.answered_s, self.via = now_s, via
        self.rtt_s = rtt_s if first else self.rtt_s + _RTT_WEIGHT * (rtt_s - self.rtt_s)
        if self.streaks.answers >= self.streaks.needed:
            if not self.proven and self.sizes is not None and not self.mtu_bytes:
                self.sizes.begin(now_s)  # what was asked before may have been lost with the way
            if not self.proven:
                self.streaks.proven_s = now_s
                self.doubt_size()
            self.proven, self.urgent = True, False
        if active and self.used and self.sizes is not None and self.mtu_bytes:
            self.sizes.confirm(now_s)


def pause_s(
    candidate: Candidate,
    state: ProbeState,
    rtt_s: float,
    *,
    bears: bool,
    active: bool,
    stretch: float,
) -> float:
    """After an answer. `bears`: the path stands on it; `active`: the peer has traffic."""
    if not state.proven:
        return QUICK_S * min(max(state.streaks.needed // 2, 1), _SLOWEST_QUICK)
    if bears:
        if active:
            return max(ACTIVE_S - rtt_s, 0.0)  # since it was asked
        return (STANDBY_S if candidate.kind is ProbeKind.TUNNEL else STEADY_S) * stretch
    if candidate.relay and state.streaks.answers < MEASURED:
        return ACTIVE_S * stretch  # it may be the faster one
    return (BESIDE_S if candidate.kind is ProbeKind.TUNNEL else STANDBY_S) * stretch


def rested_s(now_s: float, pause_s: float) -> float:
    """When the pause is over. Long ones, of one peer among hundreds, end together: a processor that
    is woken for every single probe, and for its answer, has forgotten each time how that went."""
    over_s = now_s + pause_s
    return over_s if pause_s < _LONG_S else round(over_s / _TOGETHER_S) * _TOGETHER_S


def slowest_retry_s(*, active: bool, hopeful: bool) -> float:
    """At most between probes of what does not answer. `hopeful`: it, or its like, has answered."""
    if hopeful:
        return ACTIVE_RETRY_S if active else IDLE_RETRY_S
    return IDLE_RETRY_S if active else RARE_RETRY_S


def searches(
    probe_states: Mapping[Candidate, ProbeState], *, vital: bool
) -> Iterator[tuple[Candidate, ProbeState, SizeSearch]]:
    """What is to be found out of sizes, only of ways that answer.

    Vital: of the path, until it is known what it carries.
    """
    for candidate, state in probe_states.items():
        search = state.sizes
        if search is None or not state.firm:
            continue
        unknown = not search.known_bytes
        if (state.used or unknown) and (state.used and unknown) is vital:
            yield candidate, state, search


def way_to_tell(probe_states: Mapping[Candidate, ProbeState]) -> Candidate | None:
    """By which tunnelled way the peer is told something at once: one that answers."""
    ways = [
        (not state.used, not state.waiting, -state.grade, state.rank, candidate)
        for candidate, state in probe_states.items()
        if candidate.kind is ProbeKind.TUNNEL and state.grade
    ]
    return min(ways, key=lambda way: way[:-1])[-1] if ways else None
