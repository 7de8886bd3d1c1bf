"""What there is to be seen of this node's ways, for whoever looks and for the controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from limpet.agent.answers.peers import kind_of
from limpet.agent.answers.picture.detail import PairFacts
from limpet.agent.answers.picture.ways import WaySeen
from limpet.agent.nat_traversal import NatTraversal
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.segments import SegmentUse
from limpet.cluster.topology.reach import may_talk
from limpet.cluster.topology.view import View
from limpet.cni.ledgers import Ledgers
from limpet.cni.usage import segment_usage
from limpet.datapath.overlay.state import PeerPart
from limpet.datapath.together.peer_parts import PeerParts
from limpet.datapath.tunnel.traffic.report import unable_peers
from limpet.paths.prober import Prober
from limpet.paths.summary import WaySummary, asked_of, summarize, why_indirect


class OfPods(NamedTuple):
    """What this node gives to pods."""

    segments: tuple[SegmentUse, ...]
    pods: int


class Looking:
    """For the event loop's thread: ladders change under whoever looks from another."""

    def __init__(
        self,
        peer_parts: PeerParts,
        probing: Prober,
        nat_traversal: NatTraversal,
        *,
        since_at_s: Callable[[str], float | None],
        ledgers: Ledgers,
    ) -> None:
        """`since_at_s`: when the rung to a peer changed last, by its uid."""
        self._peer_parts = peer_parts
        self._probing = probing
        self.nat_traversal = nat_traversal
        self._since_at_s = since_at_s
        self._ledgers = ledgers

    @property
    def view(self) -> View:
        return self._peer_parts.peers.view

    def of_pods(self) -> OfPods:
        segments = self.view.segments.get(self.view.uid, ())
        return OfPods(segment_usage(self._ledgers, segments), self._ledgers.pods)

    def lacking(self) -> Mapping[str, str]:
        """Peers that have a path by a tunnel which does not come about, by uid, and why."""
        return unable_peers(self._peer_parts.tunnels, time.monotonic())

    def backend(self) -> str:
        """What makes this node's tunnels."""
        return ", ".join(each.made_by for each in self._peer_parts.tunnels.all if each.made_by)

    def nat(self) -> Mapping[str, str]:
        """Kind of NAT in front of this node, by IP version."""
        return {f"ipv{v}": self.nat_traversal.relays.kind(v).name.lower() for v in (4, 6)}

    def seen(self, uid: str, entry: NodeEntry, lacking: Mapping[str, str]) -> WaySeen:
        view, plan = self.view, self._peer_parts.overlay.planned
        allowed = (
            view.network is not None
            and view.grant is not None
            and may_talk(view.network, view.grant, entry.grant)
        )
        ladder = self._probing.ladder(uid)
        ways = self._probing.ways
        return WaySeen(
            is_allowed=allowed,
            is_reached=allowed and kind_of(uid, view, plan, lacking) not in ("", "unreached"),
            here=summarize(ladder) if ladder is not None else None,
            told=ways.get(uid),
            has_told=uid in ways,
            since_at_s=self._since_at_s(uid),
        )

    def part(self, uid: str) -> PeerPart:
        """What the peer adds to this node's plan."""
        return self._peer_parts.overlay.planned.parts.get(uid, PeerPart())

    def active(self, uids: Iterable[str]) -> Iterator[str]:
        """Those with traffic of pods."""
        for uid in uids:
            ladder = self._probing.ladder(uid)
            if ladder is not None and ladder.active:
                yield uid

    def facts_of_pair(self, uid: str, seen: WaySeen, lacking: Mapping[str, str]) -> PairFacts:
        ladder = self._probing.ladder(uid)
        kind = self.nat().get(f"ipv{_version_of(seen.here)}", "")
        return PairFacts(
            own=self.view.uid,
            peer=uid,
            seen=seen,
            asked=asked_of(ladder) if ladder is not None else [],
            indirect=why_indirect(ladder, kind) if ladder is not None else None,
            part=self.part(uid),
            reading=None,
            nat=kind,
            lacking=lacking.get(uid, ""),
        )


def _version_of(here: WaySummary | None) -> int:
    """IP version of the underlay that the path goes by."""
    path = here.path if here is not None else None
    endpoint = path.endpoint if path is not None else None
    return endpoint[0].version if endpoint is not None and not endpoint[0].is_loopback else 4
