"""What the C library keeps of memory that nobody uses."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # Source: mallopt(3).


def share_one_heap() -> None:
    """All threads take from one heap; each of their own would keep what is free there."""
    option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; musl has one heap
    if option is not None:
        option(_M_ARENA_MAX, 1)


def give_memory_back() -> None:
    """What C libraries have freed goes back to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
