"""What the programs of a world said last, for a person who reads why a test failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from limpet.lab.world.node import LabNode
from limpet.lab.world.world import World

_CHARACTERS = 4000
"""Of each program, from its end."""


def last_words(given: Iterable[object]) -> Iterator[tuple[str, str]]:
    """Title and text for each program of the worlds and nodes among what a test was given."""
    for node in dict.fromkeys(_nodes(given)):
        try:
            said = node.log()
        except OSError:  # it was never started, or is no more
            continue
        process = node.agent.pid
        title = f"{node.name}, {'which has ended' if process is None else f'process {process}'}"
        yield title, said[-_CHARACTERS:]


def _nodes(given: Iterable[object]) -> Iterator[LabNode]:
    for each in given:
        match each:
            case World():
                yield from each.machines.values()
            case LabNode():
                yield each
            case tuple():
                yield from _nodes(each)
