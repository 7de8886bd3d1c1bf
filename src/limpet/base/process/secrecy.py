"""What a process of ours that dies leaves of its memory: nothing. Keys are in it."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from pathlib import Path

_PR_SET_DUMPABLE = 4
"""Source: prctl(2)."""
_DUMPED = Path("/proc/self/coredump_filter")
"""The kinds of memory that a dump has, a bit for each. Source: core(5)."""


def dump_nothing() -> None:
    """No core dump of this process, nor of the programs that it starts.

    The limit is inherited and holds for wireguard-go and strongSwan too, but a kernel that pipes
    dumps into a program passes over it. What is not dumpable is dumped into nothing, until it
    becomes another program, which is dumpable again. So no mapping is chosen to be dumped, which is
    inherited by both: what is piped of such a program has its registers, and none of its memory.
    Root still attaches a debugger. Memory is not locked: Python copies what it handles, so keys
    would be somewhere else all the same. Whoever has a node's swap on its disk has its key file
    beside it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # a kernel without dumps has no such file
        _DUMPED.write_text("0", encoding="ascii")  # only root's once the process is not dumpable
    set_process_option = getattr(ctypes.CDLL(None), "prctl", None)
    if set_process_option is not None:
        set_process_option(_PR_SET_DUMPABLE, 0, 0, 0, 0)
