"""How long a pod's interface stays away that is deleted again and again. Pure."""

from __future__ import annotations

_PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Until it may be made anew once more, when it was so many times in a row."""
_IN_A_ROW_S = 60.0
"""One that has stayed for so long is made at once again."""


class InterfacePauses:
    """A pod may delete its interface itself, as fast as it is made, and each time costs the node a
    round."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[int, float]] = {}
        """By name: how many times in a row, and when last."""

    def left_s(self, ifname: str, now_s: float) -> float:
        """Until it may be made anew; 0: now."""
        times, made_s = self._made.get(ifname, (0, now_s))
        if not times:
            return 0.0
        return max(made_s + _PAUSES_S[min(times, len(_PAUSES_S)) - 1] - now_s, 0.0)

    def note(self, ifname: str, now_s: float) -> int:
        """It was made anew; how many times in a row by now."""
        self._made = {
            each: made for each, made in self._made.items() if now_s - made[1] < _IN_A_ROW_S
        }
        times, _ = self._made.get(ifname, (0, now_s))
        self._made[ifname] = times + 1, now_s
        return times + 1
