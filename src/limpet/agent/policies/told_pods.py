"""Pods that nodes have told of, as one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from limpet.policies.policy import Key, PolicyPod

_Pods = Mapping[Key, PolicyPod]


class ToldPods:
    """What other nodes tell, by the name of the document; a change costs what the document holds.

    As long as two documents tell of one name, as while a pod moves, each change costs all.
    """

    def __init__(self) -> None:
        self._documents: dict[str, _Pods] = {}
        self._merged: dict[Key, PolicyPod] | None = {}
        """All of them; None: they are to be merged anew."""
        self._has_twins = False

    def put(self, document: str, pods: _Pods) -> None:
        """In place of what it told before; none: it is gone."""
        before = self._documents.pop(document, {})
        if pods:
            self._documents[document] = pods
        if self._merged is None or self._has_twins:
            self._merged = None
            return
        for key in before:
            del self._merged[key]
        if self._merged.keys().isdisjoint(pods):
            self._merged.update(pods)
        else:
            self._merged = None

    def with_own(self, own: _Pods) -> dict[Key, PolicyPod]:
        """All pods, this node's own among them: see `pods_of_all`."""
        if self._merged is None:
            self._merged, self._has_twins = _merge(self._documents)
        if self._merged.keys().isdisjoint(own):
            return {**own, **self._merged}
        return pods_of_all({"": own, **self._documents})


def pods_of_all(told: Mapping[str, _Pods]) -> dict[Key, PolicyPod]:
    """All pods that nodes have told, by the name of the document, as one; this node's own, by the
    empty name, keep theirs. Of two nodes that tell of one name each has its pod: a node that names
    another's pod takes nothing from it."""
    return _merge(told)[0]


def _merge(told: Mapping[str, _Pods]) -> tuple[dict[Key, PolicyPod], bool]:
    """Also whether two tell of one name."""
    found: dict[Key, PolicyPod] = {}
    has_twins = False
    for document in sorted(told):
        pods = told[document]
        twins = found.keys() & pods.keys()
        has_twins = has_twins or bool(twins)
        found |= {key: pod for key, pod in pods.items() if key not in twins} if twins else pods
        for key in twins:
            other = Key(key.namespace, f"{key.name}@{document.partition('/')[0]}")
            found[other] = replace(pods[key], key=other)
    return found, has_twins
