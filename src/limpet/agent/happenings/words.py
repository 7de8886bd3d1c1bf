"""What is said of what has changed: before, now -> happenings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from limpet.picture.said import Level
from limpet.picture.timeline import Happening


@dataclass(frozen=True, slots=True)
class Who:
    """A node."""

    uid: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Rung:
    """How a peer is reached, as far as it is told; two that are equal are no news."""

    name: str = "none"
    relay: str = ""
    """Name."""

    def __str__(self) -> str:
        return f"{self.name} by {self.relay}" if self.relay else self.name


def path_changed(here: Who, peer: Who, was: Rung, now: Rung) -> Happening:
    return Happening(
        kind="path",
        words=f"the way to {peer.name} is {now}, was {was}",
        level=Level.WARN if now.name == "none" else Level.NOTE,
        node=here.uid,
        peer=peer.uid,
        names=(here.name, peer.name),
        was=str(was),
        became=str(now),
    )


def silent_changed(here: Who, peer: Who, *, silent: bool) -> Happening:
    words = "answers by no way" if silent else "answers again"
    return Happening(
        kind="peer",
        words=f"{peer.name} {words}",
        level=Level.WARN if silent else Level.OK,
        node=here.uid,
        peer=peer.uid,
        names=(here.name, peer.name),
        was="answers" if silent else "silent",
        became="silent" if silent else "answers",
    )


def node_joined(here: Who, peer: Who) -> Happening:
    return Happening(
        kind="membership",
        words=f"{peer.name} joined the cluster",
        node=here.uid,
        peer=peer.uid,
        names=(here.name, peer.name),
        became="member",
    )


def node_removed(here: Who, peer: Who) -> Happening:
    return Happening(
        kind="membership",
        words=f"{peer.name} was removed from the cluster",
        level=Level.WARN,
        node=here.uid,
        peer=peer.uid,
        names=(here.name, peer.name),
        was="member",
        became="removed",
    )


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing of which the last state counts."""

    kind: str
    what: str
    """Names it among those of its kind; the entry begins with it."""
    state: str
    """In words; empty: all is well, or it is not there."""
    level: Level = Level.WARN
    """Level of a state that is not empty."""
    well: str = "is well again"
    """Words for the empty state."""
    mark: str | None = None
    """While it stays, another state is no news; None: the state itself."""

    @property
    def news(self) -> str:
        return self.state if self.mark is None else self.mark


def differences(here: Who, before: Mapping[str, Fact], now: Iterable[Fact]) -> Iterator[Happening]:
    """`before`: by kind and name (`by_name`); a fact that was not there had the empty state."""
    found = by_name(now)
    for name, fact in found.items():
        was = before.get(name, Fact(fact.kind, fact.what, ""))
        if fact.news != was.news:
            yield _happening(here, fact, was.state)
    for name, fact in before.items():
        if name not in found and fact.state:
            yield _happening(here, Fact(fact.kind, fact.what, "", well=fact.well), fact.state)


def by_name(facts: Iterable[Fact]) -> dict[str, Fact]:
    return {f"{each.kind} {each.what}": each for each in facts}


def _happening(here: Who, fact: Fact, was: str) -> Happening:
    words = f"{fact.what}: {fact.state}" if fact.state else f"{fact.what} {fact.well}"
    return Happening(
        kind=fact.kind,
        words=words,
        level=fact.level if fact.state else Level.OK,
        node=here.uid,
        names=(here.name,) if here.name else (),
        was=was,
        became=fact.state,
    )
