"""Whether this machine's wall clock is kept by a time server, and a clock that nobody sets."""

from __future__ import annotations

import ctypes
import time

_TIME_ERROR = 5
"""Source: adjtimex(2): the clock is not synchronised to a reliable server."""
_TIMEX_BYTES = 256
"""Larger than `struct timex` on any machine; all zero, it asks and sets nothing."""


def passed_s() -> float:
    """Since the machine's start: never set, and counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_kept() -> bool:
    """As the kernel was told by chrony, ntpd or systemd-timesyncd. False also where no kernel says
    so: a clock that nobody vouches for."""
    try:
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return False
    return 0 <= state < _TIME_ERROR
