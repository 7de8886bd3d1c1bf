"""What whoever looks at the cluster asks for: its picture, one pair of it, what happened."""

from __future__ import annotations

from msgspec import Struct

from limpet.controller.admin.communities import Verb
from limpet.controller.picture.listed import ListedServices
from limpet.controller.picture.making import PictureMaker
from limpet.controller.state.cluster import Cluster
from limpet.timeline.answer import asked_of


class LookAdmin:
    """The verbs."""

    def __init__(self, cluster: Cluster, services: ListedServices | None) -> None:
        """`services`: None: nothing tells the controller of any."""
        self._pictures = PictureMaker(cluster, services)
        self._timeline = cluster.timeline
        self.verbs: dict[str, Verb] = {
            "picture": self._picture,
            "pair": self._pair,
            "events": self._events,
        }

    async def _picture(self, known: str = "", wait_s: float = 0.0) -> Struct:
        """`known`: version that whoever asks has; another one is waited for."""
        return await self._pictures.picture(known, wait_s)

    async def _pair(self, one: str, other: str) -> Struct:
        """By uids."""
        return await self._pictures.pair(one, other)

    async def _events(
        self,
        before: int | None = None,
        after: int | None = None,
        since_s: float | None = None,
        node: str = "",
        about: tuple[str, ...] = (),
        limit: int = 200,
        wait_s: float = 0.0,
    ) -> Struct:
        asked = {"before": before, "after": after, "since_s": since_s, "limit": limit}
        more = {"wait_s": wait_s, "about": about, "node": node}
        return await self._timeline.recorder.answer(asked_of({**asked, **more}))
