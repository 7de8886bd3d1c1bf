"""Probes of what members send."""

from __future__ import annotations

from typing import Any

from limpet.base.bounds.members import ABSENT_ADDRESSES, TOLD_PODS
from limpet.cluster.documents import Kind
from limpet.cluster.kinds import ABSENCE, PODS
from tests.unit.bounds.probes import probe


def _is_read(kind: Kind[Any], body: dict[str, Any]) -> bool:
    try:
        kind.parse(body)
    except ValueError:
        return False
    return True


@probe(ABSENT_ADDRESSES)
def _(amount: int) -> bool:
    addresses = [f"10.0.{number >> 8}.{number & 255}" for number in range(amount)]
    return _is_read(ABSENCE, {"uid": "a", "sequence": 1, "addresses": addresses})


@probe(TOLD_PODS)
def _(amount: int) -> bool:
    pods = [
        {"namespace": "default", "name": f"p{number}", "addresses": ["10.0.0.1"], "labels": {}}
        for number in range(amount)
    ]
    return _is_read(PODS, {"uid": "a", "part": 0, "sequence": 1, "pods": pods})
