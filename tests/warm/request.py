"""What the launcher tells a warmed interpreter."""

from __future__ import annotations

import msgspec

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x20000000,
    0x40000000,
)
"""Source: linux/sched.h."""
MOST_BYTES = 128 << 10
FILES = 9
"""At most so many descriptors beside it: stdin, stdout, stderr, its namespaces, and where to tell
of the process: its pid, then its exit code (-N: signal N ended it)."""


class Request(msgspec.Struct):
    """Which program, and how it begins."""

    words: list[str]
    """After `limpet`."""
    environment: dict[str, str]
    folder: str
    new_session: bool
    namespaces: list[int]
    """Kinds of those beside it, as setns(2) has them (CLONE_NEW…)."""
