"""The node's conversation with its controller, as long as it lasts, again and again.

It ends often: an uplink flaps, the cloud is away for months. Nothing that was heard is forgotten
then, and what there is to tell is told when the controller is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.base.http.connection import LinkError
from limpet.cloud.link import ControllerLink, ControllerRefusedError
from limpet.cloud.publisher import Publisher, Reports
from limpet.cloud.requests import PATIENCE, Requests
from limpet.cluster.api import Code, HelloAnswer, Refused, WatchKind, WatchLine
from limpet.cluster.documents import Sealed, Source
from limpet.cluster.kinds import KINDS
from limpet.cluster.membership import Membership, News
from limpet.cluster.replica import Outcome
from limpet.cluster.seal import is_of_a_later_key

_log = structlog.get_logger("session")

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_REMOVED_PAUSE_S = 600.0
"""A node that was removed asks so seldom whether it was: who stole the cluster's key can say so of
any, until the key is rotated."""
_STABLE_S = 30.0
"""A session that lasted so long is no failure when it ends."""
_BATCH = 256
"""Documents checked at once, at some 0.1 ms each: the loop serves pods as well."""


@dataclass(frozen=True, slots=True)
class SessionState:
    """How the conversation with the controller stands, for a person."""

    controller: str
    """Address of the controller that was asked last."""
    connected: bool
    since_s: float
    """When `connected` changed last, on the monotonic clock."""
    error: str
    """Why it is not connected; empty: it is, or has not tried yet."""
    refused: str
    """What the controller does not take now, in its words."""
    over: bool
    """The node was removed: it asks only now and then whether that is still so."""
    segment_refused: str = ""
    """Why the controller gives no further segment now, in its words."""
    told: tuple[str, ...] = ()
    """What the controller says of this node, for people here."""


class Session:
    """Runs on the event loop, a task of its own; what fails is told in `state` and tried again."""

    def __init__(
        self,
        membership: Membership,
        link: ControllerLink,
        *,
        reports: Reports,
        segment_demand: Callable[[], tuple[int, ...]],
        random: Callable[[], float],
        elsewhere: Collection[str] = (),
        untold: Collection[str] = (),
    ) -> None:
        """`segment_demand`: IP versions of which the node needs one more segment.

        `random`: from 0 to below 1; spreads the nodes that come back all at once. `elsewhere`:
        kinds of documents that are published by another road; then all are heard by that too, but
        for the kinds in `untold`.
        """
        self._membership = membership
        self._link = link
        self._random = random
        self._untold = untold
        self._requests = Requests(membership, link, on_hello=self._greeted)
        self._publisher = Publisher(
            membership,
            self._requests,
            reports=reports,
            segment_demand=segment_demand,
            random=random,
            elsewhere=elsewhere,
        )
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._caught_up = False
        self._since: str | None = None
        """To watch from: what came before is in the snapshot."""
        self._early: set[str] = set()
        """Kinds of what this watch has told that a key has signed which is not known here yet."""
        self._state = SessionState("", False, time.monotonic(), error="", refused="", over=False)
        """Without what others know."""

    def start(self) -> None:
        self._task = asyncio.create_task(self.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def wake(self) -> None:
        """There may be something to tell, or to ask for."""
        self._publisher.wake()

    def pods_changed(self) -> None:
        """An address was given, came free, or is kept for nobody any more."""
        self._publisher.reports.pods.changed()
        self._publisher.wake()

    def paths_changed(self, *, soon: bool = True) -> None:
        """A way to a peer is another, or a peer is silent, or there again; not `soon`: that may be,
        since documents are others."""
        self._publisher.reports.paths.changed(soon=soon)
        self._publisher.wake()

    def network_changed(self) -> None:
        """Connects anew at once: old connections may be dead, or a way may be there now."""
        self._moved.set()

    def hear_controllers(self, addresses: tuple[str, ...]) -> None:
        """Where the controllers are now, as the cluster's API server says."""
        try:
            if not self._link.follow(addresses):
                return
        except LimpetError as error:
            _log.warning("where the controllers are is not kept", error=str(error))
        _log.info("the controllers are elsewhere", addresses=",".join(addresses))
        if not self._state.connected:
            self.network_changed()

    def use_controllers(self, addresses: tuple[str, ...]) -> None:
        """Asks these from now on, as a person has said, and connects anew where that is another."""
        is_another = self._link.use(addresses)
        _log.info("the controllers are elsewhere", addresses=",".join(addresses))
        if is_another or not self._state.connected:
            self.network_changed()

    @property
    def state(self) -> SessionState:
        return replace(
            self._state,
            controller=self._link.controller,
            refused=self._publisher.not_taken,
            segment_refused=self._publisher.no_segment,
            over=self._membership.removed,
        )

    def hear(self, news: News) -> None:
        if self._membership.uid in news.uids:
            self._publisher.wake()

    def _greeted(self, answer: HelloAnswer) -> None:
        self._publisher.begin(answer)
        if not self._state.connected:
            self._turn(connected=True, error="")
            _log.info("connected to the controller", controller=self._link.controller)

    def _turn(self, *, connected: bool, **changes: Any) -> None:
        now_s = time.monotonic()
        self._state = replace(self._state, connected=connected, since_s=now_s, **changes)

    # One connection after the other

    async def run(self) -> None:
        """Until it is cancelled. Raises nothing."""
        failures = 0
        while True:
            self._moved.clear()
            was_removed = self._membership.removed
            began_s = time.monotonic()
            error = await self._attempt()
            self._publisher.end()
            failures = 0 if time.monotonic() - began_s > _STABLE_S else failures + 1
            if self._state.connected:
                self._turn(connected=False)
            else:
                self._link.turn()
            if not self._membership.removed:
                self._note(error)
            elif not was_removed:
                _log.error(
                    "this node was removed from the cluster: it asks only now and then whether "
                    "that is still so",
                    uid=self._membership.uid,
                    what_to_do="if it should be there: `limpet join --new-identity` with a new "
                    "token",
                )
            await self._pause(failures)

    async def _attempt(self) -> str:
        """Talks for as long as it goes; why it ended, in words."""
        try:
            await _first_of(self._talk(), self._moved.wait())
        except LimpetError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - the agent goes on, whatever was said
            faults.note("session with the controller", error)
            return f"{type(error).__name__}: {error}"
        finally:
            self._link.close()
        return "the links of this node changed"

    def _note(self, error: str) -> None:
        if error != self._state.error:
            _log.warning("not connected to the controller", error=error)
        self._state = replace(self._state, error=error)

    async def _pause(self, failures: int) -> None:
        """The longer the more often it failed; none where the links of this node changed."""
        rounds, asked = divmod(failures, self._link.controllers)
        longest_s = min(_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2 ** min(rounds + 1, 10))
        pause_s = _SHORTEST_PAUSE_S + self._random() * (longest_s - _SHORTEST_PAUSE_S)
        if self._membership.removed and asked == 0:  # each controller was
            pause_s = _REMOVED_PAUSE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._moved.wait()

    async def _talk(self) -> None:
        """Returns when the node was removed. Raises: LimpetError."""
        if self._membership.grant is None:
            await self._learn_own()
        await self._requests.say_hello()
        if self._publisher.elsewhere:
            if not self._membership.replica.has_heard_all:
                await self._learn_all()  # not all kinds are told by the other road
            if not self._untold:
                await self._publisher.run()
                return
        await _first_of(self._follow(), self._publisher.run())

    # Hearing

    async def _follow(self) -> None:
        """Raises: RefusedError, LinkError, at the latest when the watch ends."""
        for _ in range(PATIENCE):
            try:
                while await self._watch():
                    pass
            except ControllerRefusedError as error:
                if error.refused.code is Code.TOO_OLD and self._since is not None:
                    self._since = None
                else:
                    await self._requests.satisfy(error)
            else:
                break
        raise LinkError(f"watch the controller at {self._link.controller}: it ended the watch")

    async def _watch(self) -> bool:
        """Whether it is to be begun again: the key has come that has signed what was told early."""
        self._begin_watch()
        era = self._membership.era
        revision = self._membership.replica.known.revision
        self._state = replace(self._state, told=())
        lines_of = self._link.watch(self._since, revision=revision, kinds=self._untold)
        async with aclosing(lines_of) as watch:
            async for lines in watch:
                await self._take(lines)
                if self._early and self._membership.era > era:
                    return True
        return False

    def _begin_watch(self) -> None:
        self._caught_up = False
        self._early.clear()

    async def _learn_own(self) -> None:
        """What the node's disk has lost of the node itself, the cluster knows; and whether it was
        removed. The tombstone is shown to nobody: it may be a thief's."""
        self._begin_watch()
        async with aclosing(self._link.watch(None, revision=0)) as watch:
            async for lines in watch:
                await self._take(lines)
                if self._membership.grant is not None:
                    return
                if self._caught_up:
                    break
        if self._membership.removed:
            raise LinkError("this node was removed from the cluster")
        raise LinkError(
            f"watch the controller at {self._link.controller}: it knows no grant of this node, "
            "and this node has lost its own (`limpet join --new-identity` with a new token)"
        )

    async def _learn_all(self) -> None:
        """Raises: RefusedError, LinkError."""
        self._begin_watch()
        async with aclosing(self._link.watch(None, revision=0)) as watch:
            async for lines in watch:
                await self._take(lines)
                if self._caught_up:
                    return
        raise LinkError(f"watch the controller at {self._link.controller}: it ended the watch")

    async def _take(self, lines: list[WatchLine]) -> None:
        """What is not told stays as it is: a watch that tells nothing takes nobody away.

        A controller may tell what the next key of the cluster has signed before the network that
        names it: whoever goes on behind that is never told it again.
        """
        refused: Refused | None = None
        documents: list[Sealed] = []
        for line in lines:
            if line.kind is WatchKind.DOCUMENT and line.document is not None:
                documents.append(line.document)
            elif line.kind is WatchKind.REFUSED:
                refused = line.refused
            if line.told is not None:
                self._state = replace(self._state, told=line.told)
        for start in range(0, len(documents), _BATCH):
            batch = documents[start : start + _BATCH]
            outcomes = self._membership.offer(batch, source=Source.CLOUD)
            bad = (
                at for at, outcome in zip(batch, outcomes, strict=True) if outcome is Outcome.BAD
            )
            self._early |= {each.kind for each in bad if self._is_early(each)}
            await asyncio.sleep(0)
        for line in lines:
            if not self._early:
                self._since = line.version or self._since
            self._caught_up = self._caught_up or line.kind is WatchKind.BOOKMARK
        if self._caught_up and not any(KINDS[kind].kept_twice for kind in self._early):
            await self._membership.replica.hear_all()
        if refused is not None:
            raise ControllerRefusedError(refused)

    def _is_early(self, sealed: Sealed) -> bool:
        """Nodes can write what stands under a grant where the feed is of Kubernetes, so that holds
        up nothing; nor does a network, which is checked with the row of keys that it goes on."""
        kind = KINDS.get(sealed.kind)
        if kind is None or kind.root or kind.under:
            return False
        return is_of_a_later_key(sealed, KINDS, self._membership.era)


async def _first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Returns when one of them has returned, and ends the others. Raises what it raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
