"""What the controller has to say to nodes whose agents watch its feed, for people there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

_MOST = 10
"""Sentences for one node: more of them say nothing more."""


class NodeWords:
    """By the names of nodes. For one event loop."""

    def __init__(self) -> None:
        self._words: Mapping[str, tuple[str, ...]] = {}
        self._changed = asyncio.Event()

    def put(self, words: Mapping[str, Sequence[str]]) -> None:
        """All that there is to say now."""
        found = {name: tuple(each[:_MOST]) for name, each in words.items() if each}
        if found != self._words:
            self._words = found
            self._changed.set()
            self._changed = asyncio.Event()

    async def follow(self, name: str) -> AsyncIterator[tuple[str, ...]]:
        """What is said of the node: at first if there is anything, then each time it changes."""
        told: tuple[str, ...] = ()
        while True:
            changed = self._changed
            now = self._words.get(name, ())
            if now != told:
                told = now
                yield told
            else:
                await changed.wait()
