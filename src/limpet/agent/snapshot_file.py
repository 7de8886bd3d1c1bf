"""The snapshot on disk: a log of sealed documents, fsynced, begun anew when it has grown."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

from limpet.model.cluster import NodeEntry, Sealed, Snapshot


class SnapshotFile:
    """Written by a thread of its own, many documents with one fdatasync."""

    def __init__(self, path: Path) -> None:
        raise NotImplementedError

    def read(self, pinned_key: bytes) -> tuple[Snapshot, list[str]]:
        """What it holds, and what of it is damaged, in words."""
        raise NotImplementedError

    def put(self, network: Sealed | None, entries: Iterable[NodeEntry]) -> Future[None]:
        """Done when they are on disk; a failure is kept, and tried again. Raises nothing."""
        raise NotImplementedError

    def durable(self) -> Future[None]:
        """Done when all that was put is on disk; StorageError when it can't be."""
        raise NotImplementedError

    @property
    def trouble(self) -> str:
        """Why it cannot be written now; empty: it can."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
