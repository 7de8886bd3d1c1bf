"""A row of the table: a list of moments, each what is in force and what passes then."""

from __future__ import annotations

from dataclasses import dataclass

from tests.beds.policies.policy_bed import Protocol
from tests.beds.policies.policy_matrix import PODS, Situation


@dataclass(frozen=True)
class Ask:
    """What is tried: everything passes but what `shut` names, and of this what `but` names does.

    They say `SOURCE > TARGET`: each is `*`, a namespace, a pod, or several of these with commas
    between them; `!` before it means all others.
    """

    shut: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    protocol: Protocol = "TCP"
    port: int = 80
    sources: tuple[str, ...] = tuple(PODS)
    targets: tuple[str, ...] = tuple(PODS)

    def is_open(self, source: str, target: str) -> bool:
        shut = any(_is_meant(each, source, target) for each in self.shut)
        return not shut or any(_is_meant(each, source, target) for each in self.but)


def _is_meant(text: str, source: str, target: str) -> bool:
    one, _, other = text.partition(" > ")
    return _is_among(one, source) and _is_among(other, target)


def _is_among(words: str, name: str) -> bool:
    if words.startswith("!"):
        return not _is_among(words[1:], name)
    return words == "*" or any(word in (name, name.partition("/")[0]) for word in words.split(","))


@dataclass(frozen=True)
class Moment:
    now: Situation
    asks: tuple[Ask, ...]


@dataclass(frozen=True)
class Row:
    name: str
    moments: tuple[Moment, ...]
