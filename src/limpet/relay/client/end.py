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
_RENEW_S = 60.0
"""Between questions for a pair that is there: so the relay tells the other end of it again."""
INVITED_S = 150.0
"""So long an end is kept that only the peer has asked for."""
_KEPT_NONCES = 2 * TRIES
_FAILED_S, _SLOWEST_FAILED_S = 5.0, 60.0


class Phase(Enum):
    ASKING = auto()
    CHECKING = auto()
    BOUND = auto()
    FAILED = auto()


@dataclass(slots=True, eq=False)
class End:
    peer: str
    relay: str
    address: Endpoint
    """Of the relay's tunnel's port, by which it is asked."""
    next_s: float
    phase: Phase = Phase.ASKING
    wanted: bool = True
    """By this node; else only the peer has asked for it."""
    invited_s: float = -math.inf
    """When the relay said last that the peer has asked for it."""
    port: int = 0
    """The relay's, for us."""
    bound: Endpoint | None = None
    """Where the relay sees us; None: it is of no use yet."""
    bound_s: float = math.inf
    """Since when."""
    tries: int = 0
    kept_s: float = -math.inf
    """When the relay last answered our question for the pair: only that keeps it there."""
    lifetime_s: float = math.inf
    """Without a check for so long the relay frees the pair."""
    asked: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT_NONCES))
    """Nonces of questions for the pair; answers to earlier ones may be late."""
    checked: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT_NONCES))
    """Nonces of checks."""
    tokens: int = 0
    """That were sent back since it was last due: a NAT may make each of them worthless."""
    failures: int = 0
    quick_s: float = QUICK_S
    problem: str = ""
    """Why there is no pair, in the relay's words."""

    @property
    def endpoint(self) -> Endpoint | None:
        """Where packets for the peer are sent; None: not yet."""
        return (self.address[0], self.port) if self.bound is not None else None

    def is_kept(self, now_s: float) -> bool:
        """Whether anybody wants it."""
        return self.wanted or self.invited_s > now_s - INVITED_S

    def begin(self, address: Endpoint, now_s: float) -> None:
        """Everything anew, at this address of the relay."""
        self.address = address
        self.phase, self.tries, self.next_s = Phase.ASKING, 0, now_s
        self.bound, self.bound_s = None, math.inf

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
            self.phase, self.tries = Phase.CHECKING, 0
        if self.tries >= TRIES:
            if self.bound is None or not self.wanted:
                asking = self.phase is Phase.ASKING
                self.fail(now_s, "no answer" if asking else f"no answer at its port {self.port}")
                return []
            self.begin(self.address, now_s)
        self.tries += 1
        self.tokens = 0
        self.next_s = now_s + self.quick_s
        if self.phase is Phase.ASKING:
            return [self._ask(make_nonce())]
        check = Check(make_nonce(), self.port)
        self.checked.append(check.nonce)
        if self.wanted and now_s >= self.kept_s + _RENEW_S:
            return [check, self._ask(make_nonce())]
        return [check]

    def _ask(self, nonce: bytes) -> AskPair:
        self.asked.append(nonce)
        return AskPair(nonce, self.peer)

    def fail(self, now_s: float, problem: str) -> None:
        """It is tried again later."""
        self.phase, self.problem = Phase.FAILED, problem
        self.bound, self.bound_s = None, math.inf
        self.next_s = now_s + min(_FAILED_S * 2.0**self.failures, _SLOWEST_FAILED_S)
        self.failures = min(self.failures + 1, 10)

    # Hearing

    def told(self, pair: Pair, now_s: float) -> None:
        """The relay's answer, or the news that the peer has asked."""
        unasked = not any(pair.nonce)
        if not unasked and pair.nonce not in self.asked:
            return
        if pair.port == 0:
            if self._lives_by_invitation(pair, now_s):
                self.kept_s = now_s
            elif not unasked:
                self.fail(now_s, pair.refusal.name.lower().replace("_", " "))
            return
        if unasked:
            self.invited_s = now_s
        else:
            self.kept_s = now_s
        self.lifetime_s = pair.lifetime_s or math.inf
        if pair.port == self.port and self.phase in (Phase.BOUND, Phase.CHECKING):
            return
        self.port, self.phase, self.tries, self.next_s = pair.port, Phase.CHECKING, 0, now_s
        self.bound, self.bound_s, self.problem = None, math.inf, ""

    def _lives_by_invitation(self, refused: Pair, now_s: float) -> bool:
        """There is no room for a pair of ours, but that of the peer is there and serves."""
        no_room = refused.refusal in (Refusal.QUOTA, Refusal.FULL)
        return no_room and self.bound is not None and self.invited_s > now_s - INVITED_S

    def token(self, token: Token, now_s: float, nonce: bytes) -> Check | None:
        """The check that binds the end; one for each that was sent without a token."""
        if not self._awaits(token) or self.tokens >= TRIES:
            return None
        self.tokens += 1
        self.checked.remove(token.nonce)
        self.checked.append(nonce)
        self.next_s = now_s + self.quick_s
        return Check(nonce, self.port, token.token)

    def bind(self, bound: Bound, now_s: float, recheck_s: float) -> bool:
        """Whether it answers a check of ours."""
        if not self._awaits(bound):
            return False
        self.checked.clear()
        if self.bound is None:
            self.bound_s = now_s
        self.bound, self.phase, self.tries, self.failures = bound.endpoint, Phase.BOUND, 0, 0
        self.problem, self.next_s = "", now_s + min(recheck_s, self.lifetime_s / 3)
        return True

    def _awaits(self, answer: Token | Bound) -> bool:
        checking = self.phase is Phase.CHECKING and answer.port == self.port
        return checking and answer.nonce in self.checked
