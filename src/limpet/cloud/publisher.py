"""What a node tells its controller, and asks it for: presence, segments, pods."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

import structlog

from limpet.cloud.link import ControllerRefusedError
from limpet.cloud.path_reports import PathReports
from limpet.cloud.pod_reports import PodReports
from limpet.cloud.requests import Requests
from limpet.cluster.api import (
    Code,
    HelloAnswer,
    PodAnswer,
    PodReport,
    PublishAnswer,
    PublishRequest,
    Refused,
    SegmentAnswer,
    SegmentRequest,
)
from limpet.cluster.documents import Key, Sealed, Source
from limpet.cluster.kinds import KINDS
from limpet.cluster.membership import Membership
from limpet.paths.report import PathReportAnswer

_log = structlog.get_logger("session")

_LOOK_AGAIN_S = 60.0
"""Until something refused is asked again, and until the next look without a wake-up."""
_SHORTEST_S = 0.1
"""Until what was refused is asked again, whatever the controller says."""
_LEFT_S = 15.0
"""For the cluster to sign anew what a former key has signed, until that is shown it."""
_REPORT_EVERY_S = 1.0
_MOST_REPORTS = 32
"""One after the other, where one cannot hold all."""
_PATHS = "/v1/paths"
_SEGMENTS = "/v1/segments"
_ENDS = frozenset({Code.REMOVED, Code.UNKNOWN_NODE, Code.NO_CERTIFICATE})
"""Refusals that end the session: nothing further would be answered."""


class Reports(NamedTuple):
    """What the controller is told beside documents."""

    pods: PodReports
    paths: PathReports


class Publisher:
    """Goes on where it was when the controller is back. For one event loop."""

    def __init__(
        self,
        membership: Membership,
        requests: Requests,
        *,
        reports: Reports,
        segment_demand: Callable[[], tuple[int, ...]],
        random: Callable[[], float],
        elsewhere: Collection[str] = (),
    ) -> None:
        """`elsewhere`: kinds of documents that are published by another road."""
        self._membership = membership
        self._requests = requests
        self.reports = reports
        self._segment_demand = segment_demand
        self._random = random
        self.elsewhere = elsewhere
        self._wake = asyncio.Event()
        self._shown: dict[Key, Sealed] = {}
        """What this node has signed, as the controller has it."""
        self._left: set[Sealed] = set()
        """What a former key of the cluster has signed and counts here, at the last look."""
        self._base: int | None = None
        """The controller's last report of ours."""
        self._not_before_s: dict[str, float] = {}
        """Earliest time of the next request by its path, on the loop's clock."""
        self._refused: dict[str, str] = {}
        """What the controller does not take or give now, by path of the request, with its words."""

    @property
    def not_taken(self) -> str:
        """What the controller does not take now, in its words."""
        return "; ".join(why for path, why in self._refused.items() if path != _SEGMENTS)

    @property
    def no_segment(self) -> str:
        """Why the controller gives no further segment now, in its words."""
        return self._refused.get(_SEGMENTS, "")

    def wake(self) -> None:
        """There may be something to tell, or to ask for."""
        self._wake.set()

    def begin(self, hello: HelloAnswer) -> None:
        """What the controller has of this node."""
        self._shown.clear()
        self.reports.paths.begin()
        self._base = hello.pods_sequence if hello.pods_sequence >= 0 else None
        self._not_before_s.clear()
        last = self._membership.presence
        known = hello.versions.get(self._membership.introduction[0], -1)
        if last is not None and known > last.sequence:
            self._membership.jump_above(known)
        self._wake.set()

    def end(self) -> None:
        """The controller is away: what it has refused, it may take when it is back."""
        self._refused.clear()

    async def run(self) -> None:
        """Until the node is removed. Raises: RefusedError, LinkError."""
        loop = asyncio.get_running_loop()
        while not self._membership.removed:
            self._wake.clear()
            due_s = [
                await self._step("/v1/documents", self._publish),
                await self._step(_SEGMENTS, self._ask_for_segments),
                await self._step("/v1/pods", self._report_pods),
                await self._step("/v1/show", self._show_left),
                await self._step(_PATHS, self._report_paths),
            ]
            paths_s = max(self.reports.paths.due_s, self._not_before_s.get(_PATHS, 0.0))
            until_s = min(loop.time() + _LOOK_AGAIN_S, paths_s, *due_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._wake.wait()

    async def _step(self, path: str, step: Callable[[str], Awaitable[float]]) -> float:
        """When to do it again at the latest. What is refused holds up nothing else."""
        loop = asyncio.get_running_loop()
        not_before_s = self._not_before_s.get(path, 0.0)
        if loop.time() < not_before_s:
            return not_before_s
        try:
            self._not_before_s[path] = loop.time() + await step(path)
            self._refused.pop(path, None)
        except ControllerRefusedError as error:
            if error.refused.code in _ENDS:
                raise
            if self._refused.get(path) != str(error):
                _log.warning("refused by the controller", path=path, error=str(error))
            self._refused[path] = str(error)
            again_s = loop.time() + self._pause_s(error.refused)
            self._not_before_s[path] = again_s
            return again_s
        return math.inf

    def _pause_s(self, refused: Refused) -> float:
        """What is told then is what is newest then."""
        if refused.after_s is None:
            return _LOOK_AGAIN_S / 2 * (1 + self._random())
        return min(max(refused.after_s, _SHORTEST_S), _LOOK_AGAIN_S) * (1 + self._random() / 4)

    # Each returns how many seconds to leave it alone

    async def _publish(self, path: str) -> float:
        membership = self._membership
        for document in membership.replica.known.under(membership.uid):
            if document.sealed == self._shown.get(document.key) or membership.cloned:
                continue
            if document.kind in self.elsewhere or KINDS[document.kind].among_nodes:
                continue
            request = PublishRequest(document.sealed)
            try:
                await self._requests.ask("PUT", path, request, PublishAnswer)
            except ControllerRefusedError as error:
                if error.refused.code is Code.CLONED:
                    membership.declare_cloned()
                    break
                if error.refused.code is not Code.STALE or error.refused.version is None:
                    raise
                if document.key == membership.introduction:
                    membership.jump_above(error.refused.version)
                    break
            self._shown[document.key] = document.sealed
        return 0.0

    async def _ask_for_segments(self, path: str) -> float:
        while True:
            grant, versions = self._membership.grant, self._segment_demand()
            if grant is None or not versions:
                return 0.0
            request = SegmentRequest(grant.generation, versions)
            answer = await self._requests.ask("POST", path, request, SegmentAnswer)
            self._membership.offer([answer.document], source=Source.CLOUD)
            now = self._membership.grant
            if now is None or now.generation <= grant.generation:
                return _LOOK_AGAIN_S

    async def _show_left(self, path: str) -> float:
        """What a former key has signed and the cluster has not signed anew a while later: where it
        never did, whoever stole the key made it, and the controller withdraws it for all."""
        left = {each.sealed for each in self._membership.signed_by_former_keys()}
        if stays := left & self._left:
            taken = await self._requests.show(sorted(stays, key=lambda each: each.signature))
            _log.warning("showed what a former key has signed", shown=len(stays), withdrawn=taken)
        self._left = left
        if left:
            # Once, and to be woken for nothing does no harm.
            asyncio.get_running_loop().call_later(_LEFT_S, self._wake.set)
        return _LEFT_S

    async def _report_pods(self, path: str) -> float:
        for _ in range(_MOST_REPORTS):
            report = self.reports.pods.report(self._base)
            if report is None:
                break
            await self._report(path, report)
        return _REPORT_EVERY_S

    async def _report_paths(self, path: str) -> float:
        paths = self.reports.paths
        if asyncio.get_running_loop().time() < paths.due_s:
            return 0.0
        report = paths.report()
        if report is None:
            return paths.pause_s()
        try:
            await self._requests.ask("POST", path, report, PathReportAnswer)
        except ControllerRefusedError as error:
            if error.refused.code is Code.NOT_FOUND:  # a controller of an earlier version
                return _LOOK_AGAIN_S
            if error.refused.code is not Code.STALE:
                paths.changed()  # to be told again, as it is then
                raise
            paths.begin()
        else:
            paths.acknowledged()
        return paths.pause_s() * (1 + self._random() / 2)

    async def _report(self, path: str, report: PodReport) -> None:
        try:
            answer = await self._requests.ask("POST", path, report, PodAnswer)
        except ControllerRefusedError as error:
            if error.refused.code is not Code.STALE:
                raise
            self._base = None
        else:
            self.reports.pods.acknowledged(answer.sequence)
            self._base = answer.sequence
