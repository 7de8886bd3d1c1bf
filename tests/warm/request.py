"""What the launcher tells a warmed interpreter."""

from __future__ import annotations

import msgspec

MOST_BYTES = 128 << 10
FILES = 5
"""Descriptors beside it: stdin, stdout, stderr, a network namespace, where to tell of the process:
its pid, then its exit code (-N: signal N ended it)."""


class Request(msgspec.Struct):
    """Which program, and how it begins."""

    words: list[str]
    """After `limpet`."""
    environment: dict[str, str]
    folder: str
    new_session: bool
