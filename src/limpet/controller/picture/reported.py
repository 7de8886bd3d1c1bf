"""How nodes reach each other, as they report it: in memory alone, and told anew after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from limpet.cluster.api import Code
from limpet.controller.registry.refusal import RefusedError
from limpet.paths.report import NodeReport, PairReport, PathReport, merged, report_problem


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Paths that one node has reported."""

    sequence: int
    at_s: float
    node: NodeReport
    pairs: Mapping[str, PairReport]
    """By the uid of the other node."""


class ReportedPaths:
    """For one event loop."""

    def __init__(self) -> None:
        self._known: dict[str, NodePaths] = {}
        self._changed = asyncio.Event()
        self.watching: set[str] = set()
        """Nodes that are connected, and hear of others."""

    @property
    def known(self) -> Mapping[str, NodePaths]:
        """By uid."""
        return self._known

    @property
    def changed(self) -> asyncio.Event:
        """Set with the next report that tells something; another one each time."""
        return self._changed

    def put(self, uid: str, report: PathReport, now_s: float) -> int:
        """The sequence that counts now. Raises: RefusedError."""
        if problem := report_problem(report):
            raise RefusedError(Code.BAD_REQUEST, f"take a report of paths: {problem}")
        before = self._known.get(uid)
        if report.base is not None and (before is None or before.sequence != report.base):
            raise RefusedError(
                Code.STALE,
                f"take a report of paths: it says what has changed since {report.base}, and "
                f"{'none' if before is None else before.sequence} is known (tell all)",
            )
        try:
            pairs = merged(before.pairs if before is not None else {}, report)
        except ValueError as error:
            raise RefusedError(Code.BAD_REQUEST, f"take a report of paths: {error}") from error
        self._known[uid] = NodePaths(report.sequence, now_s, report.node, pairs)
        if before is None or report.pairs or report.gone or report.node != before.node:
            self.stir()
        return report.sequence

    def drop(self, uid: str) -> None:
        """The node is none any more."""
        if self._known.pop(uid, None) is not None:
            self.stir()

    def watches(self, uid: str, *, begun: bool) -> None:
        """The node hears of others, or does not any more."""
        (self.watching.add if begun else self.watching.discard)(uid)
        self.stir()

    def stir(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
