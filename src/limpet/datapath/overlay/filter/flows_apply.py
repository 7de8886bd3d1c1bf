"""Forgetting the flows by which pods would go on sending where they may not send any more."""

from __future__ import annotations

import time
from collections.abc import Collection

import structlog

from limpet.base.addresses import Endpoint
from limpet.base.errors import KernelError
from limpet.base.timer import AGAIN_S, Timer
from limpet.linux.conntrack import forget_udp_of_others
from limpet.linux.netlink.socket import RouteSocket

_log = structlog.get_logger("overlay")
_RESTS = 50
"""So many times as long as one look at the node's flows took, until the next: the kernel walks
through all places of its table, 13 ms where 262,144 are empty, and peers' endpoints may change all
the time."""


class EarlyFlows:
    """For one event loop, in the network namespace of its thread.

    The filter sees the first packet of a flow: one that a pod began before somebody was a peer
    there, to all addresses of a LAN say, would go on for as long as the pod sends.
    """

    def __init__(self) -> None:
        self._ends: set[Endpoint] = set()
        self._timer = Timer("overlay", self._forget)
        self._rests_until_s = 0.0

    def forget(self, ends: Collection[Endpoint]) -> None:
        """Soon, those that others than the node itself have begun to these; the filter has them."""
        self._ends.update(ends)
        if self._ends and not self._timer.is_set:
            self._timer.set(self._rests_until_s)

    @property
    def is_done(self) -> bool:
        return not self._ends

    def close(self) -> None:
        """What is left is the next agent's, to whom all ends are new."""
        self._timer.stop()

    def _forget(self) -> None:
        began_s = time.monotonic()
        try:
            with RouteSocket() as route:
                own = {each.packed for each in route.addresses()}
            forgotten = forget_udp_of_others(self._ends, own)
        except KernelError as error:
            _log.warning(
                "what pods began to send to nodes before they were there may go on",
                error=str(error),
                again_in_s=AGAIN_S,
            )
            self._timer.set_in(AGAIN_S)
            return
        self._ends.clear()
        if forgotten:
            _log.warning("flows of pods to what is a node's now were ended", count=forgotten)
        now_s = time.monotonic()
        self._rests_until_s = now_s + _RESTS * (now_s - began_s)
