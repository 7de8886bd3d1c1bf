"""By which way each peer is reached: kept from the last run, proven with probes, on the disk."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from limpet.base.addresses import Endpoint, UnderlayLink
from limpet.base.errors import LimpetError
from limpet.base.faults import noted
from limpet.base.layered_map import alter
from limpet.base.timer import AGAIN_S, Timer
from limpet.cluster.membership import Membership, News
from limpet.cluster.nodes import NodeEntry
from limpet.cluster.peer_socket import PeerSocket
from limpet.cluster.topology.paths import PeerPath, RelayEnd
from limpet.cluster.topology.transports import ProbeKind
from limpet.datapath.event import (
    AnswerSeen,
    PathsChanged,
    PeerIsNewer,
    RelayNeeded,
    Tell,
    TunnelOnlyChanged,
)
from limpet.paths.ladder.candidates import Facts, usable
from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.peer_facts import Learnt, own_facts, peer_facts
from limpet.paths.ladder.probe_scheduler import OTHER_PER_S, ProbeScheduler, stretch_for
from limpet.paths.ladder.probe_state import Question
from limpet.paths.ladder.tunnel_only import TunnelOnly
from limpet.paths.measuring import Measured, measure_ways
from limpet.paths.path_file import PathFile
from limpet.paths.probe.port import Heard, ProbePort, Proof
from limpet.paths.unproven_budget import UnprovenBudget

_log = structlog.get_logger("probing")
T = TypeVar("T")

_AT_ONCE = 16
"""Peers that are asked at once when something has changed; more are spread over time."""
_SEALED_EVERY_S = 10.0
_MOST_HEARD = 3
_HEARD_EVERY_S = 1.0
"""How often a peer may be taken up at another address that it writes from."""


@dataclass(slots=True, eq=False)
class _Peer:
    uid: str
    ladder: Ladder
    facts: Facts
    learnt: Learnt = Learnt()
    heard_s: float = -math.inf
    """When it was taken up last at an address that was not known."""
    needs_relay: bool = False


class Prober:
    """Runs on the event loop's thread."""

    def __init__(
        self,
        membership: Membership,
        courier: PeerSocket,
        *,
        path_file: Path,
        tell: Tell,
    ) -> None:
        """Tells PathsChanged, TunnelOnlyChanged, PeerIsNewer, RelayNeeded and AnswerSeen."""
        self._file = PathFile(path_file)
        self.paths: Mapping[str, PeerPath] = self._file.paths
        """By the peer's uid; from the start those that were proven last. Another mapping after
        each change."""
        self._membership = membership
        self._courier = courier
        self._tell = tell
        self._port = ProbePort(
            membership,
            courier,
            on_proof=self._proven,
            on_heard=self._heard_from,
            way_to=lambda uid: self.paths.get(uid),
            lets_in=self._lets_in,
        )
        self._tunnel_only = TunnelOnly()
        self._seal_alarm = Timer("probing", self._seal)
        self.shut_out: Callable[[], Collection[str]] = tuple
        """Peers of whom the kernel lets in nothing in clear; they get no answers there."""
        self.ipv6_last = False
        """Our tunnel is at its best with endpoints of IPv4 (`candidates.nearness`)."""
        self.ways: dict[str, PeerPath | None] = {}
        """By which peers have said that they reach us, by their uid."""
        self._links: tuple[UnderlayLink, ...] = ()
        self._peers: dict[str, _Peer] = {}
        self._active: frozenset[str] = frozenset()
        self._scheduler = ProbeScheduler()
        self._unproven = UnprovenBudget()
        self._shared: dict[Any, Any] = {}
        self._changed: dict[str, PeerPath | None] = {}
        self._running = False
        self._alarm = Timer("probing", self._tick)

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
        self._membership.subscribe(self._heard_news)
        self._running = True
        self._look(self._known_first(self._port.view.snapshot.nodes))

    async def stop(self) -> None:
        """What was proven is on the disk then."""
        self._running = False
        self._alarm.stop()
        self._seal_alarm.stop()
        self._tell_paths()
        await self._file.close()
        self._port.close()

    # What is known

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        """The links that lead to peers; when they are others, everything is asked again."""
        if links == self._links:
            return
        self._links = links
        self._port.set_links(links)
        if self._running:
            self._look(self._known_first(self._peers), reprobe=True)

    def set_relay_ends(self, uid: str, ends: tuple[RelayEnd, ...]) -> None:
        """Where relays take what they bring to the peer, the best first. What is there no more is
        left at once."""
        peer = self._peers.get(uid)
        if peer is None or peer.learnt.relay_ends == ends:
            return
        peer.learnt = replace(peer.learnt, relay_ends=ends)
        self._learn(peer, time.monotonic())
        self._set_timer()

    def set_active(self, uids: frozenset[str]) -> None:
        """Peers with traffic of pods just now: their paths are watched closely."""
        before, self._active = self._active, uids
        now_s = time.monotonic()
        for uid in before ^ uids:
            peer = self._peers.get(uid)
            if peer is not None:
                peer.ladder.set_active(now_s, active=uid in uids)
                self._settle(peer)
        self._set_timer()

    def _known_first(self, uids: Iterable[str]) -> list[str]:
        return sorted(uids, key=lambda uid: uid not in self.paths)

    def _heard_news(self, news: News) -> None:
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
        """Takes up what is known of these peers: the first ones are asked at once."""
        now_s = time.monotonic()
        begun = 0
        for uid in uids:
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
        peer = self._peers.get(uid)
        if entry is None or not self._port.may_talk(entry):
            if peer is not None:
                self._need_relay(peer, wanted=False)
                del self._peers[uid]
                self.ways.pop(uid, None)
                self._tunnel_only.drop(uid)
                self._scheduler.drop(uid)
            if entry is not None and self._port.view.grant is not None:
                self._note(uid, None)
            return False
        if peer is None:
            peer = self._peers[uid] = _Peer(uid, self._new_ladder(uid), Facts())
        peer.facts = self._facts(entry, peer)
        peer.ladder.settle(peer.facts, self._links, at_s=at_s, urgent=urgent)
        self._settle(peer)
        return True

    def _new_ladder(self, uid: str) -> Ladder:
        return Ladder(
            self.paths.get(uid), leads=self._membership.uid < uid, active=uid in self._active
        )

    def _learn(self, peer: _Peer, now_s: float) -> None:
        """Another way to the peer has become known, or is there no more."""
        entry = self._port.view.snapshot.nodes.get(peer.uid)
        if entry is not None:
            peer.facts = self._facts(entry, peer)
            peer.ladder.settle(peer.facts, self._links, at_s=now_s, urgent=True, reprobe=False)
            self._settle(peer)

    def _facts(self, entry: NodeEntry, peer: _Peer) -> Facts:
        return peer_facts(
            self._port.view,
            entry,
            self._membership.presence,
            peer.learnt,
            self._links,
            port=self._courier.port,
            ipv6_last=self.ipv6_last,
            same=self._same,
        )

    def _same(self, value: T) -> T:
        """The object that others of thousands of peers have too."""
        shared: T = self._shared.setdefault(value, value)
        return shared

    # Asking

    def _set_timer(self) -> None:
        self._alarm.set(self._scheduler.next_s(time.monotonic()) if self._running else math.inf)

    def _tick(self) -> None:
        now_s = time.monotonic()
        while (found := self._scheduler.take(now_s)) is not None:
            uid, vital = found
            peer = self._peers[uid]
            with noted("probing a peer"):
                self._ask(peer, now_s, vital=vital)
                continue
            self._start_over(peer, now_s + AGAIN_S)
        self._set_timer()

    def _ask(self, peer: _Peer, now_s: float, *, vital: bool) -> None:
        asked = 0
        for question in peer.ladder.take_due(now_s, vital=vital, stretch=self._stretch()):
            if self._may_ask(peer.uid, question, now_s):
                self._port.ask(peer.uid, question)
                asked += 1
            else:  # it counts as not answered
                self.counters["held_back"] += 1
        self._scheduler.spend(asked, now_s, vital=vital)
        self._settle(peer)

    def _may_ask(self, uid: str, question: Question, now_s: float) -> bool:
        """Relays are the cluster's, and what is asked in clear is on a link or in a site."""
        candidate = question.candidate
        if candidate.kind is not ProbeKind.TUNNEL or candidate.relay:
            return True
        return self._unproven.may_ask(uid, candidate.address, now_s)

    def _start_over(self, peer: _Peer, at_s: float) -> None:
        """What has failed with the peer is left behind, but for its path."""
        peer.ladder = self._new_ladder(peer.uid)
        with noted("probing a peer"):
            self._take_up(peer.uid, at_s, urgent=False)

    def _stretch(self) -> float:
        return stretch_for(len(self.paths), random.random())

    # Hearing

    def _proven(self, proof: Proof) -> None:
        peer = self._peers.get(proof.uid)
        if peer is None:
            return
        peer.ladder.answered(
            proof.candidate,
            time.monotonic(),
            rtt_s=proof.rtt_s,
            via=proof.via,
            stretch=self._stretch(),
            packet_bytes=proof.packet_bytes,
        )
        if proof.uid not in self.ways or self.ways[proof.uid] != proof.way:
            self.ways[proof.uid] = proof.way
            peer.ladder.told(proof.way)
        self._tunnel_only.told(proof.uid, proof.way, time.monotonic())
        if self._tunnel_only.waits and not self._seal_alarm.is_set:
            self._seal_alarm.set_in(_SEALED_EVERY_S)
        self._settle(peer)
        self._set_timer()
        self._compare(proof.uid, proof.sequence)
        candidate = proof.candidate
        if candidate.kind is ProbeKind.TUNNEL and not candidate.relay:
            self._unproven.answered(candidate.address, time.monotonic())
            asked = (candidate.address, candidate.port)
            self._tell(AnswerSeen(proof.uid, asked, proof.seen))

    def _lets_in(self, uid: str) -> bool:
        if self._tunnel_only.asked(uid, time.monotonic()):
            self._tell(TunnelOnlyChanged(self._tunnel_only.uids))
        return uid not in self.shut_out()

    def _seal(self) -> None:
        self._tunnel_only.seal()
        self._tell(TunnelOnlyChanged(self._tunnel_only.uids))

    def _heard_from(self, heard: Heard) -> None:
        """It is there, and where: worth asking, if it was silent."""
        peer = self._peers.get(heard.uid)
        if peer is not None and heard.address is not None:
            now_s = time.monotonic()
            end = (heard.address, heard.port)
            if heard.by_tunnel:
                self._heard_by_tunnel(peer, heard, end, now_s)
            elif heard.address in peer.facts.addresses or end == peer.facts.heard:
                peer.ladder.nudge(heard.address, now_s)
                self._settle(peer)
            elif now_s >= peer.heard_s + _HEARD_EVERY_S:
                peer.learnt, peer.heard_s = replace(peer.learnt, heard=end), now_s
                self._take_up(heard.uid, now_s, urgent=True)
            self._set_timer()
        self._compare(heard.uid, heard.sequence)

    def _heard_by_tunnel(self, peer: _Peer, heard: Heard, end: Endpoint, now_s: float) -> None:
        """Where a NAT lets its packets out they may also come in."""
        known = heard.relayed or end in peer.facts.endpoints or not usable([end[0]])
        if not known and peer.facts.tunnel and now_s >= peer.heard_s + _HEARD_EVERY_S:
            ends = (end, *peer.learnt.tunnel_heard)[:_MOST_HEARD]
            peer.learnt, peer.heard_s = replace(peer.learnt, tunnel_heard=ends), now_s
            self._learn(peer, now_s)
        peer.ladder.heard(end, now_s, relayed=heard.relayed, in_use=heard.in_use, punch=heard.punch)
        self._settle(peer)

    def _compare(self, uid: str, sequence: int) -> None:
        entry = self._port.view.snapshot.nodes.get(uid)
        if entry is not None and (
            entry.presence is None or entry.presence.sequence < sequence
        ):  # fmt: skip
            self._tell(PeerIsNewer(uid))

    # What follows

    def _settle(self, peer: _Peer) -> None:
        """After anything that the ladder was told."""
        ladder = peer.ladder
        vital_s, other_s = ladder.due_s(vital=True), ladder.due_s(vital=False)
        self._scheduler.put(peer.uid, vital_s=vital_s, other_s=other_s, active=ladder.active)
        self._note(peer.uid, ladder.path)
        wanted = ladder.relay_need(time.monotonic())
        if wanted is not None:
            self._need_relay(peer, wanted=wanted)

    def _need_relay(self, peer: _Peer, *, wanted: bool) -> None:
        if wanted is not peer.needs_relay or (wanted and peer.ladder.relay_in_doubt):
            peer.needs_relay = wanted
            asyncio.get_running_loop().call_soon(self._tell, RelayNeeded(peer.uid, wanted))

    def _note(self, uid: str, path: PeerPath | None) -> None:
        if path == self._changed.get(uid, self.paths.get(uid)):
            return
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._tell_paths)
        self._changed[uid] = path

    def _tell_paths(self) -> None:
        """What came together is told once."""
        before = self.paths
        changed = {uid: path for uid, path in self._changed.items() if path != before.get(uid)}
        self._changed = {}
        if not changed:
            return
        self.paths = alter(before, changed)
        for uid, path in changed.items():
            self._report(uid, before.get(uid), path)
        self._file.keep(self.paths)
        if self._running:
            self._tell(PathsChanged(frozenset(changed)))

    def _report(self, uid: str, before: PeerPath | None, now: PeerPath | None) -> None:
        entry = self._port.view.snapshot.nodes.get(uid)
        _log.info(
            "path to a peer",
            peer=entry.grant.name if entry is not None else uid,
            before=_words(before),
            now=_words(now),
        )

    # Measuring

    async def measure(self, uid: str) -> tuple[Measured, ...]:
        """Asks the peer once in every way there is, and waits for the answers.

        Raises: LimpetError if the node is none that is probed.
        """
        peer = self._peers.get(uid)
        if peer is None:
            raise LimpetError(
                f"probe {uid}: it is no peer of this node (removed, in no shared community, or not "
                "heard of; `limpet node list` in the cloud tells)"
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
