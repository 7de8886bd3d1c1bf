"""How much room the disks of a process's folders have: before a write fails there is an alert."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import Metric

from limpet.base.metrics.figures import Figure, Figures, Values

ROOM_ON_DISK = (
    Figure(
        "disk_free_bytes",
        "bytes",
        "what is free on the disk of a folder, without what the file system keeps for root",
        ("folder",),
    ),
    Figure("disk_size_bytes", "bytes", "size of that disk's file system", ("folder",)),
    Figure(
        "disk_free_files",
        "files",
        "how many more files it can hold; not there where a file system has no limit of them",
        ("folder",),
    ),
)


def room_on_disk(figures: Figures, folders: Mapping[str, Path]) -> Iterator[Metric]:
    """`folders`: by what they are called. Of one that is not made yet: of where it will be; of one
    that cannot be looked at nothing is told."""
    free: dict[tuple[str, ...], float] = {}
    size: dict[tuple[str, ...], float] = {}
    files: dict[tuple[str, ...], float] = {}
    for name, folder in folders.items():
        try:
            found = os.statvfs(_nearest(folder))
        except OSError:
            continue
        free[name,] = found.f_bavail * found.f_frsize
        size[name,] = found.f_blocks * found.f_frsize
        if found.f_files:
            files[name,] = found.f_favail
    told: tuple[tuple[str, Values], ...] = (
        ("disk_free_bytes", free),
        ("disk_size_bytes", size),
        ("disk_free_files", files),
    )
    for name, values in told:
        yield figures.make(name, values)


def _nearest(folder: Path) -> Path:
    """The folder, or the lowest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
