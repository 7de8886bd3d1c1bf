"""What this node tells its controller of its ways to others. For one event loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from limpet.paths.report import NodeReport, PairReport, PathReport, difference

LOOK_EVERY_S = 60.0
"""How often things are looked at of which nobody is told, such as round trips."""
ALIVE_EVERY_S = 120.0
"""A report without news says that the node is there."""

Look = Callable[[Mapping[str, PairReport]], tuple[NodeReport, dict[str, PairReport]]]


class PathReports:
    """Makes reports of what is looked at: whole at first, then by difference."""

    def __init__(self, look: Look) -> None:
        """`look`: what there is to tell now, given the pairs that were told last."""
        self._look = look
        self._sequence = 0
        self._base: int | None = None
        self._told: dict[str, PairReport] = {}
        self._told_node: NodeReport | None = None
        self._sent: tuple[PathReport, dict[str, PairReport]] | None = None
        self._is_changed = True
        self._looked_s = self._told_s = -math.inf

    def begin(self) -> None:
        """The controller may know nothing of this node."""
        self._base, self._told, self._told_node = None, {}, None
        self._is_changed = True

    def changed(self) -> None:
        """A way to a peer is another, or a peer is silent, or there again."""
        self._is_changed = True

    def report(self) -> PathReport | None:
        """None: there is nothing to tell."""
        now_s = time.monotonic()
        if not self._is_changed and now_s < self._looked_s + LOOK_EVERY_S:
            return None
        self._is_changed, self._looked_s = False, now_s
        node, pairs = self._look(self._told)
        changed, gone = difference(self._told, pairs)
        is_news = changed or gone or node != self._told_node or self._base is None
        if not is_news and now_s < self._told_s + ALIVE_EVERY_S:
            return None
        self._sequence += 1
        report = PathReport(self._sequence, node, self._base, changed, gone)
        self._sent = (report, pairs)
        return report

    def acknowledged(self) -> None:
        """The controller has what `report` made last."""
        if self._sent is not None:
            report, self._told = self._sent
            self._base, self._told_node = report.sequence, report.node
            self._told_s, self._sent = time.monotonic(), None
