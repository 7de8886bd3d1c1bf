"""The table of port security as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PortTable:
    """What should be; as an observation, what is."""

    frame: str = ""
    """The table in nft's syntax without elements; empty: there is none. As an observation, the
    planned one where the kernel has just that."""
    elements: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By name of the set, as nft lists them but for quotes."""

    def held(self, name: str) -> frozenset[str]:
        return self.elements.get(name, frozenset())
