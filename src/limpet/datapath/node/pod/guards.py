"""What has to hold for a pod before it gets its interface."""

from __future__ import annotations

from collections.abc import Callable

from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.ports.part import PortPart


class PodGuards:
    """Port security, and whoever joins it."""

    def __init__(self, ports: PortPart) -> None:
        self.ports = ports
        self._others: list[Callable[[Attachment], None]] = []

    def join(self, cover: Callable[[Attachment], None]) -> None:
        """`cover`: what it raises keeps the pod without its interface."""
        self._others.append(cover)

    def cover(self, pod: Attachment) -> None:
        """All of it is in force when this returns. Raises: LimpetError."""
        self.ports.cover(pod)
        for cover in self._others:
            cover(pod)
