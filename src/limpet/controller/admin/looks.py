"""What whoever looks at the cluster asks for: its picture, one pair of it, what happened."""

from __future__ import annotations

from msgspec import Struct

from limpet.controller.admin.communities import Verb
from limpet.controller.picture.making import PictureMaker
from limpet.controller.state.cluster import Cluster


class LookAdmin:
    """The verbs."""

    def __init__(self, cluster: Cluster) -> None:
        self._pictures = PictureMaker(cluster)
        self.verbs: dict[str, Verb] = {"picture": self._picture, "pair": self._pair}

    async def _picture(self, known: str = "", wait_s: float = 0.0) -> Struct:
        """`known`: version that whoever asks has; another one is waited for."""
        return await self._pictures.picture(known, wait_s)

    async def _pair(self, one: str, other: str) -> Struct:
        """By uids."""
        return await self._pictures.pair(one, other)
