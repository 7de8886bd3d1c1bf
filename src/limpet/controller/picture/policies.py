"""The cluster's policies in words, as its documents have them. Pure.

Which pods they select only nodes know: those tell each other of labels, and the controller nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from limpet.cluster.kinds.policy import SignedPolicy
from limpet.picture.pair import PolicyOnPair
from limpet.picture.workloads import Policy
from limpet.policies.compiled import DIRECTIONS
from limpet.policies.parse import PolicyError, parse_policy
from limpet.policies.said.words import policy_words

MOST_POLICIES = 500
_MOST_ON_PAIR = 64
_PREFIX = "NetworkPolicy/"
NO_POLICIES = (
    "the cluster was given no policy (`limpet policy apply` beside the controller); those that "
    "Kubernetes has, or that were given to one node, that node's own page shows"
)


class PolicyPage:
    """Each document is read once, however often somebody looks."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[Any, Policy]] = {}

    def of(self, signed: Iterable[SignedPolicy]) -> tuple[Policy, ...]:
        """All policies in force, by name; withdrawn ones and namespaces are passed over."""
        before, self._read = self._read, {}
        for each in signed:
            if each.name.startswith(_PREFIX) and each.document is not None:
                known = before.get(each.name)
                if known is None or known[0] is not each.document:
                    known = each.document, _in_words(each.name, each.document)
                self._read[each.name] = known
        return tuple(self._read[name][1] for name in sorted(self._read))


def _in_words(name: str, document: Mapping[str, Any]) -> Policy:
    name = name.removeprefix(_PREFIX)
    try:
        policy = parse_policy(document)
    except PolicyError as error:
        return Policy(name=name, trouble=f"{error} (what it could allow is closed)")
    return Policy(
        name=name,
        directions=tuple(each for each in DIRECTIONS if each in policy.directions),
        words=policy_words(policy),
    )


def policies_on_pair(
    policies: tuple[Policy, ...],
) -> tuple[tuple[PolicyOnPair, ...], tuple[str, ...]]:
    """And in words what is not known of them here."""
    if not policies:
        return (), (NO_POLICIES,)
    found = tuple(
        PolicyOnPair(name=each.name, direction=" and ".join(each.directions), words=each.words)
        for each in policies[:_MOST_ON_PAIR]
    )
    more = len(policies) - len(found)
    words = (
        "these policies hold on both nodes; whether they select pods there only the nodes know: "
        "their own pages tell it of this pair"
    )
    return found, (words + (f" ({more} more are not shown)" if more else ""),)
