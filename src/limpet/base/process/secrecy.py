"""What a process of ours that dies leaves of its memory: nothing. Keys are in it."""

from __future__ import annotations

import ctypes
import resource

_PR_SET_DUMPABLE = 4
"""Source: prctl(2)."""


def dump_nothing() -> None:
    """No core dump of this process, nor of the programs that it starts.

    The limit is inherited and holds for wireguard-go and strongSwan too, but a kernel that pipes
    dumps into a program passes over it; what is not dumpable is dumped into nothing. Root still
    attaches a debugger. Memory is not locked: Python copies what it handles, so keys would be
    somewhere else all the same. Whoever has a node's swap on its disk has its key file beside it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    set_process_option = getattr(ctypes.CDLL(None), "prctl", None)
    if set_process_option is not None:
        set_process_option(_PR_SET_DUMPABLE, 0, 0, 0, 0)
