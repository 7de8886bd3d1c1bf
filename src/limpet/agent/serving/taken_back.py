"""What a node has said of its pods while it had parts that it does not have now.

Nobody here looks after it any more, and others would believe it for ever: an address comes to
another pod, and that one passes for the one that was told.
"""

from __future__ import annotations

from limpet.cluster.membership import Membership


class TakenBack:
    """Runs on the event loop."""

    def __init__(self, membership: Membership, *, of_gone: bool, of_labels: bool) -> None:
        """`of_gone`: which are gone, without Services; `of_labels`: their labels, without the
        cluster's policies."""
        self._membership = membership
        self._of_gone = of_gone
        self._of_labels = of_labels

    def look(self) -> None:
        """At the start, and whenever something is told: neighbours bring back what was said before
        this node's disk was put back."""
        if self._of_gone:
            self._membership.announce_gone(())
        if self._of_labels:
            self._membership.announce_pods(())
