"""Chains that are as Services and the node's pods need them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from limpet.datapath.services.ruleset import surroundings_text
from limpet.datapath.services.state import VERSIONS, Elements, Surroundings

_MOST_UNUSED = 64
"""Chains that are kept although nothing leads there: the same may be needed again."""
_AFFINE = tuple(f"{name}{version}" for name in ("sticky", "sticky_ports") for version in VERSIONS)
"""Maps of Services that remember who asked."""


class Chains:
    """Those that elements of the table lead to: each as long as it is used, and a while after."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        """By name."""
        self._uses: Counter[str] = Counter()
        """Elements that lead there."""

    def used(self, names: Iterable[str]) -> None:
        """By so many more elements."""
        self._uses.update(names)

    def left(self, names: Iterable[str]) -> None:
        """By so many elements less."""
        self._uses.subtract(names)

    def forget(self) -> None:
        """Those that nothing leads to, when they are most of all."""
        unused = [name for name in self.texts if self._uses[name] <= 0]
        if len(unused) > max(_MOST_UNUSED, len(self.texts) // 2):
            for name in unused:
                del self.texts[name]
        self._uses = +self._uses


class Leaving:
    """What follows from the node's pods, and what packets go through that were translated."""

    def __init__(self) -> None:
        self._around = Surroundings()
        self._texts: dict[tuple[bool, frozenset[bytes]], str] = {}
        """By whether Services remember who asked, and addresses of API servers."""

    def put(self, around: Surroundings) -> None:
        self._around = around
        self._texts.clear()

    def text(self, elements: Elements, servers: frozenset[bytes] = frozenset()) -> str:
        """`servers`: addresses of API servers, packed."""
        key = is_affine, _ = any(elements[name] for name in _AFFINE), servers
        if key not in self._texts:
            self._texts.clear()
            self._texts[key] = surroundings_text(self._around, servers, is_affine=is_affine)
        return self._texts[key]
