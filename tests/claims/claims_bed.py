"""Three nodes on a switch, with pods: one watches, one is the victim, one claims.

The claimant has the lowest uid of the three: low ones are ground in seconds, and win nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from limpet.cluster.kinds.presence import Presence
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology import transports
from limpet.cluster.topology.vtep_mac import derived_vtep_mac
from limpet.lab.world.node import LabNode
from tests.beds.namespaces import Netns
from tests.beds.overlay_bed import Node, OverlayBed

_TABLE = "claims_test"


class ClaimsBed(OverlayBed):
    def __init__(self) -> None:
        super().__init__(3)
        self.claimant, *others = sorted(self.nodes, key=lambda node: node.uid)
        self.watcher, self.victim = others
        for node in self.nodes:
            macs = {version: derived_vtep_mac(node.uid, version) for version in (4, 6)}
            node.presence = replace(node.presence, vtep_macs=macs)
            node.own = replace(node.own, vtep_macs=macs)
        self.join(transports.VXLAN)

    @contextlib.contextmanager
    def claiming(
        self, node: Node | None = None, **claims: object
    ) -> Iterator[dict[str, NodeEntry]]:
        """The claimant's presence, or another node's, is so while it lasts; all nodes know."""
        node = node or self.claimant
        before: Presence = node.presence
        node.presence = replace(before, **claims)  # type: ignore[arg-type]
        try:
            self.settle()
            yield self.entries()
        finally:
            node.presence = before
            self.settle()


@contextlib.contextmanager
def counting(
    netns: Netns | LabNode, match: str, *more: str, hook: str = "prerouting"
) -> Iterator[Callable[..., int]]:
    """How many packets at the hook, of those that come in or go out, match the words of nft: the
    first ones, or those of the number that is passed."""
    words = (match, *more)
    counters = "".join(f"counter seen{number} {{\n}}\n" for number in range(len(words)))
    rules = "".join(f"{each} counter name seen{number}\n" for number, each in enumerate(words))
    chain = f"chain watch {{\ntype filter hook {hook} priority -500; policy accept;\n{rules}}}\n"
    netns.run("nft", f"table inet {_TABLE} {{\n{counters}{chain}}}\n")

    def seen(number: int = 0) -> int:
        text = netns.run("nft", "-j", "list", "counter", "inet", _TABLE, f"seen{number}")
        return next(int(each["counter"]["packets"]) for each in json.loads(text)["nftables"][1:])

    try:
        yield seen
    finally:
        netns.run("nft", "delete", "table", "inet", _TABLE)
