"""Upstreams that answer, and in which order they are asked. Pure: time is passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from limpet.base.addresses import Address

_REST_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""After the first, second … failure in a row."""
LOOP_S = 300.0
"""For so long nobody is asked who has sent our own question back to us."""
PROBE_AGAIN_S = 10.0
"""Who fails may loop: it is looked at again, no sooner."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server that knows further names."""

    address: Address
    port: int = 53

    def __str__(self) -> str:
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        return str(self.address) if self.port == 53 else f"{host}:{self.port}"


class Health:
    """Health of one upstream."""

    def __init__(self) -> None:
        self.failures = 0
        """Failures in a row; 0: it answers."""
        self.rests_until_s = 0.0
        self.loops_until_s = 0.0
        self.probed_until_s = 0.0
        """Time before which nobody looks again whether it loops."""

    def failed(self, now_s: float) -> None:
        # Many questions fail at one time: they are one failure.
        if now_s >= self.rests_until_s:
            self.rests_until_s = now_s + _REST_S[min(self.failures, len(_REST_S) - 1)]
            self.failures += 1

    def answered(self) -> None:
        self.failures = 0
        self.rests_until_s = 0.0

    def state(self, now_s: float) -> str:
        """In words, for a person."""
        if now_s < self.loops_until_s:
            return "left out: it sends our questions back to us"
        if self.failures:
            return f"does not answer ({self.failures} times in a row)"
        return "used"

    def probed(self, now_s: float) -> None:
        self.probed_until_s = now_s + PROBE_AGAIN_S

    def looped(self, now_s: float) -> None:
        self.loops_until_s = now_s + LOOP_S


def in_order(healths: Sequence[Health], now_s: float) -> list[int]:
    """Numbers of those to ask: who answers, as written down; then who should by now; at last who
    rests, since a doubt is no reason to ask nobody. Never who loops."""
    able = [n for n, each in enumerate(healths) if now_s >= each.loops_until_s]
    return sorted(able, key=lambda n: (healths[n].rests_until_s > now_s, healths[n].failures > 0))
