"""The ordered changes that bring the programs' maps to what was planned, and attach them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from limpet.datapath.services.diff import PutElements, diff_elements
from limpet.datapath.services.state import Elements, StaleFlows


@dataclass(frozen=True, slots=True)
class PutSocketElements:
    """A change of elements of the programs' maps."""

    elements: PutElements


@dataclass(frozen=True, slots=True)
class AttachPrograms:
    """All programs are attached, after the maps have what they look up."""

    why: str


@dataclass(frozen=True, slots=True)
class EndSockets:
    """Ends UDP sockets connected to who serves no more, and TCP ones that nobody has answered yet
    and nobody will."""

    flows: StaleFlows


SocketChange = PutSocketElements | AttachPrograms | EndSockets


def diff_sockets(
    want: Elements,
    have: Elements,
    *,
    touched: Mapping[str, Collection[bytes]] | None,
    damage: str,
    stale: StaleFlows,
) -> list[SocketChange]:
    """`touched`: as for `diff_services`. `damage`: why to attach; empty: they are attached."""
    changes: list[SocketChange] = []
    elements = diff_elements(want, have, touched)
    if elements.count:
        changes.append(PutSocketElements(elements))
    if damage:
        changes.append(AttachPrograms(damage))
    if stale.udp or stale.dead:
        changes.append(EndSockets(stale))
    return changes
