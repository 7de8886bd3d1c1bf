"""By which way each peer is reached, proven with probes through the node's one UDP port."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from limpet.agent.courier import Courier, Received
from limpet.agent.membership import Membership, News
from limpet.agent.path_file import read_paths, write_paths
from limpet.kernel.raw_frames import RawFrames
from limpet.model.cluster import NodeEntry
from limpet.model.errors import KernelError, LimpetError, StorageError
from limpet.model.network import Address
from limpet.model.overlay import OwnSide, PeerPath, UnderlayLink
from limpet.model.probe import NONCE_BYTES, Answer, Ask, Probe, Trial
from limpet.plan.agenda import RATE_PER_S, Agenda
from limpet.plan.ladder import Ladder
from limpet.plan.overlay import View, may_talk, view_of
from limpet.plan.trials import Facts
from limpet.wire.courier import Codec, Kind
from limpet.wire.probe import encode_answer, encode_probe, parse_answer, parse_probe, udp_packet

_log = structlog.get_logger("probing")

_ANSWER_WITHIN_S = 3.0
"""An answer that comes later is none: it has been asked again since."""
_MEASURE_S = 1.0
_AT_ONCE = 16
"""Peers that are asked at once when something has changed; more are spread over time."""
_HEARD_EVERY_S = 1.0
_SAVE_AFTER_S = 1.0
_SAVE_AGAIN_S = 30.0


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
    heard_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Asked:
    uid: str
    trial: Trial
    sent_s: float
    answer: asyncio.Future[float] | None
    """Gets the round trip in seconds."""


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
        self.paths: Mapping[str, PeerPath] = read_paths(path_file)
        """By the peer's uid; from the start those that were proven last. Another mapping after
        each change."""
        self.counters: Counter[str] = Counter()
        """Probes by `asked_`, `answered_`, `refused_` and what was asked for, and `unproven`."""
        self._membership = membership
        self._courier = courier
        self._path_file = path_file
        self._on_change = on_change
        self._on_newer = on_newer
        identity = membership.identity
        self._codec = Codec(identity.private_key, identity.pinned_key)
        self._view = view_of(membership.snapshot, membership.uid, {}, OwnSide())
        self._links: dict[str, UnderlayLink] = {}
        self._ifnames: dict[int, str] = {}
        self._own: frozenset[Address] = frozenset()
        """Addresses of our links."""
        self._peers: dict[str, _Peer] = {}
        self._agenda = Agenda()
        self._asked: OrderedDict[bytes, _Asked] = OrderedDict()
        self._changed: dict[str, PeerPath | None] = {}
        self._frames: RawFrames | None = None
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._save_timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._saved: Mapping[str, PeerPath] = self.paths

    # Life

    def start(self) -> None:
        """In the network namespace of the calling thread; the courier listens."""
        try:
            self._frames = RawFrames()
        except KernelError as error:
            _log.warning("no plain routes to peers can be proven, VXLAN serves", error=str(error))
        self._courier.on(Kind.PROBE, self._probed)
        self._courier.on(Kind.ANSWER, self._answered)
        self._membership.subscribe(self._heard_news)
        self._running = True
        membership = self._membership
        self._view = view_of(membership.snapshot, membership.uid, {}, OwnSide(), before=self._view)
        known = sorted(membership.snapshot.nodes, key=lambda uid: uid not in self.paths)
        self._look(known)

    async def stop(self) -> None:
        """What was proven is on the disk then."""
        self._running = False
        for timer in (self._timer, self._save_timer):
            if timer is not None:
                timer.cancel()
        self._tell()
        if self._saving is not None:
            await self._saving
        if self._saved is not self.paths:
            await self._write()
        if self._frames is not None:
            self._frames.close()

    # What is known

    def set_links(self, links: tuple[UnderlayLink, ...]) -> None:
        """The links that lead to peers; when they are others, everything is asked anew."""
        found = {link.ifname: link for link in links}
        if found == self._links:
            return
        self._links = found
        self._ifnames = {link.ifindex: link.ifname for link in links}
        self._own = frozenset(address.ip for link in links for address in link.addresses)
        if self._running:
            self._look(sorted(self._peers, key=lambda uid: uid not in self.paths), anew=True)

    def _heard_news(self, news: News) -> None:
        if not self._running:
            return
        before = self._view
        membership = self._membership
        view = view_of(membership.snapshot, membership.uid, {}, OwnSide(), before=before)
        self._view = view
        uids = set(news.uids)
        if _ourselves(before) != _ourselves(view):
            uids |= view.snapshot.nodes.keys()
        elif before.segments is not view.segments:
            uids |= {
                uid
                for uid, segments in view.segments.items()
                if before.segments.get(uid) != segments
            }
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
        entry = self._view.snapshot.nodes.get(uid)
        peer = self._peers.get(uid)
        if entry is None or not self._may_talk(entry):
            if peer is not None:
                del self._peers[uid]
                self._agenda.drop(uid)
            if entry is not None and self._view.grant is not None:
                self._note(uid, None)
            return False
        if peer is None:
            peer = self._peers[uid] = _Peer(uid, Ladder(self.paths.get(uid)), Facts())
        peer.facts = self._facts(entry, peer)
        links = tuple(self._links.values())
        peer.ladder.settle(peer.facts, links, at_s=at_s, urgent=urgent)
        self._settle(peer)
        return True

    def _may_talk(self, entry: NodeEntry) -> bool:
        view = self._view
        if view.network is None or view.grant is None:
            return False
        return may_talk(view.network, view.grant, entry.grant)

    def _facts(self, entry: NodeEntry, peer: _Peer) -> Facts:
        presence, own = entry.presence, self._membership.presence
        versions = set(own.vtep_macs) if own is not None else set()
        theirs = {prefix.version for prefix in self._view.segments.get(entry.grant.uid, ())}
        addresses = presence.addresses if presence is not None else ()
        return Facts(
            addresses,
            (presence.port if presence is not None else 0) or self._courier.port,
            peer.heard if peer.heard is not None and peer.heard[0] not in addresses else None,
            tuple(version for version in self._view.sources if version in theirs),
            frozenset(versions if presence is None else versions & presence.vtep_macs.keys()),
        )

    # Asking

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._agenda.next_s(time.monotonic())
        if self._running and due_s < float("inf"):
            loop = asyncio.get_running_loop()
            # The loop's clock is the monotonic one, and its resolution is not perfect.
            self._timer = loop.call_later(max(due_s - time.monotonic(), 0.001), self._tick)

    def _tick(self) -> None:
        now_s = time.monotonic()
        while (found := self._agenda.take(now_s)) is not None:
            uid, vital = found
            peer = self._peers[uid]
            trials = peer.ladder.take_due(now_s, vital=vital, luck=random.random())
            for trial in trials:
                self._ask(uid, trial)
            self._agenda.spend(len(trials), now_s, vital=vital)
            self._settle(peer)
        while self._asked:
            nonce, oldest = next(iter(self._asked.items()))
            if oldest.sent_s > now_s - _ANSWER_WITHIN_S:
                break
            del self._asked[nonce]
        self._set_timer()

    def _ask(self, uid: str, trial: Trial, answer: asyncio.Future[float] | None = None) -> None:
        nonce = os.urandom(NONCE_BYTES)
        self._asked[nonce] = _Asked(uid, trial, time.monotonic(), answer)
        self.counters[f"asked_{trial.ask.name.lower()}"] += 1
        if trial.ask is Ask.OVERLAY:
            self._ask_over_link(uid, trial, nonce)
            return
        link = self._links.get(trial.device)
        self._courier.send(
            Kind.PROBE,
            encode_probe(Probe(nonce, trial.ask, self._sequence)),
            to_uid=uid,
            address=trial.address,
            port=trial.port,
            hop_limit=1 if link is not None else None,
            ifindex=link.ifindex if link is not None else None,
        )

    def _ask_over_link(self, uid: str, trial: Trial, nonce: bytes) -> None:
        """Past the node's routes, which do not lead there yet."""
        link, own = self._links.get(trial.device), self._view.sources.get(trial.version)
        theirs = self._overlay_address(uid, trial.version)
        if link is None or own is None or theirs is None or self._frames is None:
            return
        versions = (a.ip for a in link.addresses if a.version == trial.address.version)
        probe = Probe(nonce, trial.ask, self._sequence, answer_at=next(versions, None))
        data = self._codec.encode(Kind.PROBE, encode_probe(probe), to_uid=uid)
        packet = udp_packet(own, theirs, self._courier.port, trial.port, data)
        try:
            self._frames.send(link, trial.address, packet)
        except KernelError as error:  # it counts as not answered
            _log.debug("an overlay probe was not sent", error=str(error))

    @property
    def _sequence(self) -> int:
        presence = self._membership.presence
        return presence.sequence if presence is not None else 0

    def _overlay_address(self, uid: str, version: int) -> Address | None:
        segments = self._view.segments.get(uid, ())
        return next((prefix[1] for prefix in segments if prefix.version == version), None)

    # Answering

    def _probed(self, received: Received) -> None:
        """Raises: DatagramError."""
        probe = parse_probe(received.body)
        name = probe.ask.name.lower()
        entry = self._view.snapshot.nodes.get(received.uid)
        if entry is None or not self._may_talk(entry) or received.to_anybody:
            self.counters[f"refused_{name}"] += 1
            return
        address, hop_limit, ifindex = received.address, None, None
        if probe.ask is Ask.LINK:
            hop_limit, ifindex = 1, received.ifindex
            refused = received.hop_limit != 1
        elif probe.ask is Ask.OVERLAY:
            version = address.version
            refused = (
                probe.answer_at is None
                or address != self._overlay_address(received.uid, version)
                or received.to_address != self._view.sources.get(version)
            )
            address = probe.answer_at or address
        else:
            ifindex = received.ifindex if address.is_link_local else None
            refused = False
        if refused:
            self.counters[f"refused_{name}"] += 1
            return
        self.counters[f"answered_{name}"] += 1
        answer = Answer(
            probe.nonce, self._sequence, received.address, received.port, received.to_address
        )
        self._courier.send(
            Kind.ANSWER,
            encode_answer(answer),
            to_uid=received.uid,
            address=address,
            port=received.port,
            hop_limit=hop_limit,
            ifindex=ifindex,
        )
        if probe.ask is not Ask.OVERLAY:
            self._heard_from(received.uid, address, received.port)
        self._compare(entry, probe.sequence)

    def _heard_from(self, uid: str, address: Address, port: int) -> None:
        """It is there, and where: worth asking, if it was silent."""
        peer = self._peers.get(uid)
        if peer is None or address.is_link_local:
            return
        now_s = time.monotonic()
        if address in peer.facts.addresses or (address, port) == peer.facts.heard:
            peer.ladder.nudge(address, now_s)
            self._settle(peer)
        elif now_s >= peer.heard_s + _HEARD_EVERY_S:
            peer.heard, peer.heard_s = (address, port), now_s
            self._take_up(uid, now_s, urgent=True)
        self._set_timer()

    def _compare(self, entry: NodeEntry, sequence: int) -> None:
        if entry.presence is None or entry.presence.sequence < sequence:
            self._on_newer(entry.grant.uid)

    def _answered(self, received: Received) -> None:
        """Raises: DatagramError."""
        answer = parse_answer(received.body)
        asked = self._asked.get(answer.nonce)
        now_s = time.monotonic()
        if asked is None or asked.uid != received.uid or not self._proves(asked, answer, received):
            self.counters["unproven"] += 1
            return
        del self._asked[answer.nonce]
        rtt_s = now_s - asked.sent_s
        if asked.answer is not None and not asked.answer.done():
            asked.answer.set_result(rtt_s)
        peer = self._peers.get(asked.uid)
        if peer is None:
            return
        via = self._ifnames.get(received.ifindex, "")
        peer.ladder.answered(asked.trial, now_s, rtt_s=rtt_s, via=via, luck=random.random())
        self._settle(peer)
        self._set_timer()
        entry = self._view.snapshot.nodes.get(peer.uid)
        if entry is not None:
            self._compare(entry, answer.sequence)

    def _proves(self, asked: _Asked, answer: Answer, received: Received) -> bool:
        """Whether it came by the way that was asked for, and nothing translated an address."""
        trial = asked.trial
        if trial.ask is Ask.OVERLAY:
            return (
                answer.seen_from == self._view.sources.get(trial.version)
                and answer.arrived_at == self._overlay_address(asked.uid, trial.version)
            )  # fmt: skip
        if answer.seen_from not in self._own or answer.arrived_at != trial.address:
            return False
        if trial.ask is Ask.SITE:
            return True
        return received.hop_limit == 1 and self._ifnames.get(received.ifindex) == trial.device

    # What follows

    def _settle(self, peer: _Peer) -> None:
        """After anything that the ladder was told."""
        ladder = peer.ladder
        self._agenda.put(
            peer.uid, vital_s=ladder.due_s(vital=True), other_s=ladder.due_s(vital=False)
        )
        self._note(peer.uid, ladder.path)

    def _note(self, uid: str, path: PeerPath | None) -> None:
        if path == self._changed.get(uid, self.paths.get(uid)):
            return
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._tell)
        self._changed[uid] = path

    def _tell(self) -> None:
        changed = {uid: path for uid, path in self._changed.items() if path != self.paths.get(uid)}
        self._changed = {}
        if not changed:
            return
        for uid, path in changed.items():
            self._report(uid, self.paths.get(uid), path)
        paths = {**self.paths, **{uid: path for uid, path in changed.items() if path is not None}}
        for uid, path in changed.items():
            if path is None:
                paths.pop(uid, None)
        self.paths = paths
        if not self._running:
            return
        if self._save_timer is None:
            loop = asyncio.get_running_loop()
            self._save_timer = loop.call_later(_SAVE_AFTER_S, self._save)
        self._on_change(frozenset(changed))

    def _report(self, uid: str, before: PeerPath | None, now: PeerPath | None) -> None:
        entry = self._view.snapshot.nodes.get(uid)
        _log.info(
            "path to a peer",
            peer=entry.grant.name if entry is not None else uid,
            before=_words(before),
            now=_words(now),
        )

    def _save(self) -> None:
        self._save_timer = None
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._write())
        else:
            self._save_again(_SAVE_AFTER_S)

    def _save_again(self, delay_s: float) -> None:
        if self._running and self._save_timer is None:
            self._save_timer = asyncio.get_running_loop().call_later(delay_s, self._save)

    async def _write(self) -> None:
        paths = self.paths
        try:
            await asyncio.to_thread(write_paths, self._path_file, paths)
            self._saved = paths
        except StorageError as error:
            _log.warning("paths are not kept on the disk", error=str(error))
            self._save_again(_SAVE_AGAIN_S)

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
            self._ask(uid, trial, answer)
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
