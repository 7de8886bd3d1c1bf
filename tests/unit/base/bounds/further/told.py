"""Of what a node tells itself: no more than those take to whom it does."""

from __future__ import annotations

import msgspec

from limpet.agent.answers.picture.reporting import chosen
from limpet.agent.answers.picture.ways import WaySeen
from limpet.base.bounds import members
from limpet.cloud.requests import _batches
from limpet.cluster.documents import Sealed
from limpet.cluster.kinds.pods import LabelledPod, with_as_many_as_are_taken
from limpet.cluster.membership import _OF_A_DOCUMENT_BYTES, _as_many_as_fit
from tests.unit.base.bounds.probes import probe


@probe(members.REPORTED_PAIRS)
def _paths(amount: int) -> bool:
    """All of them are in trouble."""
    seen = WaySeen(is_allowed=True, is_reached=False, here=None, told=None, has_told=False)
    return len(chosen({f"u{number}": seen for number in range(amount)}, {}, ())) == amount


@probe(members.TOLD_PODS)
def _pods(amount: int) -> bool:
    told = [LabelledPod("s", f"p{number}", (), {}) for number in range(amount)]
    return len(_as_many_as_fit(told)) == amount


@probe(members.TOLD_POD_ADDRESSES)
def _addresses(amount: int) -> bool:
    pod = LabelledPod("s", "p", tuple(f"10.0.0.{number}" for number in range(amount)), {})
    return with_as_many_as_are_taken(pod, ()) == pod


@probe(members.TOLD_PODS_BODY)
def _pod_with_large_labels(amount: int) -> bool:
    empty = LabelledPod("s", "p", (), {"x": ""})
    beside = _OF_A_DOCUMENT_BYTES + len(msgspec.json.encode(empty)) + 1
    return len(_as_many_as_fit([LabelledPod("s", "p", (), {"x": "y" * (amount - beside)})])) == 1


@probe(members.SHOWN_DOCUMENTS)
def _shown(amount: int) -> bool:
    documents = [Sealed("presence", b"", b"")] * amount
    return len(next(_batches(documents))) == amount
