"""By which way each peer is reached: kept from the last run, proven with probes, on the disk."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import structlog

from limpet.base.addresses import Address, Endpoint, UnderlayLink
from limpet.base.errors import LimpetError
from limpet.base.faults import noted
from limpet.base.timer import AGAIN_S, Timer
from limpet.cluster.datagrams.peer_socket import PeerSocket, Received
from limpet.cluster.membership import Membership, News
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.topology.paths import PeerPath, RelayEnd
from limpet.cluster.topology.transports import ProbeKind
from limpet.datapath.event import (
    AnswerSeen,
    PathsChanged,
    PeerIsNewer,
    ReachChanged,
    RelayNeeded,
    Tell,
    TunnelOnlyChanged,
)
from limpet.paths.ladder.candidates import CandidateFacts, port_of, usable
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.peer_facts import OwnEnds, flannel_path, own_facts
from limpet.paths.ladder.peer_ladders import Peer, PeerLadders
from limpet.paths.ladder.probe_scheduler import OTHER_PER_S
from limpet.paths.ladder.reach import PeerReach
from limpet.paths.ladder.tunnel_only import TunnelOnly
from limpet.paths.measuring import Measured, measure_ways
from limpet.paths.probe.messages import Probe
from limpet.paths.probe.port import KnownOfPeers, ProbePort, Proof
from limpet.paths.proven import Changes, ProvenPaths

_log = structlog.get_logger("probing")

_AT_ONCE = 16
"""Peers that are asked at once when something has changed; more are spread over time."""
_SEALED_EVERY_S = 10.0
_HEARD_EVERY_S = 1.0
"""How often a peer may be taken up at another address that it writes from."""


class Prober:
    """Runs on the event loop's thread."""

    def __init__(
        self,
        membership: Membership,
        courier: PeerSocket,
        *,
        path_file: Path,
        shut_out: Callable[[], Collection[str]],
        tell: Tell,
    ) -> None:
        """Tells PathsChanged, ReachChanged, TunnelOnlyChanged, PeerIsNewer, RelayNeeded and
        AnswerSeen. `shut_out`: peers of whom the kernel lets in nothing in clear; they get no
        answers there."""
        self._membership = membership
        self._tell = tell
        self._paths = ProvenPaths(path_file, self._paths_changed)
        self._port = ProbePort(
            membership,
            courier,
            on_proof=self._proven,
            on_heard=self._heard_from,
            known=KnownOfPeers(lambda uid: self._paths.now.get(uid), self._lets_in, self._is_at),
        )
        self.own = OwnEnds(courier.port)
        self._ladders = PeerLadders(membership.uid, random.random, courier.unproven)
        self.ways: dict[str, PeerPath | None] = {}
        """By which peers have said that they reach us, by their uid."""
        self._tunnel_only = TunnelOnly()
        self._seal_alarm = Timer("probing", self._seal)
        self._shut_out = shut_out
        self._running = False
        self._alarm = Timer("probing", self._tick)

    @property
    def paths(self) -> Mapping[str, PeerPath]:
        """How each peer is reached (`ProvenPaths.now`)."""
        return self._paths.now

    @property
    def reach(self) -> PeerReach:
        """Who answers, and how soon."""
        return self._ladders.reach

    def is_probed(self, uid: str) -> bool:
        """Whether it is a peer that this node asks for its ways."""
        return self._ladders.get(uid) is not None

    @property
    def counters(self) -> Counter[str]:
        """Probes by `asked_`, `answered_`, `refused_` and what was asked for; `unproven` answers;
        `held_back`: they would have gone where no member has answered yet."""
        return self._port.counters

    # Life

    def start(self) -> None:
        """In the network namespace of the calling thread; the courier listens."""
        self._port.open()
        self._port.look()
        self._running = True
        self._look(self._known_first(self._port.view.snapshot.nodes))

    async def stop(self) -> None:
        """What was proven is on the disk then."""
        self._running = False
        self._alarm.stop()
        self._seal_alarm.stop()
        await self._paths.close()
        self._port.close()

    # What is known

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        """The links that lead to peers; when they are others, everything is asked again."""
        if links == self.own.links:
            return
        self.own.links = links
        self._port.set_links(links)
        if self._running:
            self._look(self._known_first(self._ladders), reprobe=True)

    def set_relay_ends(self, uid: str, ends: tuple[RelayEnd, ...]) -> None:
        """Where relays take what they bring to the peer from now on, the best first."""
        peer = self._ladders.get(uid)
        if peer is None or peer.learnt.relay_ends == ends:
            return
        peer.learnt = replace(peer.learnt, relay_ends=ends)
        self._learn(peer, time.monotonic())
        self._set_timer()

    def set_active(self, uids: frozenset[str]) -> None:
        """Peers with traffic of pods just now: their paths are watched closely."""
        self._settle_all(self._ladders.set_active(uids, time.monotonic()))

    def set_watched(self, uids: frozenset[str]) -> None:
        """Peers that new connections may go to at any time: as if they had traffic."""
        self._settle_all(self._ladders.set_watched(uids, time.monotonic()))

    def _settle_all(self, peers: Iterable[Peer]) -> None:
        for peer in peers:
            self._settle(peer)
        self._set_timer()

    def _known_first(self, uids: Iterable[str]) -> list[str]:
        return sorted(uids, key=lambda uid: uid not in self.paths)

    def hear(self, news: News) -> None:
        if not self._running:
            return
        before = self._port.view
        self._port.look()
        view = self._port.view
        uids = set(news.uids)
        if own_facts(before) != own_facts(view):
            uids |= view.snapshot.nodes.keys()
        elif before.segments is not view.segments:
            known = before.segments
            uids |= {uid for uid, found in view.segments.items() if known.get(uid) != found}
        self._look(uids, reprobe=True)

    def _look(self, uids: Iterable[str], *, reprobe: bool = False) -> None:
        """Takes up what is known of these peers: the first ones are asked at once, and those with
        traffic before all others."""
        now_s = time.monotonic()
        begun = 0
        for uid in sorted(uids, key=lambda uid: not self._ladders.is_active(uid)):
            urgent = (reprobe or uid not in self.paths) and begun < _AT_ONCE
            at_s = now_s if urgent else now_s + begun / OTHER_PER_S
            with noted("probing a peer"):
                begun += self._take_up(uid, at_s, urgent=urgent)
        self._set_timer()

    def _take_up(self, uid: str, at_s: float, *, urgent: bool) -> bool:
        """Whether the peer is one that is probed."""
        if uid == self._membership.uid:
            return False
        entry = self._port.view.snapshot.nodes.get(uid)
        peer = self._ladders.get(uid)
        if entry is None or not self._port.may_talk(entry):
            if peer is not None:
                self._need_relay(peer, wanted=False)
                self._ladders.drop(uid)
                self.ways.pop(uid, None)
                self._tunnel_only.drop(uid)
            if entry is not None and self._port.view.grant is not None:
                self._paths.note(uid, None)
            return False
        if entry.grant.is_flannel:
            self._paths.note(uid, flannel_path(entry.presence))
            return False
        if peer is None:
            peer = self._ladders.add(uid, self.paths.get(uid))
        peer.facts = self._facts(entry, peer)
        self._ladders.know(peer, self.own.links, at_s=at_s, urgent=urgent)
        self._settle(peer)
        return True

    def _learn(self, peer: Peer, now_s: float) -> None:
        """Another way to the peer has become known, or is there no more."""
        entry = self._port.view.snapshot.nodes.get(peer.uid)
        if entry is not None:
            peer.facts = self._facts(entry, peer)
            self._ladders.know(peer, self.own.links, at_s=now_s, urgent=True, reprobe=False)
            self._settle(peer)

    def _facts(self, entry: NodeEntry, peer: Peer) -> CandidateFacts:
        return self.own.facts(self._port.view, entry, self._membership.presence, peer.learnt)

    # Asking

    def _set_timer(self) -> None:
        self._alarm.set(self._ladders.next_s(time.monotonic()) if self._running else math.inf)

    def _tick(self) -> None:
        now_s = time.monotonic()
        while (found := self._ladders.take(now_s)) is not None:
            peer, vital = found
            with noted("probing a peer"):
                self._ask(peer, now_s, vital=vital)
                continue
            self._start_over(peer, now_s + AGAIN_S)
        self._set_timer()

    def _ask(self, peer: Peer, now_s: float, *, vital: bool) -> None:
        questions, held_back = self._ladders.questions(peer, now_s, vital=vital)
        for question in questions:
            self._port.ask(peer.uid, question)
        if held_back:
            self.counters["held_back"] += held_back
        self._settle(peer)

    def _start_over(self, peer: Peer, at_s: float) -> None:
        """What has failed with the peer is left behind, but for its path."""
        self._ladders.start_over(peer, self.paths.get(peer.uid))
        with noted("probing a peer"):
            self._take_up(peer.uid, at_s, urgent=False)

    # Hearing

    def _proven(self, proof: Proof) -> None:
        uid, question, way = proof.asked.uid, proof.asked.question, proof.answer.way
        peer = self._ladders.get(uid)
        if peer is None:
            return
        now_s = time.monotonic()
        self._ladders.answered(peer, question, now_s, proof.rtt_s, proof.via)
        if uid not in self.ways or self.ways[uid] != way:
            self.ways[uid] = way
            peer.ladder.told(way)
        self._tunnel_only.told(uid, way, now_s)
        if self._tunnel_only.waits and not self._seal_alarm.is_set:
            self._seal_alarm.set_in(_SEALED_EVERY_S)
        self._settle(peer)
        self._set_timer()
        self._compare(uid, proof.answer.sequence)
        candidate = question.candidate
        if candidate.kind is ProbeKind.TUNNEL and not candidate.relay:
            seen = (proof.answer.seen_from, proof.answer.seen_port)
            self._tell(AnswerSeen(uid, (candidate.address, candidate.port), seen))

    def _lets_in(self, uid: str) -> bool:
        if self._tunnel_only.asked(uid, time.monotonic()):
            self._tell(TunnelOnlyChanged(self._tunnel_only.uids))
        return uid not in self._shut_out()

    def _is_at(self, uid: str, address: Address, port: int) -> bool:
        peer = self._ladders.get(uid)
        if peer is None:
            return False
        return (address, port) in peer.heard_at or (
            port == port_of(peer.facts, address)
            and self._ladders.has_answered(uid, address, time.monotonic())
        )

    def _seal(self) -> None:
        self._tunnel_only.seal()
        self._tell(TunnelOnlyChanged(self._tunnel_only.uids))

    def _heard_from(self, received: Received, probe: Probe) -> None:
        """It is there, and where: worth asking, if it was silent."""
        peer = self._ladders.get(received.uid)
        if peer is not None and probe.kind is not ProbeKind.OVERLAY:
            now_s = time.monotonic()
            end = (received.address, received.port)
            self._ladders.heard(peer.uid, received.address)
            if probe.kind is ProbeKind.TUNNEL:
                self._heard_by_tunnel(peer, probe, end, now_s)
            else:
                self._heard_in_clear(peer, end, now_s)
            self._set_timer()
        self._compare(received.uid, probe.sequence)

    def _heard_in_clear(self, peer: Peer, end: Endpoint, now_s: float) -> None:
        peer.heard_in_clear(end)
        if end[0] in peer.facts.addresses or end == peer.facts.heard:
            peer.ladder.nudge(end[0], now_s)
            self._settle(peer)
        elif now_s >= peer.heard_s + _HEARD_EVERY_S:
            peer.learnt, peer.heard_s = replace(peer.learnt, heard=end), now_s
            self._take_up(peer.uid, now_s, urgent=True)

    def _heard_by_tunnel(self, peer: Peer, probe: Probe, end: Endpoint, now_s: float) -> None:
        """Where a NAT lets its packets out they may also come in."""
        known = probe.relayed or end in peer.facts.endpoints or not usable([end[0]])
        if not known and peer.facts.tunnel and now_s >= peer.heard_s + _HEARD_EVERY_S:
            peer.learnt, peer.heard_s = peer.learnt.with_tunnel_heard(end), now_s
            self._learn(peer, now_s)
        peer.ladder.heard(end, now_s, relayed=probe.relayed, in_use=probe.in_use, punch=probe.punch)
        self._settle(peer)

    def _compare(self, uid: str, sequence: int) -> None:
        entry = self._port.view.snapshot.nodes.get(uid)
        if entry and (entry.presence is None or entry.presence.sequence < sequence):
            self._tell(PeerIsNewer(uid))

    # What follows

    def _settle(self, peer: Peer) -> None:
        """After anything that the ladder was told."""
        now_s = time.monotonic()
        self._ladders.settle(peer)
        self._paths.note(peer.uid, peer.ladder.path)
        if self.reach.note(peer.uid, peer.ladder, now_s):  # told with others'
            asyncio.get_running_loop().call_soon(self._reach_changed)
        wanted = peer.ladder.relay_need(now_s)
        if wanted is not None:
            self._need_relay(peer, wanted=wanted)

    def _need_relay(self, peer: Peer, *, wanted: bool) -> None:
        if wanted is not peer.needs_relay or (wanted and peer.ladder.relay_in_doubt):
            peer.needs_relay = wanted
            asyncio.get_running_loop().call_soon(self._tell, RelayNeeded(peer.uid, wanted))

    def _paths_changed(self, changes: Changes) -> None:
        for uid, (before, now) in changes.items():
            entry = self._port.view.snapshot.nodes.get(uid)
            _log.info(
                "path to a peer",
                peer=entry.grant.name if entry is not None else uid,
                before=_words(before),
                now=_words(now),
            )
            self.reach.path_changed(uid)
        if self._running:
            self._tell(PathsChanged(frozenset(changes)))

    def _reach_changed(self) -> None:
        self.reach.take()
        if self._running:
            self._tell(ReachChanged())

    def ladder(self, uid: str) -> Ladder | None:
        """To be looked at; None: the node is none that is probed."""
        peer = self._ladders.get(uid)
        return None if peer is None else peer.ladder

    # Measuring

    def round_trips_s(self) -> dict[str, float]:
        """As `PeerLadders.round_trips_s`."""
        return self._ladders.round_trips_s()

    async def measure(self, uid: str) -> tuple[Measured, ...]:
        """Asks the peer once in every way there is, and waits for the answers.

        Raises: LimpetError if the node is none that is probed.
        """
        peer = self._ladders.get(uid)
        if peer is None:
            raise LimpetError(
                f"probe {uid}: it is no peer of this node that answers (run by flannel, removed, "
                "in no shared community, or not heard of; `limpet node list` in the cloud tells)"
            )
        return await measure_ways(self._port, uid, peer.ladder)


def _words(path: PeerPath | None) -> str:
    if path is None:
        return "none"
    ends = path.next_hops or ((path.underlay,) if path.underlay is not None else ())
    words = [path.rung.name, *map(str, ends), path.device]
    if path.endpoint is not None:
        words += [f"{path.endpoint[0]} port {path.endpoint[1]}", f"MTU {path.mtu_bytes}"]
    return " ".join(filter(None, words))
