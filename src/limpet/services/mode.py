"""Whether a node serves Services itself: what its own settings say, else what the cluster says."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_AUTO, _ON = "auto", "on"


class Decision(NamedTuple):
    on: bool
    why: str
    """In words."""


def decide(of_node: str | None, of_cluster: str, kube_proxy: str) -> Decision:
    """`of_node`: on or off; None: as the cluster says. `kube_proxy`: where its rules were found."""
    if of_node is not None:
        return Decision(of_node == _ON, f'services = "{of_node}" in the agent\'s configuration')
    if of_cluster != _AUTO:
        return Decision(of_cluster == _ON, f"the cluster's network says {of_cluster}")
    if kube_proxy:
        return Decision(False, "kube-proxy serves them here, and nobody has said otherwise")
    return Decision(True, "the cluster's network says auto, and no kube-proxy is found here")


class ServicesDecision:
    """What was decided when the agent began, and what would be decided now."""

    def __init__(
        self, of_node: str | None, of_cluster: Callable[[], str], find: Callable[[], str]
    ) -> None:
        """`find`: where rules of kube-proxy are; empty: nowhere."""
        self._of_node = of_node
        self._of_cluster = of_cluster
        self._find = find
        self.kube_proxy = find()
        """Where its rules were when last looked for; empty: nowhere."""
        self.taken = self._decide()

    def look(self) -> bool:
        """Whether it would be decided otherwise now; if not, `taken` says why as it is now."""
        self.find()
        now = self._decide()
        if now.on != self.taken.on:
            return True
        self.taken = now
        return False

    def find(self) -> None:
        """Looks for its rules; what follows from them is for the next `look`."""
        self.kube_proxy = self._find()

    def _decide(self) -> Decision:
        return decide(self._of_node, self._of_cluster(), self.kube_proxy)
