"""The ladders of all peers together: whom to ask what, and when next. Pure; time and chance passed
in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from limpet.base.addresses import Address, Endpoint, UnderlayLink
from limpet.base.bounds.neighbours import HEARD_AT
from limpet.cluster.datagrams.unproven_budget import UnprovenBudget
from limpet.cluster.topology.paths import PeerPath
from limpet.paths.ladder.candidates import CandidateFacts
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.peer_facts import Learnt
from limpet.paths.ladder.probe_scheduler import UNANSWERED, ProbeScheduler, stretch_for
from limpet.paths.ladder.probe_state import Question
from limpet.paths.ladder.reach import PeerReach
from limpet.paths.ladder.silence import is_missed
from limpet.paths.probe.messages import AnsweredBy, Candidate


@dataclass(slots=True, eq=False)
class Peer:
    uid: str
    ladder: Ladder
    facts: CandidateFacts = field(default_factory=CandidateFacts)
    learnt: Learnt = Learnt()
    heard_s: float = -math.inf
    """When it was taken up last at an address that was not known."""
    heard_at: tuple[Endpoint, ...] = ()
    """Where its probes in clear came from, the newest first."""
    needs_relay: bool = False

    def heard_in_clear(self, end: Endpoint) -> None:
        """Its probe came from there."""
        if end not in self.heard_at:
            self.heard_at = (end, *self.heard_at)[: HEARD_AT.most]


class PeerLadders:
    """Ladders of one node's peers. Whatever a ladder was told, `settle` has to follow."""

    def __init__(self, own_uid: str, chance: Callable[[], float], unproven: UnprovenBudget) -> None:
        """`chance`: from 0 to 1, another each time. `unproven`: the node's."""
        self._own_uid = own_uid
        self._chance = chance
        self._peers: dict[str, Peer] = {}
        self._with_traffic: frozenset[str] = frozenset()
        self._watched: frozenset[str] = frozenset()
        self._active: frozenset[str] = frozenset()
        """Peers with traffic, and those that are watched."""
        self._scheduler = ProbeScheduler()
        self._unproven = unproven
        self.reach = PeerReach()

    # Who they are

    def get(self, uid: str) -> Peer | None:
        return self._peers.get(uid)

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def round_trips_s(self) -> dict[str, float]:
        """Smoothed, of the path of each peer whose path was measured, by uid."""
        found = {uid: peer.ladder.round_trip_s for uid, peer in self._peers.items()}
        return {uid: trip_s for uid, trip_s in found.items() if trip_s}

    def add(self, uid: str, path: PeerPath | None) -> Peer:
        """`path`: that was proven last."""
        peer = self._peers[uid] = Peer(uid, self._ladder(uid, path))
        return peer

    def start_over(self, peer: Peer, path: PeerPath | None) -> None:
        """Its ladder is as if it had only now been heard of."""
        peer.ladder = self._ladder(peer.uid, path)

    def know(
        self,
        peer: Peer,
        links: tuple[UnderlayLink, ...],
        *,
        at_s: float,
        urgent: bool,
        reprobe: bool = True,
    ) -> None:
        """Its facts, or our links, are others; the rest as `Ladder.settle`."""
        stretch = self._stretch() * (0.5 + self._chance())  # not all that was kept at one time
        peer.ladder.settle(
            peer.facts, links, at_s=at_s, urgent=urgent, reprobe=reprobe, stretch=stretch
        )

    def drop(self, uid: str) -> None:
        self._peers.pop(uid, None)
        self._scheduler.drop(uid)
        self.reach.drop(uid)

    def _ladder(self, uid: str, path: PeerPath | None) -> Ladder:
        return Ladder(
            path,
            leads=self._own_uid < uid,
            active=uid in self._active,
            watched=uid in self._watched,
        )

    def set_active(self, uids: frozenset[str], now_s: float) -> list[Peer]:
        """Peers with traffic of pods just now; those for whom that has changed."""
        self._with_traffic = uids
        return self._activate(now_s)

    def set_watched(self, uids: frozenset[str], now_s: float) -> list[Peer]:
        """Peers that are asked as often as if they had traffic, and sooner again when an answer is
        missing; the rest as `set_active`."""
        self._watched = uids
        for uid, peer in self._peers.items():
            peer.ladder.watched = uid in uids
        return self._activate(now_s)

    def is_active(self, uid: str) -> bool:
        """Whether it has traffic, or is watched."""
        return uid in self._active

    def _activate(self, now_s: float) -> list[Peer]:
        before, self._active = self._active, self._with_traffic | self._watched
        changed = before ^ self._active
        peers = [self._peers[uid] for uid in changed if uid in self._peers]
        for peer in peers:
            peer.ladder.set_active(now_s, active=peer.uid in self._active)
        return peers

    # Asking

    def settle(self, peer: Peer) -> None:
        """When it is asked next."""
        ladder = peer.ladder
        vital_s, other_s = ladder.due_s(vital=True), ladder.due_s(vital=False)
        self._scheduler.put(peer.uid, vital_s=vital_s, other_s=other_s, active=ladder.active)

    def next_s(self, now_s: float) -> float:
        """When `take` has somebody."""
        return self._scheduler.next_s(now_s)

    def take(self, now_s: float) -> tuple[Peer, bool] | None:
        """Who is to be asked now, and whether about what is vital. It has to be settled again."""
        found = self._scheduler.take(now_s)
        return (self._peers[found[0]], found[1]) if found is not None else None

    def questions(self, peer: Peer, now_s: float, *, vital: bool) -> tuple[list[Question], int]:
        """What is to be sent now, and how many more are held back, which counts as not answered."""
        due = peer.ladder.take_due(now_s, vital=vital, stretch=self._stretch())
        sent = [each for each in due if self._may_ask(peer.uid, each.candidate, now_s)]
        cost = len(sent) * (UNANSWERED if is_missed(peer.ladder.choice()) else 1.0)
        self._scheduler.spend(cost, now_s, vital=vital)
        return sent, len(due) - len(sent)

    def _may_ask(self, uid: str, candidate: Candidate, now_s: float) -> bool:
        """Relays are the cluster's; all else is what the peer says."""
        if candidate.relay:
            return True
        return self._unproven.may_ask(uid, candidate.address, now_s)

    def heard(self, uid: str, address: Address) -> None:
        """A probe of the peer has come from there, past no relay."""
        self._unproven.heard(uid, address)

    def has_answered(self, uid: str, address: Address, now_s: float) -> bool:
        """Whether the peer has proven of late that it is there."""
        return self._unproven.has_answered((uid, address), now_s)

    def answered(
        self, peer: Peer, question: Question, now_s: float, rtt_s: float, via: AnsweredBy
    ) -> None:
        """The peer has answered."""
        candidate = question.candidate
        peer.ladder.answered(
            candidate,
            now_s,
            rtt_s=rtt_s,
            via=via,
            stretch=self._stretch(),
            first_share=self._chance(),
            packet_bytes=question.packet_bytes,
        )
        if not candidate.relay:
            self._unproven.answered(peer.uid, candidate.address, now_s)

    def _stretch(self) -> float:
        # Of all that are asked, whether they have answered by now or not: just after the start few
        # have, and those few would be asked again as often as if there were no others.
        return stretch_for(len(self._peers), self._chance())
