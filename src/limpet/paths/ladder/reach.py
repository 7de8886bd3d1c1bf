"""Peers that answer, and how far away those are. Pure."""

from __future__ import annotations

import math

from limpet.paths.ladder.ladder import Ladder
from limpet.paths.ladder.silence import is_doubted, round_trip_class

_LOOK_EVERY_S = 10.0
"""How often a peer's round trip may be taken for another."""


class PeerReach:
    """Reach of all peers that are probed, by uid."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        """Who answers by no way at present."""
        self.round_trips: dict[str, int] = {}
        """Classes (`ladder.silence`), of those whose round trip was measured."""
        self.doubted_s = -math.inf
        """When somebody came into doubt last."""
        self._doubted: set[str] = set()
        self._looked_s: dict[str, float] = {}
        self._is_new = False

    def note(self, uid: str, ladder: Ladder, now_s: float) -> bool:
        """Whether this is the first that is new since `take`."""
        was_new = self._is_new
        silent = ladder.is_silent
        if silent is not (uid in self.silent):
            (self.silent.add if silent else self.silent.discard)(uid)
            self._is_new = True
        doubted = is_doubted(ladder.choice())
        if doubted is not (uid in self._doubted):
            (self._doubted.add if doubted else self._doubted.discard)(uid)
            if doubted:
                self.doubted_s = now_s
                self._is_new = True
        if now_s >= self._looked_s.get(uid, -math.inf) + _LOOK_EVERY_S:
            self._note_round_trip(uid, ladder.round_trip_s, now_s)
        return self._is_new and not was_new

    def take(self) -> None:
        """Whoever has to know is told now of all that is new."""
        self._is_new = False

    def _note_round_trip(self, uid: str, rtt_s: float, now_s: float) -> None:
        if not rtt_s:
            return
        self._looked_s[uid] = now_s
        before = self.round_trips.get(uid)
        now = round_trip_class(rtt_s, before)
        if now != before:
            self.round_trips[uid] = now
            self._is_new = True

    def path_changed(self, uid: str) -> None:
        """What was measured was of another path."""
        self._looked_s.pop(uid, None)

    def drop(self, uid: str) -> None:
        """It is no peer any more, which is told by other ways."""
        self._looked_s.pop(uid, None)
        self.round_trips.pop(uid, None)
        self.silent.discard(uid)
        self._doubted.discard(uid)
