"""The ways to the peers that are proven: kept, and told on when they have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from limpet.base.layered_map import alter
from limpet.cluster.topology.paths import PeerPath
from limpet.paths.path_file import PathFile

Changes = Mapping[str, tuple[PeerPath | None, PeerPath | None]]
"""By the peer's uid: what was, and what is now."""


class ProvenPaths:
    """Runs on the event loop's thread."""

    def __init__(self, file: Path, changed: Callable[[Changes], None]) -> None:
        self._file = PathFile(file)
        self._changed = changed
        self._coming: dict[str, PeerPath | None] = {}

    @property
    def now(self) -> Mapping[str, PeerPath]:
        """By the peer's uid; from the start those that were proven last. Another mapping after
        each change."""
        return self._file.paths

    def note(self, uid: str, path: PeerPath | None) -> None:
        """The peer is reached by `path`: told soon, with others'."""
        if path == self._coming.get(uid, self.now.get(uid)):
            return
        if not self._coming:
            asyncio.get_running_loop().call_soon(self.tell)
        self._coming[uid] = path

    def tell(self) -> None:
        """What came together is told once."""
        before, coming, self._coming = self.now, self._coming, {}
        changed = {uid: path for uid, path in coming.items() if path != before.get(uid)}
        if changed:
            self._file.keep(alter(before, changed))
            self._changed({uid: (before.get(uid), path) for uid, path in changed.items()})

    async def close(self) -> None:
        """What was proven is on the disk then."""
        self.tell()
        await self._file.close()
