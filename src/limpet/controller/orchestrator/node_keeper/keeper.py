"""Keeps nodes as their Nodes in Kubernetes are. Of the controller that leads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import structlog

from limpet.base import faults
from limpet.base.errors import LimpetError
from limpet.cluster.kinds.grant import Grant
from limpet.controller.orchestrator.node_keeper.grace_clock import GraceClock
from limpet.controller.orchestrator.node_keeper.lifecycle import MOST_AT_ONCE, is_gone, settle_fates
from limpet.controller.orchestrator.node_keeper.pod_cidrs import offer
from limpet.controller.orchestrator.node_keeper.segments import hold_cidr
from limpet.controller.orchestrator.nodes import Nodes
from limpet.controller.registry.tables import Tables
from limpet.controller.state import happenings
from limpet.controller.state.cluster import Cluster
from limpet.controller.state.grants import add_segments
from limpet.controller.state.happenings import Happening

_log = structlog.get_logger("nodes")
_LOOK_S = 10.0
"""Between two looks where nothing is told: what rested may be free by now."""


@dataclass(slots=True)
class Settled:
    """What became of podCIDRs."""

    granted: list[tuple[Grant, Grant]] = field(default_factory=list)
    """Grants before and after."""
    is_cut: bool = False
    """There are more to grant."""
    problems: dict[str, str] = field(default_factory=dict)
    """Why a node has not what its Node has, in words, by name."""


def settle_cidrs(tables: Tables, now_s: float) -> Settled:
    """Gives each node the podCIDRs of its Node that it may have."""
    settled = Settled()
    for name in tables.source.nodes.objects:
        for uid in tables.uids_of(name):
            if tables.grants[uid].is_flannel:
                continue
            found = offer(tables, name, uid, now_s)
            if found.problems:
                settled.problems[name] = "; ".join(found.problems)
            # After a restore the controller must see the grant that the node has first.
            if found.prefixes and tables.nodes[uid].reported_epoch >= tables.state.epoch:
                if len(settled.granted) == MOST_AT_ONCE:
                    settled.is_cut = True
                    continue
                before = tables.grants[uid]
                taken = [hold_cidr(tables, prefix, uid) for prefix in found.prefixes]
                add_segments(tables, before, taken)
                settled.granted.append((before, tables.grants[uid]))
    return settled


class NodeKeeper:
    """The process around it."""

    def __init__(
        self, nodes: Nodes, cluster: Cluster, tell: Callable[[Happening], None], grace_s: float
    ) -> None:
        """`tell`: told what a person should hear of a node. `grace_s`: how long a node stays whose
        Node was deleted."""
        self._nodes = nodes
        self._grace_s = grace_s
        self._clock = GraceClock()
        self._cluster = cluster
        self._tell = tell
        self._told: dict[str, str] = {}
        """Problems, by the node's name."""
        self._said = ""

    @property
    def cidr_problems(self) -> Mapping[str, str]:
        """Why a node has not the podCIDRs of its Node, in words, by its name."""
        return self._told

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            changed, wait_s = self._nodes.changed, _LOOK_S
            try:
                wait_s = min(await self._settle_fates(), await self._settle_cidrs())
                self._said = ""
            except LimpetError as error:
                if str(error) != self._said:
                    _log.warning("nodes are not as their Nodes are", error=str(error))
                self._said = str(error)
            except Exception as error:  # noqa: BLE001 - the next time may be better
                faults.note("keeping nodes as their Nodes are", error)
            await asyncio.wait((changed,), timeout=wait_s)

    async def _settle_fates(self) -> float:
        """How long until there is more to do."""
        clock = self._clock
        clock.look()
        fates = await self._cluster.change(
            lambda tables: settle_fates(
                tables,
                self._nodes.deleted,
                grace_s=self._grace_s,
                led_since_s=clock.led_since_s,
                now_s=clock.now_s,
                set_at_s=clock.set_at_s,
            )
        )
        for grant, at_s in fates.gone:
            moment = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            _log.warning("a Node was deleted", node=grant.name, uid=grant.uid, removed_at=moment)
            self._tell(happenings.node_deleted(grant, moment))
        for grant in fates.back:
            _log.info("a Node is there again", node=grant.name, uid=grant.uid)
            self._tell(happenings.node_back(grant))
        for grant in fates.due:
            # Its Node may have come back while another was removed.
            if await self._cluster.remove(grant.uid, partial(is_gone, uid=grant.uid)):
                _log.warning("its Node was deleted, and did not come back", node=grant.name)
        if fates.next_at_s is None:
            return _LOOK_S
        return min(_LOOK_S, max(0.0, fates.next_at_s - clock.now_s))

    async def _settle_cidrs(self) -> float:
        """How long until there is more to do."""
        settled = await self._cluster.change(lambda tables: settle_cidrs(tables, time.time()))
        for before, grant in settled.granted:
            _log.info("granted podCIDRs", node=grant.name, uid=grant.uid)
            if happening := happenings.segments_granted(before, grant):
                self._tell(happening)
        for name, problem in settled.problems.items():
            if self._told.get(name) != problem:
                _log.warning("podCIDRs not granted", node=name, why=problem)
                self._tell(happenings.cidrs_refused(name, problem))
        self._told = settled.problems
        return 0.0 if settled.is_cut else _LOOK_S
