"""When kinds of objects are listed again of which something had no room, or the list said none and
was not believed: others may be gone."""

from __future__ import annotations

from collections.abc import Callable

from limpet.base.timer import Timer

FIRST_S, LONGEST_S = 600.0, 3600.0
"""Twice as long each time that there is still no room, and up to twice that by chance: all nodes
are crowded by the same object, and would ask the API server in the same moment."""


class Crowding:
    """Runs on the event loop."""

    def __init__(
        self, noun: str, list_again: Callable[[str], None], random: Callable[[], float]
    ) -> None:
        """`list_again`: is told a kind. `random`: from 0 to below 1."""
        self._list = list_again
        self._random = random
        self._timer = Timer(noun, self._list_again)
        self._kinds: set[str] = set()
        """Kinds of which something was not kept, or believed, since they were listed last."""
        self._pause_s = FIRST_S

    def note(self, kind: str) -> None:
        """Something of it was not kept, or not believed."""
        self._kinds.add(kind)
        if not self._timer.is_set:
            self._timer.set_in(self._pause_s * (1 + self._random()))
            self._pause_s = min(self._pause_s * 2, LONGEST_S)

    def hear_list(self) -> None:
        """All of a kind was told; what had no room was noted before."""
        if not self._kinds:
            self._pause_s = FIRST_S

    def stop(self) -> None:
        self._timer.stop()

    def _list_again(self) -> None:
        kinds, self._kinds = self._kinds, set()
        for kind in sorted(kinds):
            self._list(kind)
