"""One end of a pair of ports on a relay: asked for, bound, and checked again. Pure.

ASKING ── PAIR ──► CHECKING ── TOKEN, BOUND ──► BOUND ── after 15 s ──► CHECKING, still in use
  ▲  refused, silent ──► FAILED, again later       silent: what was bound is gone, ASKING
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from limpet.base.addresses import Endpoint
from limpet.relay.client.contact import QUICK_S, TRIES
from limpet.relay.messages import AskPair, Bound, Check, Pair, Refusal, RelayMessage, Token

RECHECK_S = 15.0
"""Strict NATs forget UDP after 30 s, and gateways reboot."""
_SLOWEST_RECHECK_S = 25.0
_CHECKS_PER_S = 40.0
_RENEW_S = 60.0
"""Between questions for a pair that is there: so the relay tells the other end of it again."""
INVITED_S = 150.0
"""So long an end is kept that only the peer has asked for."""
_UNSURE_S = 90.0
"""An invitation is renewed sooner than that. If not, a hello has the relay say whether the peer
still waits: it tells of streams then alone, and NATs let through what answers."""
_KEPT_NONCES = 2 * TRIES
_FAILED_S, _SLOWEST_FAILED_S = 5.0, 60.0


def recheck_s(ports: int, haste: float) -> float:
    """How long after each check of so many ports the next follows."""
    each_s = max(RECHECK_S * haste, ports * 2 / _CHECKS_PER_S)
    return min(each_s, _SLOWEST_RECHECK_S * haste)


class Phase(Enum):
    REQUESTED = auto()
    CHECKING = auto()
    BOUND = auto()
    FAILED = auto()


@dataclass(slots=True)
class Interest:
    """Who wants the pair."""

    wanted: bool = True
    """By this node; else only the peer has asked for it."""
    invited_s: float = -math.inf
    """When the relay said last that the peer has asked for it."""
    kept_s: float = -math.inf
    """When the relay last answered our question for the pair: only that keeps it there."""

    def is_invited(self, now_s: float) -> bool:
        return self.invited_s > now_s - INVITED_S

    def is_unsure(self, now_s: float) -> bool:
        """The peer has asked for it, but that was not said again when it was due."""
        return self.is_invited(now_s) and self.invited_s <= now_s - _UNSURE_S


@dataclass(slots=True)
class RelayPort:
    """What the relay has given."""

    number: int = 0
    """The relay's, for us; 0: none yet."""
    bound: Endpoint | None = None
    """Where the relay sees us; None: it is of no use yet."""
    bound_s: float = math.inf
    """Since when."""
    lifetime_s: float = math.inf
    """Without a check for so long the relay frees the pair."""

    def unbind(self) -> None:
        self.bound, self.bound_s = None, math.inf


@dataclass(slots=True)
class Sent:
    """What the relay was asked, and how often in vain."""

    tries: int = 0
    asked: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT_NONCES))
    """Nonces of questions for the pair; answers to earlier ones may be late."""
    checked: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT_NONCES))
    """Nonces of checks."""
    tokens: int = 0
    """Tokens that were sent back since it was last due: a NAT may make each of them worthless."""
    failures: int = 0
    quick_s: float = QUICK_S


@dataclass(slots=True, eq=False)
class End:
    peer: str
    relay: str
    address: Endpoint
    """Endpoint of the relay's tunnel's port, by which it is asked."""
    next_s: float
    phase: Phase = Phase.REQUESTED
    interest: Interest = field(default_factory=Interest)
    port: RelayPort = field(default_factory=RelayPort)
    sent: Sent = field(default_factory=Sent)
    problem: str = ""
    """Why there is no pair, in the relay's words."""

    @property
    def endpoint(self) -> Endpoint | None:
        """Where packets for the peer are sent; None: not yet."""
        return (self.address[0], self.port.number) if self.port.bound is not None else None

    def is_kept(self, now_s: float) -> bool:
        """Whether anybody wants it."""
        return self.interest.wanted or self.interest.is_invited(now_s)

    def begin(self, address: Endpoint, now_s: float) -> None:
        """Everything anew, at this address of the relay."""
        self.address = address
        self.phase, self.sent.tries, self.next_s = Phase.REQUESTED, 0, now_s
        self.port.unbind()

    def follow(self, place: Endpoint | None, now_s: float) -> None:
        """If it does not work it begins where the relay answers now; None: nowhere."""
        in_vain = self.sent.tries >= TRIES and self.next_s <= now_s
        if place in (None, self.address) or not (in_vain or self.phase is Phase.FAILED):
            return
        keeps_port = self.port.number and not self.interest.wanted
        self.begin(place, now_s)
        if keeps_port:
            self.phase = Phase.CHECKING  # who asks keeps a pair, and this node does not want it

    def hurry(self, now_s: float) -> None:
        """Checks now whether it holds."""
        if self.phase is Phase.BOUND:
            self.next_s = min(self.next_s, now_s)
        elif self.phase is Phase.FAILED:
            self.begin(self.address, now_s)

    # Asking

    def take_due(self, now_s: float, make_nonce: Callable[[], bytes]) -> list[RelayMessage]:
        """What is sent now that it is due."""
        if self.phase is Phase.FAILED:
            self.begin(self.address, now_s)
        elif self.phase is Phase.BOUND:
            self.phase, self.sent.tries = Phase.CHECKING, 0
        if self.sent.tries >= TRIES:
            if self.port.bound is None or not self.interest.wanted:
                where = "" if self.phase is Phase.REQUESTED else f" at its port {self.port.number}"
                self.fail(now_s, f"no answer{where}")
                return []
            self.begin(self.address, now_s)
        self.sent.tries += 1
        self.sent.tokens = 0
        self.next_s = now_s + self.sent.quick_s
        if self.phase is Phase.REQUESTED:
            return [self._ask(make_nonce())]
        check = Check(make_nonce(), self.port.number)
        self.sent.checked.append(check.nonce)
        if self.interest.wanted and now_s >= self.interest.kept_s + _RENEW_S:
            return [check, self._ask(make_nonce())]
        return [check]

    def _ask(self, nonce: bytes) -> AskPair:
        self.sent.asked.append(nonce)
        return AskPair(nonce, self.peer)

    def fail(self, now_s: float, problem: str) -> None:
        """It is tried again later."""
        self.phase, self.problem = Phase.FAILED, problem
        self.port.unbind()
        self.next_s = now_s + min(_FAILED_S * 2.0**self.sent.failures, _SLOWEST_FAILED_S)
        self.sent.failures = min(self.sent.failures + 1, 10)

    # Hearing

    def told(self, pair: Pair, now_s: float) -> None:
        """The relay's answer, or the news that the peer has asked."""
        unasked = not any(pair.nonce)
        if not unasked and pair.nonce not in self.sent.asked:
            return
        if pair.port == 0:
            if self._lives_by_invitation(pair, now_s):
                self.interest.kept_s = now_s
            elif not unasked:
                self.fail(now_s, pair.refusal.name.lower().replace("_", " "))
            return
        if unasked:
            self.interest.invited_s = now_s
        else:
            self.interest.kept_s = now_s
        self.port.lifetime_s = pair.lifetime_s or math.inf
        # What was tried there in vain waits its time, however often the relay says it.
        goes_on = (Phase.BOUND, Phase.CHECKING, *((Phase.FAILED,) if unasked else ()))
        if pair.port == self.port.number and self.phase in goes_on:
            return
        self.port = RelayPort(pair.port, lifetime_s=self.port.lifetime_s)
        self.phase, self.sent.tries, self.next_s, self.problem = Phase.CHECKING, 0, now_s, ""

    def _lives_by_invitation(self, refused: Pair, now_s: float) -> bool:
        """There is no room for a pair of ours, but that of the peer is there and serves."""
        no_room = refused.refusal in (Refusal.QUOTA, Refusal.FULL)
        return no_room and self.port.bound is not None and self.interest.is_invited(now_s)

    def token(self, token: Token, now_s: float, nonce: bytes) -> Check | None:
        """The check that binds the end; one for each that was sent without a token."""
        if not self._awaits(token) or self.sent.tokens >= TRIES:
            return None
        self.sent.tokens += 1
        self.sent.checked.remove(token.nonce)
        self.sent.checked.append(nonce)
        self.next_s = now_s + self.sent.quick_s
        return Check(nonce, self.port.number, token.token)

    def bind(self, bound: Bound, now_s: float, recheck_s: float) -> bool:
        """Whether it answers a check of ours."""
        if not self._awaits(bound):
            return False
        self.sent.checked.clear()
        if self.port.bound is None:
            self.port.bound_s = now_s
        self.port.bound, self.phase, self.sent.tries, self.sent.failures = (
            bound.endpoint,
            Phase.BOUND,
            0,
            0,
        )
        self.problem, self.next_s = "", now_s + min(recheck_s, self.port.lifetime_s / 3)
        return True

    def _awaits(self, answer: Token | Bound) -> bool:
        checking = self.phase is Phase.CHECKING and answer.port == self.port.number
        return checking and answer.nonce in self.sent.checked
