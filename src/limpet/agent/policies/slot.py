"""The place of network policies in an agent: empty until there are any."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limpet.agent.status import Said
from limpet.datapath.loop import Loop
from limpet.datapath.node.part import NodePart
from limpet.datapath.node.pod.attachment import Attachment

if TYPE_CHECKING:  # a node without policies need not have them in memory
    from limpet.agent.policies.keeper import Policies

VERBS = ("policy.apply", "policy.delete", "policy.list", "policy.show", "pod.label")


class PolicySlot:
    """Runs on the event loop."""

    def __init__(
        self, loop: Loop, node_part: NodePart, path: Path, attachments: Iterable[Attachment]
    ) -> None:
        """`path`: of the file that is kept."""
        self.policies: Policies | None = None
        self._loop = loop
        self._node_part = node_part
        self._path = path
        self._attachments = attachments

    def begin(self) -> None:
        """What is kept is in force when this returns. Raises: LimpetError."""
        if self._path.exists():
            self._loop.run("start", self.open().part)

    def open(self) -> Policies:
        """Raises: LimpetError."""
        if self.policies is None:
            # Only now: most nodes have no policies, and do without what they take in memory.
            from limpet.agent.policies.keeper import Policies

            self.policies = Policies(
                self._loop, self._path, self._attachments, self._node_part.bridge_mac
            )
            self._node_part.before_pod = self.policies.cover
        return self.policies

    def close(self) -> None:
        """What is in the kernel stays."""
        if self.policies is not None:
            self.policies.close()

    def pods_changed(self) -> None:
        if self.policies is not None:
            self.policies.part.wake("pods were changed")

    async def answer(self, verb: str, arguments: dict[str, Any]) -> Said:
        """Raises: LimpetError."""
        return await self.open().answer(verb, arguments)
