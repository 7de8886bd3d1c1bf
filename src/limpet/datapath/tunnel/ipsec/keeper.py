"""Keeps peers' SAs as `plan.tend` says, in a thread of its own that the daemon's events wake."""

from __future__ import annotations

import errno
import math
import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from limpet.base.addresses import Prefix
from limpet.base.errors import KernelError
from limpet.datapath.tunnel.ipsec.codec import MORE, WHOLE
from limpet.datapath.tunnel.ipsec.daemon import IpsecDaemon
from limpet.datapath.tunnel.ipsec.plan import cared_for, next_look_s, tend
from limpet.datapath.tunnel.ipsec.state import (
    Care,
    EndChild,
    EndIke,
    IkeSa,
    Initiate,
    IpsecAction,
    IpsecPeer,
)
from limpet.datapath.tunnel.ipsec.vici import ViciEvents

_AFTER_FAILURE_S = 1.0
_CHECK_S = 2.0
"""How often the daemon is asked whether it answers, when nothing else is asked."""
_DYING_S, _DYING_EVERY_S = 2.0, 0.05
"""A daemon that is killed closes its connections first, and listens until it is gone."""
_LATE_S = 60.0
"""For so long after a peer was dropped SAs with it are ended that were being begun just then."""
_REST = 4
"""The pause after a look at all SAs is this many times as long as the look took."""


class IpsecKeeper:
    """Works from `start` to `stop`, also when the daemon is started again meanwhile."""

    def __init__(self, daemon: IpsecDaemon) -> None:
        """`daemon`: used by nobody else."""
        self._daemon = daemon
        self._lock = threading.Lock()
        self._cares: dict[bytes, Care] = {}
        self._dropped_s: dict[bytes, float] = {}
        """By peer, when (monotonic s)."""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.problem = ""
        """Why the last look failed; empty: it did not."""
        self.without_s: Mapping[bytes, float] = {}
        """Peers without an SA that carries packets, and since when (monotonic s)."""

    def start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="ipsec", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """The tunnels stay as they are."""
        self._stopping = True
        if self._thread is not None:
            self._look_soon()
            self._thread.join()
        os.close(self._wake)
        self._daemon.close()

    def set_port(self, port: int) -> None:
        self._daemon.port = port

    def put(self, peer: IpsecPeer, *, first: bool) -> None:
        """Takes a new or changed peer, whose connection is loaded; `first`: this end initiates."""
        with self._lock:
            care = self._cares.get(peer.public_key)
            self._dropped_s.pop(peer.public_key, None)
            self._cares[peer.public_key] = cared_for(
                care, peer, first=first, now_s=time.monotonic()
            )
        self._look_soon()

    def hurry(self, public_key: bytes) -> None:
        """Tries to bring the peer's tunnel up now, if it is not."""
        with self._lock:
            care = self._cares.get(public_key)
            if care is not None:
                self._cares[public_key] = replace(care, tries=0, due_s=0.0)
        self._look_soon()

    def keep(self, peers: Mapping[bytes, tuple[IpsecPeer, bool]]) -> None:
        """Takes all peers, each with whether this end initiates; known ones stay as they are."""
        now_s = time.monotonic()
        with self._lock:
            known = self._cares
            self._cares = {
                key: known[key] if key in known else cared_for(None, peer, first=first, now_s=now_s)
                for key, (peer, first) in peers.items()
            }
            same = self._cares.keys() == known.keys()
        if not same:
            self._look_soon()

    def drop(self, public_key: bytes) -> None:
        """Looks after the peer's SAs no more; `end_late` has to follow when they are ended."""
        with self._lock:
            self._cares.pop(public_key, None)

    def end_late(self, public_key: bytes) -> None:
        """Ends those of a dropped peer, too, that this thread was just beginning."""
        with self._lock:
            self._dropped_s[public_key] = time.monotonic()
        self._look_soon()

    def rest(self) -> None:
        """The daemon is ended, and its SAs with it: there is nothing to look after."""
        with self._lock:
            self._cares, self._dropped_s = {}, {}
        self._look_soon()

    def _look_soon(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        events: ViciEvents | None = None
        due_s: float | None = None
        dies_until_s = 0.0
        while not self._stopping:
            checks = bool(self._cares) or self._daemon.process.silent_since_s is not None
            waits_s = _CHECK_S if checks else None
            if due_s is not None:
                waits_s = min(max(0.0, due_s - time.monotonic()), _CHECK_S)
            if dies_until_s:
                waits_s = _DYING_EVERY_S
            try:
                told = [self._wake] if events is None else [self._wake, events.fileno()]
                ready = _ready(told, waits_s)
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                if events is not None and events.fileno() in ready and not events.drain():
                    events.close()
                    events, dies_until_s = None, time.monotonic() + _DYING_S
                if dies_until_s:
                    if time.monotonic() > dies_until_s:
                        dies_until_s = 0.0
                    if self._daemon.clear_if_dead():
                        dies_until_s = 0.0
                if checks:
                    self._daemon.check()
                    self._daemon.process.cut_log()
                with self._lock:
                    self._dropped_s = _of_late(self._dropped_s, time.monotonic())
                    idle = not self._cares and not self._dropped_s
                if idle:
                    due_s, self.problem, self.without_s = None, "", {}
                    continue
                if not ready and (due_s is None or due_s > time.monotonic()):
                    continue
                if events is None:
                    events = ViciEvents(self._daemon.process)
                began_s = time.monotonic()
                due_s = self._look()
                took_s = time.monotonic() - began_s
                time.sleep(min(took_s * _REST, 1.0))
                self.problem = ""
            except KernelError as error:
                if not self.problem:
                    dies_until_s = time.monotonic() + _DYING_S
                self.problem = str(error)
                due_s = time.monotonic() + _AFTER_FAILURE_S
            except Exception as error:  # noqa: BLE001 - without this thread nobody would tend it
                self.problem = f"internal error: {error!r}"
                due_s = time.monotonic() + _AFTER_FAILURE_S
                time.sleep(_AFTER_FAILURE_S)  # it may be the waiting that fails
        if events is not None:
            events.close()

    def _look(self) -> float | None:
        """Does what is due; returns when to look again without an event (monotonic s), or None."""
        found: defaultdict[bytes, list[IkeSa]] = defaultdict(list)
        for sa in self._daemon.sas():
            found[sa.public_key].append(sa)
        now_s = time.monotonic()
        with self._lock:
            cares = dict(self._cares)
            dropped = list(self._dropped_s)
        for sa in (sa for key in dropped for sa in found.pop(key, [])):
            try:
                self._daemon.end_ike(sa.uniqueid, at_once=True)
            except KernelError as error:
                if error.errno != errno.EPROTO:
                    raise  # else it has ended by itself
        self.without_s = {
            key: self.without_s.get(key, now_s)
            for key in cares
            if not any(sa.established and sa.children for sa in found[key])
        }
        looks = []
        failures = []
        for key, care in cares.items():
            after, actions = tend(care, found[key], now_s)
            with self._lock:
                if self._cares.get(key) is care:
                    self._cares[key] = after
            for action in actions:
                try:
                    self._do(after, action)
                except KernelError as error:
                    failures.append(error)
            looks.append(next_look_s(after, found[key], now_s))
        if failures:
            raise failures[0]
        return min((look for look in looks if look is not None), default=None)

    def _do(self, care: Care, action: IpsecAction) -> None:
        match action:
            case Initiate(prefixes=prefixes):
                self._initiate(care.peer, prefixes)
            case EndIke(uniqueid):
                self._daemon.end_ike(uniqueid)
            case EndChild(uniqueid):
                self._daemon.end_child(uniqueid)

    def _initiate(self, peer: IpsecPeer, prefixes: frozenset[Prefix]) -> None:
        if not prefixes:
            self._daemon.initiate(peer, WHOLE)
            return
        try:
            self._daemon.put(peer, prefixes)
            self._daemon.initiate(peer, MORE)
        finally:
            self._load_newest(peer)

    def _load_newest(self, peer: IpsecPeer) -> None:
        """Loads the connection so that the peer may initiate for all of its prefixes again: those
        of the newest plan, which a round may have loaded in the midst of what was done here.
        """
        loaded: IpsecPeer | None = None
        while True:
            with self._lock:
                care = self._cares.get(peer.public_key)
            if care is None or care.peer.generation != peer.generation:
                self._daemon.forget(peer)
                return
            if care.peer == loaded:
                return
            loaded = care.peer
            self._daemon.put(loaded)


def _ready(descriptors: Iterable[int], within_s: float | None) -> set[int]:
    """By poll(2): select(2) refuses a descriptor from 1024 on, and an agent that is a relay by TLS
    has more of them open."""
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return {each for each, _ in poll.poll(None if within_s is None else math.ceil(within_s * 1e3))}


def _of_late(dropped_s: Mapping[bytes, float], now_s: float) -> dict[bytes, float]:
    return {key: at_s for key, at_s in dropped_s.items() if now_s - at_s < _LATE_S}
