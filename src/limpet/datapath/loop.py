"""The loop that keeps the node as planned: it wakes the parts, gathers what they are told, runs
their rounds in order, tries again what failed, and keeps account of it.

A plan is made from the top down, since what lies above says what it needs of what lies below; the
kernel is changed from the bottom up, so that a route finds its device; and what is removed goes
from the top down again, after all that is added.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from limpet.base import faults
from limpet.base.errors import KernelError, LimpetError
from limpet.base.timer import Timer
from limpet.datapath.event import DamageSuspected, Tell, nobody
from limpet.datapath.notified import Notified
from limpet.datapath.part import Part

_log = structlog.get_logger("round")

_GATHER_S = 0.02
"""How long reasons and notifications are gathered: one round serves all of them. Parts that are
prompt gather behind a round only."""
_LONGEST_REST_S = 10.0
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
AnyPart = Part[Any, Any]


@dataclass(slots=True)
class Account:
    """What became of a part's rounds since the agent's start."""

    rounds: int = 0
    changes: int = 0
    failed: int = 0
    """A change that failed is counted in every round that tried it."""
    took_s: float = 0.0
    last_changes: int = 0
    last_took_ms: float = 0.0
    failures: list[str] = field(default_factory=list)
    """Failures of the last round."""
    retries: int = 0
    """Rounds in a row that failed."""
    ended_s: float = -math.inf
    """The last round, by time.monotonic."""

    def add(self, changes: int, failures: list[str], took_s: float) -> None:
        """One more round."""
        self.rounds += 1
        self.ended_s = time.monotonic()
        self.changes += changes
        self.failed += len(failures)
        self.took_s += took_s
        self.last_changes, self.last_took_ms, self.failures = changes, took_s * 1e3, failures
        self.retries = self.retries + 1 if failures else 0


@dataclass(slots=True)
class _Turn:
    """One part in one round."""

    part: AnyPart
    want: Any = None
    changes: Sequence[Any] = ()
    failures: list[str] = field(default_factory=list)
    broken: bool = False
    took_s: float = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Nothing that a part does keeps the others from their turn."""
        started_s = time.monotonic()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the next round may be better
            if not isinstance(error, LimpetError):
                faults.note(f"round of {self.part.name}", error)
            self.broken = True
            self.failures.append(round_failure(error))
            self.part.broke_off(error)
        self.took_s += time.monotonic() - started_s


def round_failure(error: Exception) -> str:
    """What a person is told of it."""
    if isinstance(error, LimpetError):
        return str(error)
    return f"internal error: {error!r} (see the agent's log)"


class Loop:
    """Runs on the event loop, in the network namespace of the thread that makes it."""

    def __init__(self, tell: Tell = nobody) -> None:
        """`tell`: of it, and of parts. Raises: KernelError."""
        self.tell = tell
        self.accounts: dict[str, Account] = {}
        """By the part's name."""
        self._parts: list[AnyPart] = []
        self._together: dict[AnyPart, Sequence[AnyPart]] = {}
        self._due_s: dict[AnyPart, float] = {}
        self._whys: dict[AnyPart, list[str]] = {}
        self._running: set[AnyPart] = set()
        self._unknown: set[AnyPart] = set()
        """Parts that could not find out whether they are damaged when they were asked last."""
        self._timer = Timer("rounds", self._ring)
        self._notified = Notified(self._gathered)
        self._is_closed = False

    def add(self, *parts: AnyPart) -> None:
        """From the bottom up. Those that are added at once have their rounds together, since their
        plans are made of the same."""
        for part in parts:
            self._parts.append(part)
            self._together[part] = parts
            self._whys[part] = []
            self.accounts[part.name] = Account()
            self._notified.route.join(part.groups)

    def account(self, part: AnyPart) -> Account:
        return self.accounts[part.name]

    def start(self) -> None:
        """Hears notifications from now on."""
        self._notified.listen()

    def close(self) -> None:
        """There are no rounds any more, whoever asks for one."""
        self._is_closed = True
        self._timer.stop()
        self._notified.close()

    # What wakes it

    def wake(self, part: AnyPart, why: str, *, goes_on: bool = False, after_s: float = 0.0) -> None:
        """A round of the part soon. `goes_on`: with what the last one has left, so it needs no
        rest. `after_s`: so much later, if nothing else wakes it before."""
        if self._is_closed:
            return
        self._whys[part].append(why)
        delay_s = _GATHER_S
        account, now_s = self.account(part), time.monotonic()
        if part.prompt:
            delay_s = max(account.ended_s + _GATHER_S - now_s, 0.0)
        rests = 0 if goes_on else part.rests
        rest_s = min(rests * account.last_took_ms / 1e3, _LONGEST_REST_S)
        self._set(part, max(delay_s, after_s, account.ended_s + rest_s - now_s))

    def resync(self, why: str) -> None:
        """A round of all parts now that takes nothing for granted."""
        for _ in self.resync_by_turns(why):
            pass

    def resync_by_turns(self, why: str) -> Iterator[None]:
        """The same; whoever goes on with it lets others have their turn between: with thousands of
        nodes or Services a part takes as long as a neighbour waits before it takes this node for
        silent."""
        for part in self._parts:
            part.resync()
        self._drain(heard=True)
        for part in dict.fromkeys(self._together[part][0] for part in self._parts):
            self.run(why, part)
            yield
        self.tell(DamageSuspected())

    def _set(self, part: AnyPart, delay_s: float) -> None:
        """No later than said."""
        due_s = time.monotonic() + delay_s
        if due_s < self._due_s.get(part, due_s + 1):
            self._due_s[part] = due_s
            self._timer.set(min(self._due_s.values()))

    def _ring(self) -> None:
        now_s = time.monotonic()
        due = [part for part, due_s in self._due_s.items() if due_s <= now_s + 0.001]
        if due:
            self.run("", *due)
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._due_s:
            self._timer.set(min(self._due_s.values()))
        elif self._timer.is_set:
            self._timer.stop()

    # Notifications

    def _gathered(self) -> None:
        self._drain()
        why = self._notified.why_nftables()
        if why:
            for part in self._parts:
                if part.nftables:
                    part.suspect_nftables()
                    self._whys[part].append(why)
                    self._due_s[part] = 0.0
            self.tell(DamageSuspected())
        self._ring()

    def _drain(self, *, heard: bool = False) -> None:
        """Hands what was notified to the parts; who is damaged is due at once.

        `heard`: there may be damage whatever was notified.
        """
        try:
            for message in self._notified.route.drain():
                heard = True
                for part in self._parts:
                    if message is None:
                        part.resync()
                        self.damaged(part, "notifications were lost")
                    elif part.groups:
                        part.hear(message)
        except KernelError as error:
            self._unheard(self._parts, error)
        for part in self._parts if heard else [*self._unknown]:
            was_unknown = part in self._unknown
            self._unknown.discard(part)
            try:
                if why := part.damage():
                    self.damaged(part, why)
            except LimpetError as error:
                self._unknown.add(part)
                if was_unknown:
                    self._set(part, _RETRY_S[0])
                else:
                    self._unheard([part], error)

    def _unheard(self, parts: Sequence[AnyPart], error: LimpetError) -> None:
        _log.warning("notifications cannot be read", error=str(error))
        for part in parts:
            part.resync()
            self.wake(part, "notifications could not be read")

    def damaged(self, part: AnyPart, why: str) -> None:
        """It is not as planned: its round is due at once."""
        if why not in self._whys[part]:
            self._whys[part].append(why)
        self._due_s[part] = 0.0

    # Rounds

    def run(self, why: str, *parts: AnyPart) -> None:
        """A round of these parts now; raises nothing. A part that has its turn just now gets
        another one soon."""
        if self._is_closed:
            return
        self._drain()
        wanted = {each for part in parts for each in self._together[part]}
        turns = [_Turn(part) for part in self._parts if part in wanted - self._running]
        for part in wanted & self._running:
            self.wake(part, why)
        whys = [why] if why else []
        for turn in turns:
            whys += self._whys[turn.part]
            self._whys[turn.part] = []
            self._due_s.pop(turn.part, None)
        self._running |= {turn.part for turn in turns}
        try:
            self._round(turns)
        finally:
            self._running -= {turn.part for turn in turns}
        if turns:
            self._settle(turns, ", ".join(dict.fromkeys(whys)))
        self._set_timer()

    def _round(self, turns: Sequence[_Turn]) -> None:
        for turn in reversed(turns):
            with turn.step():
                turn.want = turn.part.plan()
        for turn in turns:
            if not turn.broken:
                with turn.step():
                    part = turn.part
                    turn.changes = part.diff(turn.want, part.state(turn.want))
                    self._apply(turn, [c for c in turn.changes if not part.removes(c)])
        for turn in reversed(turns):
            removals = [c for c in turn.changes if turn.part.removes(c)]
            if removals and not turn.broken:
                with turn.step():
                    self._apply(turn, removals)

    @staticmethod
    def _apply(turn: _Turn, changes: Sequence[Any]) -> None:
        turn.failures += turn.part.apply(changes)

    def _settle(self, turns: Sequence[_Turn], why: str) -> None:
        for turn in turns:
            account = self.account(turn.part)
            account.add(len(turn.changes), turn.failures, turn.took_s)
            if turn.failures:
                self.damaged(turn.part, "some changes had failed")
                delay_s = _RETRY_S[min(account.retries, len(_RETRY_S)) - 1]
                self._due_s[turn.part] = time.monotonic() + delay_s
        changes = sum(len(turn.changes) for turn in turns)
        failures = [failure for turn in turns for failure in turn.failures]
        took_ms = sum(turn.took_s for turn in turns) * 1e3
        fields = {
            "parts": ",".join(turn.part.name for turn in turns),
            "changes": changes,
            "failed": len(failures),
            "why": why,
            "took_ms": f"{took_ms:.1f}",
        }
        if failures:
            _log.warning("round", **fields, error=failures[0])
        elif changes:
            _log.info("round", **fields)
        else:
            _log.debug("round", **fields)
