"""Pods of a node that are known to be gone, but are endpoints of Services; signed by the node.

Told among nodes only: the cloud has its own ways to hear of it, and this is for when it is away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from limpet.base.bounds.members import ABSENCE_BODY, ABSENT_ADDRESSES, SEQUENCE
from limpet.cluster.documents import Head, Kind
from limpet.cluster.kinds.fields import address_text, few, text, whole
from limpet.cluster.kinds.grant import GRANT, key_of_node


@dataclass(frozen=True, slots=True)
class Absence:
    """Pods of a node that are gone; the higher sequence counts."""

    uid: str
    sequence: int
    addresses: tuple[str, ...] = ()
    """Addresses of pods in their shortest form; whoever reads it takes those of the node's own
    segments only."""


def _parse(found: dict[str, Any]) -> Absence:
    addresses = few(found["addresses"], ABSENT_ADDRESSES)
    return Absence(
        text(found["uid"]),
        whole(found["sequence"], SEQUENCE.most),
        tuple(map(address_text, addresses)),
    )


ABSENCE = Kind(
    "absence",
    _parse,
    signers=lambda absence, known: key_of_node(absence.uid, known),
    head=lambda absence: Head(absence.uid, absence.sequence),
    under=GRANT.name,
    among_nodes=True,
    most_bytes=ABSENCE_BODY.most,
)
