"""diff_ports: what turns one table of port security into another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from limpet.datapath.node.ports.ruleset import OWN, UNCHECKED, WIDE
from limpet.datapath.node.ports.state import PortTable


@dataclass(frozen=True, slots=True)
class PutTable:
    """The whole, in one transaction; no frame meets neither the old nor the new one."""

    table: PortTable


@dataclass(frozen=True, slots=True)
class ChangeElements:
    """A change of sets of single addresses, in one transaction; `after`: what is there then."""

    gone: Mapping[str, frozenset[str]]
    come: Mapping[str, frozenset[str]]
    after: PortTable


Change = PutTable | ChangeElements


def diff_ports(want: PortTable, have: PortTable) -> list[Change]:
    """One change, or none."""
    if want == have:
        return []
    if want.frame != have.frame or any(want.held(x) != have.held(x) for x in WIDE.values()):
        return [PutTable(want)]
    names = [*OWN.values(), UNCHECKED]
    return [
        ChangeElements(
            _without(names, have, want),
            _without(names, want, have),
            want,
        )
    ]


def _without(names: Iterable[str], one: PortTable, other: PortTable) -> dict[str, frozenset[str]]:
    """What one has and the other has not."""
    found = {name: one.held(name) - other.held(name) for name in names}
    return {name: each for name, each in found.items() if each}
