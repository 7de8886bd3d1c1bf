"""What whoever looks at the network asks a node for: its picture, one pair of it, what happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limpet.agent.happenings.of_node import NodeHappenings
from limpet.agent.policies.slot import PolicySlot
from limpet.agent.status.paths import Watched
from limpet.base.errors import LimpetError
from limpet.cni.ledgers import Ledgers
from limpet.picture.timeline import Timeline
from limpet.timeline.answer import asked_of

if TYPE_CHECKING:  # in memory only where somebody looks
    from limpet.agent.answers.cluster import ClusterAdmin
    from limpet.agent.answers.picture.making import PictureAnswers
    from limpet.agent.wiring import ClusterSide
    from limpet.picture.pair import PairDetail
    from limpet.picture.picture import Picture, Unchanged

Arguments = dict[str, Any]


class Looks:
    """The verbs."""

    def __init__(
        self,
        ledgers: Ledgers,
        cluster: tuple[ClusterSide, ClusterAdmin] | None,
        policies: PolicySlot,
        happenings: NodeHappenings,
    ) -> None:
        """`cluster`: None where the node has joined none."""
        self._ledgers = ledgers
        self._cluster = cluster
        self._policies = policies
        self._happenings = happenings
        self._made: PictureAnswers | None = None
        self.verbs: dict[str, Callable[[Arguments], Awaitable[Struct]]] = {
            "picture": self._picture,
            "pair": self._pair,
            "events": self._events,
            "watch": self._watch,
        }

    async def _picture(self, arguments: Arguments) -> Picture | Unchanged:
        return await self._pictures("picture").picture(arguments)

    async def _pair(self, arguments: Arguments) -> PairDetail:
        return self._pictures("pair").pair(arguments)

    async def _events(self, arguments: Arguments) -> Timeline:
        return await self._happenings.recorder.answer(asked_of(arguments))

    async def _watch(self, arguments: Arguments) -> Watched:
        """`for_s`: how long somebody looks; `nodes`: uids of those that come before others."""
        cluster, _ = self._joined("watch")
        for_s, nodes = arguments.get("for_s", 0), arguments.get("nodes", [])
        if not isinstance(for_s, int | float) or not isinstance(nodes, list):
            raise LimpetError("watch: for_s has to be a number, and nodes a list of uids")
        watched, peers = cluster.watched.watch(map(str, nodes), for_s)
        return Watched(watched=watched, peers=peers)

    def _joined(self, verb: str) -> tuple[ClusterSide, ClusterAdmin]:
        """Raises: LimpetError where the node has joined no cluster."""
        if self._cluster is None:
            raise LimpetError(
                f"{verb}: this node has joined no cluster, so there is no network to be seen "
                "(`limpet join` lets it into one; `limpet status` tells its own pods)"
            )
        return self._cluster

    def _pictures(self, verb: str) -> PictureAnswers:
        """Raises: LimpetError where the node has joined no cluster."""
        cluster, admin = self._joined(verb)
        if self._made is None:
            # Only now: most nodes are looked at now and then.
            from limpet.agent.answers.picture.making import PictureAnswers

            self._made = PictureAnswers(cluster, admin.services, self._policies, self._ledgers)
        return self._made
