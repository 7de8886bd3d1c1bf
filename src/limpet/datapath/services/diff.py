"""The ordered changes that bring the table of Services to what was planned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from limpet.datapath.services.state import Elements, ServicesState, StaleFlows


@dataclass(frozen=True, slots=True)
class PutTable:
    """The whole in place of whatever is there; elements that are there already stay in force
    meanwhile."""

    base: str
    surroundings: str
    chains: Mapping[str, str]
    elements: Elements


@dataclass(frozen=True, slots=True)
class PutSurroundings:
    text: str


@dataclass(frozen=True, slots=True)
class AddChains:
    chains: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PutElements:
    """By name of the map: keys that go, and elements that come; a changed value is both."""

    delete: Mapping[str, Sequence[bytes]]
    add: Mapping[str, Sequence[tuple[bytes, bytes]]]

    @property
    def count(self) -> int:
        return sum(map(len, self.delete.values())) + sum(map(len, self.add.values()))


@dataclass(frozen=True, slots=True)
class DropChains:
    """Nothing leads there any more."""

    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class ForgetFlows:
    flows: StaleFlows


Change = PutTable | PutSurroundings | AddChains | PutElements | DropChains | ForgetFlows


def diff_services(
    want: ServicesState,
    have: ServicesState,
    *,
    touched: Mapping[str, Collection[bytes]] | None,
    stale: StaleFlows,
) -> list[Change]:
    """`touched`: keys by map that may differ, no others do; None: any may."""
    changes: list[Change] = []
    if have.base != want.base:
        changes.append(PutTable(want.base, want.surroundings, dict(want.chains), want.elements))
        have = want
    else:
        missing = {name: text for name, text in want.chains.items() if name not in have.chains}
        if missing:
            changes.append(AddChains(missing))
        if have.surroundings != want.surroundings:
            changes.append(PutSurroundings(want.surroundings))
    elements = diff_elements(want.elements, have.elements, touched)
    if elements.count:
        changes.append(elements)
    unused = [name for name in have.chains if name not in want.chains]
    if unused:
        changes.append(DropChains(unused))
    if stale:
        changes.append(ForgetFlows(stale))
    return changes


def diff_elements(
    want: Elements, have: Elements, touched: Mapping[str, Collection[bytes]] | None
) -> PutElements:
    delete: dict[str, list[bytes]] = {}
    add: dict[str, list[tuple[bytes, bytes]]] = {}
    for name, wanted in want.items():
        held = have.get(name, {})
        keys = wanted.keys() | held.keys() if touched is None else touched.get(name, ())
        for key in keys:
            old, new = held.get(key), wanted.get(key)
            if old == new:
                continue
            if old is not None:
                delete.setdefault(name, []).append(key)
            if new is not None:
                add.setdefault(name, []).append((key, new))
    return PutElements(delete, add)
