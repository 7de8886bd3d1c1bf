"""By which way each peer is reached: kept from the last run, proven with probes, on the disk."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from limpet.agent.courier import Courier
from limpet.agent.membership import Membership, News
from limpet.agent.path_file import PathFile
from limpet.agent.probe_port import Heard, ProbePort, Proof
from limpet.model.altered import alter
from limpet.model.cluster import NodeEntry
from limpet.model.errors import LimpetError
from limpet.model.network import Address
from limpet.model.overlay import PeerPath, UnderlayLink
from limpet.model.probe import Ask, Trial
from limpet.plan.agenda import RATE_PER_S, Agenda, stretch_for
from limpet.plan.ladder import Ladder
from limpet.plan.overlay import View
from limpet.plan.trials import Facts, usable

_log = structlog.get_logger("probing")
T = TypeVar("T")

_MEASURE_S = 1.0
_AT_ONCE = 16
"""Peers that are asked at once when something has changed; more are spread over time."""
_HEARD_EVERY_S = 1.0
"""How often a peer may be taken up at another address that it writes from."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a probe of one kind found just now."""

    trial: Trial
    rtt_ms: float | None
    """None: no answer within a second."""
    in_use: bool
    """The path stands on what it asks for."""


@dataclass(slots=True, eq=False)
class _Peer:
    uid: str
    ladder: Ladder
    facts: Facts
    heard: tuple[Address, int] | None = None
    """Address and port that it wrote from, and that its presence did not name then."""
    heard_s: float = -math.inf


class Probing:
    """Runs on the event loop's thread."""

    def __init__(
        self,
        membership: Membership,
        courier: Courier,
        *,
        path_file: Path,
        on_change: Callable[[frozenset[str]], None],
        on_newer: Callable[[str], None] = lambda _uid: None,
    ) -> None:
        """`on_change`: paths to these peers are others now. `on_newer`: a peer has said that its
        presence is newer than what is known here.
        """
        self._file = PathFile(path_file)
        self.paths: Mapping[str, PeerPath] = self._file.paths
        """By the peer's uid; from the start those that were proven last. Another mapping after
        each change."""
        self._membership = membership
        self._courier = courier
        self._on_change = on_change
        self._on_newer = on_newer
        self._port = ProbePort(
            membership,
            courier,
            on_proof=self._proven,
            on_heard=self._heard_from,
            way_to=lambda uid: self.paths.get(uid),
        )
        self.ways: dict[str, PeerPath | None] = {}
        """By which peers have said that they reach us, by their uid."""
        self._links: tuple[UnderlayLink, ...] = ()
        self._peers: dict[str, _Peer] = {}
        self._agenda = Agenda()
        self._shared: dict[Any, Any] = {}
        self._changed: dict[str, PeerPath | None] = {}
        self._running = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def counters(self) -> Counter[str]:
        """Probes by `asked_`, `answered_`, `refused_` and what was asked for, and `unproven`."""
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
        if self._timer is not None:
            self._timer.cancel()
        self._tell()
        await self._file.close()
        self._port.close()

    # What is known

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        """The links that lead to peers; when they are others, everything is asked anew."""
        if links == self._links:
            return
        self._links = links
        self._port.set_links(links)
        if self._running:
            self._look(self._known_first(self._peers), anew=True)

    def _known_first(self, uids: Iterable[str]) -> list[str]:
        return sorted(uids, key=lambda uid: uid not in self.paths)

    def _heard_news(self, news: News) -> None:
        if not self._running:
            return
        before = self._port.view
        self._port.look()
        view = self._port.view
        uids = set(news.uids)
        if _ourselves(before) != _ourselves(view):
            uids |= view.snapshot.nodes.keys()
        elif before.segments is not view.segments:
            known = before.segments
            uids |= {uid for uid, found in view.segments.items() if known.get(uid) != found}
        self._look(uids, anew=True)

    def _look(self, uids: Iterable[str], *, anew: bool = False) -> None:
        """Takes up what is known of these peers: the first ones are asked at once."""
        now_s = time.monotonic()
        begun = 0
        for uid in uids:
            urgent = anew and begun < _AT_ONCE
            at_s = now_s if urgent else now_s + begun / RATE_PER_S
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
                del self._peers[uid]
                self.ways.pop(uid, None)
                self._agenda.drop(uid)
            if entry is not None and self._port.view.grant is not None:
                self._note(uid, None)
            return False
        if peer is None:
            peer = self._peers[uid] = _Peer(uid, Ladder(self.paths.get(uid)), Facts())
        peer.facts = self._facts(entry, peer)
        peer.ladder.settle(peer.facts, self._links, at_s=at_s, urgent=urgent)
        self._settle(peer)
        return True

    def _facts(self, entry: NodeEntry, peer: _Peer) -> Facts:
        presence, own = entry.presence, self._membership.presence
        devices = frozenset(own.vtep_macs if own is not None else ())
        theirs = {prefix.version for prefix in self._port.view.segments.get(peer.uid, ())}
        addresses = usable(presence.addresses) if presence is not None else ()
        return Facts(
            addresses,
            (presence.port if presence is not None else 0) or self._courier.port,
            peer.heard if peer.heard is not None and peer.heard[0] not in addresses else None,
            self._same(tuple(each for each in self._port.view.sources if each in theirs)),
            devices if presence is None else self._same(devices.intersection(presence.vtep_macs)),
        )

    def _same(self, value: T) -> T:
        """The object that others of thousands of peers have too."""
        shared: T = self._shared.setdefault(value, value)
        return shared

    # Asking

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = time.monotonic()
        due_s = self._agenda.next_s(now_s)
        if self._running and due_s < math.inf:
            # Never at once: others have their turn between.
            delay_s = max(due_s - now_s, 0.001)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        now_s = time.monotonic()
        while (found := self._agenda.take(now_s)) is not None:
            uid, vital = found
            peer = self._peers[uid]
            trials = peer.ladder.take_due(now_s, vital=vital, stretch=self._stretch())
            for trial in trials:
                self._port.ask(uid, trial)
            self._agenda.spend(len(trials), now_s, vital=vital)
            self._settle(peer)
        self._set_timer()

    def _stretch(self) -> float:
        return stretch_for(len(self.paths), random.random())

    # Hearing

    def _proven(self, proof: Proof) -> None:
        peer = self._peers.get(proof.uid)
        if peer is None:
            return
        peer.ladder.answered(
            proof.trial,
            time.monotonic(),
            rtt_s=proof.rtt_s,
            via=proof.via,
            stretch=self._stretch(),
        )
        self._settle(peer)
        if self.ways.get(proof.uid) != proof.way:
            self.ways[proof.uid] = proof.way
        self._set_timer()
        self._compare(proof.uid, proof.sequence)

    def _heard_from(self, heard: Heard) -> None:
        """It is there, and where: worth asking, if it was silent."""
        peer = self._peers.get(heard.uid)
        if peer is not None and heard.address is not None:
            now_s = time.monotonic()
            end = (heard.address, heard.port)
            if heard.address in peer.facts.addresses or end == peer.facts.heard:
                peer.ladder.nudge(heard.address, now_s)
                self._settle(peer)
            elif now_s >= peer.heard_s + _HEARD_EVERY_S:
                peer.heard, peer.heard_s = end, now_s
                self._take_up(heard.uid, now_s, urgent=True)
            self._set_timer()
        self._compare(heard.uid, heard.sequence)

    def _compare(self, uid: str, sequence: int) -> None:
        entry = self._port.view.snapshot.nodes.get(uid)
        if entry is not None and (
            entry.presence is None or entry.presence.sequence < sequence
        ):  # fmt: skip
            self._on_newer(uid)

    # What follows

    def _settle(self, peer: _Peer) -> None:
        """After anything that the ladder was told."""
        ladder = peer.ladder
        vital_s, other_s = ladder.due_s(vital=True), ladder.due_s(vital=False)
        self._agenda.put(peer.uid, vital_s=vital_s, other_s=other_s)
        self._note(peer.uid, ladder.path)

    def _note(self, uid: str, path: PeerPath | None) -> None:
        if path == self._changed.get(uid, self.paths.get(uid)):
            return
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._tell)
        self._changed[uid] = path

    def _tell(self) -> None:
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
            self._on_change(frozenset(changed))

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
        trials = peer.ladder.trials
        # An overlay probe needs the next hop's link-layer address, which the others find out.
        first = tuple(trial for trial in trials if trial.ask is not Ask.OVERLAY)
        then = tuple(trial for trial in trials if trial.ask is Ask.OVERLAY)
        rtts = {**await self._measure(uid, first), **await self._measure(uid, then)}
        return tuple(
            Measured(trial, rtts.get(trial), peer.ladder.stands_on(trial)) for trial in trials
        )

    async def _measure(self, uid: str, trials: tuple[Trial, ...]) -> dict[Trial, float]:
        """Round trips in ms of those that were answered."""
        loop = asyncio.get_running_loop()
        answers = {trial: loop.create_future() for trial in trials}
        for trial, answer in answers.items():
            self._port.ask(uid, trial, answer)
        if answers:
            await asyncio.wait(answers.values(), timeout=_MEASURE_S)
        return {trial: 1e3 * answer.result() for trial, answer in answers.items() if answer.done()}


def _ourselves(view: View) -> tuple[object, ...]:
    """What of this node decides what can be proven with any peer."""
    own = view.snapshot.nodes.get(view.uid)
    presence = own.presence if own is not None else None
    return (
        view.grant,
        view.network.default_community if view.network is not None else None,
        view.sources,
        presence.vtep_macs.keys() if presence is not None else None,
    )


def _words(path: PeerPath | None) -> str:
    if path is None:
        return "none"
    ends = path.next_hops or ((path.underlay,) if path.underlay is not None else ())
    return " ".join((path.rung.value, *map(str, ends), *([path.device] if path.device else [])))
