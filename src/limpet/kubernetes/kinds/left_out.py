"""What of an object no node can use, in words for a person: a few, and each of them short."""

from __future__ import annotations

from limpet.base.bounds.servers import LEFT_OUT_VALUE
from limpet.base.bounds.words import LEFT_OUT
from limpet.base.text.escaping import shortened


class LeftOut:
    """Gathered while one object is read."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._count = 0

    def note(self, where: str, value: str | int | None, why: str) -> None:
        """`where`: as kubectl calls it, such as `ports[1].nodePort`."""
        self._count += 1
        if len(self._words) < LEFT_OUT.most:
            shown = repr(shortened(value, LEFT_OUT_VALUE.most)) if isinstance(value, str) else value
            self._words.append(f"{where}{'' if value is None else f' {shown}'}: {why}")

    @property
    def words(self) -> tuple[str, ...]:
        """The first; the last one says how many more there are."""
        more = self._count - len(self._words)
        return (*self._words, f"and {more} more") if more else tuple(self._words)
