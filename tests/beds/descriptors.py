"""A process that has about as many descriptors open as it may."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def room_for_descriptors(count: int) -> Iterator[None]:
    """So many more can be opened within the block, 0 or 1."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest: all below it are taken
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
