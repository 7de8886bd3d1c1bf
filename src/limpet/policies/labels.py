"""Labels, and selectors of them. Source: k8s.io/apimachinery/pkg/apis/meta/v1, LabelSelector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Labels = Mapping[str, str]
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]

NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
"""Every namespace has it, with its own name. Source: KEP-2161."""
_WIDE = 16
"""Weight of a demand that is not for certain values of a label."""


@dataclass(frozen=True, slots=True)
class Expression:
    """One demand on one label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def holds(self, labels: Labels) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":  # also where the label is not there
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


@dataclass(frozen=True, slots=True)
class Selector:
    """All demands have to hold; an empty one selects everything."""

    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[Expression, ...] = ()

    @property
    def demands(self) -> int:
        """How much it asks of labels. What is not for certain values counts more: no label of a pod
        tells that the pod need not be compared with it. Each value of a list counts: pods are
        looked up by it."""
        wide = sum(each.operator != "In" for each in self.expressions)
        values = sum(max(1, len(each.values)) for each in self.expressions)
        return len(self.labels) + values + (_WIDE - 1) * wide

    def selects(self, labels: Labels) -> bool:
        return all(labels.get(key) == value for key, value in self.labels) and all(
            expression.holds(labels) for expression in self.expressions
        )

    def __str__(self) -> str:
        """As kubectl writes it."""
        words = [f"{key}={value}" for key, value in self.labels]
        for each in self.expressions:
            values = f"({','.join(sorted(each.values))})"
            words.append(
                {
                    "In": f"{each.key} in {values}",
                    "NotIn": f"{each.key} notin {values}",
                    "Exists": each.key,
                    "DoesNotExist": f"!{each.key}",
                }[each.operator]
            )
        return ",".join(words) or "all"
