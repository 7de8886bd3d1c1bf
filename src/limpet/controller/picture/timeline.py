"""The controller's timeline: what became of nodes, and what people did."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from limpet.base.text.escaping import shortened
from limpet.controller.state.happenings import Happening
from limpet.picture import timeline as shown
from limpet.picture.said import Level
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
        kind = _KINDS.get(happening.reason, "node")
        self.recorder.note(
            shown.Happening(
                kind=kind,
                words=f"{happening.node}: {shortened(happening.message, _WORDS)}",
                level=Level.WARN if happening.is_warning else Level.NOTE,
                names=(happening.node,),
                became=happening.reason,
            )
        )

    def done(self, verb: str, arguments: Mapping[str, Any], who: str) -> None:
        """What a person did. What is a secret is in no argument of a verb."""
        if verb not in CHANGING or (verb == "recovery" and not any(arguments.values())):
            return
        node = arguments.get("node")
        self.recorder.note(
            shown.Happening(
                kind="person",
                words=shortened(f"{verb.replace('.', ' ')}{_said(arguments)}", _WORDS),
                names=(node,) if isinstance(node, str) else (),
                who=who,
            )
        )


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
