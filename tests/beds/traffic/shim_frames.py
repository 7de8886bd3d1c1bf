"""Requests as the shim (shim/limpet.c) frames them, for tests that ask the agent without it."""

from __future__ import annotations

import struct

from limpet.cni.frames import CniCall


def cni_frame(call: CniCall) -> bytes:
    """The whole request."""
    variables = b"".join(
        f"{key}={value}".encode("utf-8", "surrogateescape") + b"\0"
        for key, value in call.environ.items()
    )
    rest = b"C" + bytes([call.attempt]) + variables + b"\0" + call.stdin
    return struct.pack("<4sI", b"LMP1", len(rest)) + rest
