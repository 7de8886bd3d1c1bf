"""Label selectors: `site=harbour,tier!=edge` <-> values. Pure.

Source: Kubernetes' equality-based requirements; `key!=value` holds for who has no such label too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from limpet.base.bounds.administrators import SELECTOR
from limpet.base.errors import LimpetError
from limpet.cluster.api import label_key_problem

_REQUIREMENT = re.compile(r"([^=!]*)(!=|==|=)(.*)", re.DOTALL)


class SelectorError(LimpetError):
    """Text that is no selector."""


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    value: str
    is_equal: bool
    """False: the label is anything else, or is not there."""

    def __str__(self) -> str:
        return f"{self.key}{'=' if self.is_equal else '!='}{self.value}"


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Chooses nodes by their labels: those that meet every requirement."""

    requirements: tuple[Requirement, ...]
    """At least one, none twice."""

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(
            (labels.get(each.key) == each.value) is each.is_equal for each in self.requirements
        )


def parse_selector(text: str) -> NodeSelector:
    """Raises: SelectorError for what is none, or can't choose any node."""
    if len(text) > SELECTOR.most:
        raise SelectorError(
            f"read selector: it has {len(text)} characters, more than {SELECTOR.most}"
        )
    found = dict.fromkeys(_requirement(part.strip(), text) for part in text.split(","))
    equal: dict[str, str] = {}
    for each in found:
        if each.is_equal and equal.setdefault(each.key, each.value) != each.value:
            raise _error(text, f"no node has both {each} and {each.key}={equal[each.key]}")
    for each in found:
        if not each.is_equal and equal.get(each.key) == each.value:
            raise _error(text, f"no node has both {each} and {each.key}={each.value}")
    return NodeSelector(tuple(found))


def _requirement(part: str, text: str) -> Requirement:
    matched = _REQUIREMENT.fullmatch(part)
    if matched is None:
        raise _error(text, f"{part!r} is neither KEY=VALUE nor KEY!=VALUE")
    key, verb, value = matched[1].strip(), matched[2], matched[3].strip()
    if problem := label_key_problem(key):
        raise _error(text, f"key {key!r}: {problem}")
    if not value:
        raise _error(text, f"{part!r} has no value")
    if value[0] == "=" or not value.isprintable():
        raise _error(text, f"{value!r} is no value of a label that can be chosen by")
    return Requirement(key, value, verb != "!=")


def _error(text: str, cause: str) -> SelectorError:
    return SelectorError(
        f"read selector {text!r}: {cause} (such as site=harbour,tier!=edge, all of which must hold)"
    )
