"""How large a packet a tunnelled way carries: asked with padded probes of likely sizes. Pure.

All sizes are asked at once, so that one round trip tells; what got no answer is asked twice more.
Now and then the size that is known and the next larger one are asked again, and all of them when
that tells something new. Where the way may be another one, by which the same peer answers, that is
done as soon as there is traffic: small packets pass, and nobody says that large ones do not.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZES_BYTES = (1500, 1492, 1460, 1420, 1400, 1380, 1340, 1280)
"""Sizes of whole IP packets: Ethernet, PPPoE, tunnels between, mobile networks, least of IPv6."""
LEAST_BYTES = SIZES_BYTES[-1]
"""Taken where nothing is known: what is sent is small enough, and larger ones are told so."""
_ROUNDS = 3
AGAIN_S = 600.0
"""Pause between searches, while the way stays the same."""
_RETRY_S, _SLOWEST_RETRY_S = 1.0, 60.0
"""Pauses after a search without answers: mostly the way was silent just then, whatever the size."""


@dataclass(slots=True)
class SizeSearch:
    """Search for the largest packet of one way. It is asked only while the way answers."""

    next_s: float
    known_bytes: int = 0
    """The largest that is carried; 0: not known."""
    doubted: bool = False
    """The way may be another one since that was found; asked again once it matters."""
    _found_bytes: int = 0
    """The largest that was answered in this search."""
    _rounds: int = 0
    _silent: int = 0
    """Searches in a row that nothing answered."""
    _every: bool = False
    """All sizes are asked, although one is known."""

    def take_due(self, now_s: float, *, wait_s: float, stretch: float) -> tuple[int, ...]:
        """Sizes to ask now, largest first; they are overdue after `wait_s`."""
        if now_s < self.next_s:
            return ()
        if self._rounds == _ROUNDS or not self._open():
            self._end(now_s, stretch)
            if now_s < self.next_s:
                return ()
        self._rounds += 1
        self.next_s = now_s + wait_s
        return self._open()

    def answered(self, size_bytes: int, now_s: float) -> None:
        if 0 < self.known_bytes < size_bytes:
            self._rounds, self._every = 0, True  # still larger ones may be carried now
        self._found_bytes = max(self._found_bytes, size_bytes)
        self.known_bytes = max(self.known_bytes, size_bytes)
        if not self._open():
            self.next_s = now_s

    def begin(self, now_s: float) -> None:
        """The way may be another one: everything is asked."""
        self.next_s, self._found_bytes, self._rounds, self._every = now_s, 0, 0, True

    def confirm(self, now_s: float) -> None:
        """What is doubted is asked now."""
        if self.doubted:
            self.doubted = False
            self.next_s, self._found_bytes, self._rounds = now_s, 0, 0

    def _open(self) -> tuple[int, ...]:
        sizes: tuple[int, ...] = SIZES_BYTES
        if self.known_bytes and not self._every:
            sizes = tuple(size for size in sizes if size >= self.known_bytes)[-2:]
        return tuple(size for size in sizes if size > self._found_bytes)

    def _end(self, now_s: float, stretch: float) -> None:
        found, self._rounds = self._found_bytes, 0
        if not self._every and found != self.known_bytes:
            self._every, self.next_s = True, now_s
            return
        self.known_bytes, self._found_bytes, self._every = found, 0, False
        self._silent = 0 if found else min(self._silent + 1, 10)
        retry_s = min(_RETRY_S * 2.0 ** (self._silent - 1), _SLOWEST_RETRY_S)
        self.next_s = now_s + (AGAIN_S if found else retry_s) * stretch


def search_of(mtu_bytes: int, at_s: float, stretch: float, *, holds: bool) -> SizeSearch:
    """Search on a way that carried so much. `holds`: it does until it matters; else it is asked
    from `at_s` on.

    The least may be what was taken while nothing was known, and is always asked.
    """
    if mtu_bytes <= LEAST_BYTES:
        return SizeSearch(at_s)
    return SizeSearch(at_s + AGAIN_S * stretch if holds else at_s, mtu_bytes, doubted=True)
