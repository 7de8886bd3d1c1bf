"""One file in memory for parsers that read a file themselves."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def _descriptor(process: int) -> int:
    """Of each process its own: a fork would share it."""
    return os.memfd_create(f"fuzz-{process}")


def in_file(data: bytes) -> Path:
    """A file that holds `data` until the next call."""
    descriptor = _descriptor(os.getpid())
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, data, 0)
    return Path(f"/proc/self/fd/{descriptor}")
