"""The controller's timeline: what became of nodes, and what people did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from limpet.base.text.escaping import shortened
from limpet.controller.state.happenings import Happening
from limpet.picture import timeline as shown
from limpet.picture.said import Level
from limpet.timeline.limits import UNPROVEN
from limpet.timeline.recorder import Recorder, moment_now, read_boot

CHANGING = frozenset(
    {
        *("token.create", "token.remove", "rotate-key"),
        *("node.remove", "node.replace", "node.label", "node.set"),
        *("community.create", "community.add", "community.take-out", "community.dissolve"),
        *("network.set", "policy.apply", "policy.delete", "recovery"),
    }
)
"""Verbs by which a person changes something."""
_KINDS = {"Joined": "membership", "Removed": "membership", "SegmentsGranted": "segment"}
_WORDS = 300
_NODES = ("node", "nodes")
"""Arguments of a verb that name what it is done to."""
_MOST_NAMES = 16
"""Nodes of one act that an entry is found by."""


class ClusterTimeline:
    """For one event loop."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: None: it is kept as long as the process runs."""
        self.recorder = Recorder(folder, partial(moment_now, read_boot()))

    def start(self) -> None:
        self.recorder.start()

    async def stop(self) -> None:
        await self.recorder.stop()

    def tell(self, happening: Happening) -> None:
        """Notes what happened to a node."""
        kind = UNPROVEN if happening.is_claimed else _KINDS.get(happening.reason, "node")
        self.recorder.note(
            shown.Happening(
                kind=kind,
                words=f"{happening.node}: {shortened(happening.message, _WORDS)}",
                level=Level.WARN if happening.is_warning else Level.NOTE,
                names=(happening.node,),
                became=happening.reason,
            )
        )

    def done(
        self, verb: str, arguments: Mapping[str, Any], who: str, name_of: Callable[[str], str]
    ) -> None:
        """What a person did. What is a secret is in no argument of a verb.

        `name_of`: the name of a node by its uid, by which a page names it; empty: there is none.
        """
        if verb not in CHANGING or (verb == "recovery" and not any(arguments.values())):
            return
        nodes = tuple(_nodes(arguments))
        told = {**arguments, **_with_names(arguments, name_of)}
        self.recorder.note(
            shown.Happening(
                kind="person",
                words=shortened(f"{verb.replace('.', ' ')}{_said(told)}", _WORDS),
                names=tuple(name_of(each) or each for each in nodes[:_MOST_NAMES]),
                who=who,
            )
        )


def _nodes(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Nodes that it was done to, as they were named: by name or uid."""
    for key in _NODES:
        said = arguments.get(key)
        if isinstance(said, str):
            yield said
        elif isinstance(said, list | tuple):
            yield from said


def _with_names(arguments: Mapping[str, Any], name_of: Callable[[str], str]) -> dict[str, Any]:
    """These nodes as a person reads them: `crane-1 (UID)` for one that was named by its uid."""

    def told(said: str) -> str:
        return f"{name} ({said})" if (name := name_of(said)) else said

    nodes = {key: arguments[key] for key in _NODES if arguments.get(key)}
    return {
        key: told(said) if isinstance(said, str) else [told(each) for each in said]
        for key, said in nodes.items()
    }


def _said(arguments: Mapping[str, Any]) -> str:
    found = []
    for key, value in arguments.items():
        if isinstance(value, list | tuple | set | frozenset):
            plain = all(isinstance(each, str) for each in value)
            words = " ".join(sorted(value)) if plain else f"{len(value)} documents"
        elif isinstance(value, Mapping):
            words = " ".join(f"{name}={each}" for name, each in value.items())
        else:
            words = "" if value in (None, False, "") else str(value)
        if words:
            found.append(f" {key} {words}")
    return ":" + ",".join(found) if found else ""
