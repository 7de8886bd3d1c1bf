"""What a pod is asked to try, and what it tells of it: values, and their text. Pure.

A pod tells by its termination message, which each kubelet hands on with the pod's status: so
nothing has to reach the pod, nor the kubelet, but the nodes that are tried.
"""

from __future__ import annotations

import base64
import json
import zlib
from enum import StrEnum

import msgspec
from msgspec import Struct

from limpet.base.bounds.tenants import PROBER_ANSWER
from limpet.base.decoding import decode_json
from limpet.base.errors import LimpetError

ANSWER_PORT = 7479
"""Port of the pods that answer, UDP and TCP."""
DENIED_PORT = 7480
"""Port at which they answer too; where policies are tried, none of them allows it."""
OWN_PORT = 7481
"""Port of the pods that ask: each asks itself there, through a Service."""
MAX_MESSAGE_BYTES = 4096
"""Source: kubernetes.io, termination messages."""
_COMPRESSED = "z:"
"""Beginning of what a pod tells, compressed: of a thousand targets and more, each with an error."""
_WORDS = (200, 60, 20)
"""Characters of an error, the first that makes all of them fit."""


class TargetKind(StrEnum):
    """What is at the other end."""

    POD = "pod"
    """One of the test's own, which answers."""
    NODE = "node"
    """A node itself, by an address of it."""
    SERVICE = "service"
    """One of the test's own, by a cluster address, a node's port or its name."""
    HAIRPIN = "hairpin"
    """A Service whose only endpoint is the pod that asks."""
    DENIED = "denied"
    """A port of a pod that a policy lets nobody reach: it is well when nobody answers."""
    OUTSIDE = "outside"


class ConnectivityTarget(Struct, frozen=True):
    kind: TargetKind
    name: str
    """Name of the node, or what a person has said."""
    address: str
    """Address, or the name of a Service, which the pod has to resolve."""
    port: int = 0
    """TCP port of all but pods and nodes; 0: it answers pings."""


class Task(Struct, frozen=True):
    """What one pod is to try."""

    targets: tuple[ConnectivityTarget, ...]
    patience_s: float
    """For a first answer: of pods that have just started paths may be proven only now."""


class TargetOutcome(Struct, frozen=True, array_like=True):
    """Outcome of one target; what was not tried or did not come about is None."""

    error: str = ""
    """Empty: all of it worked."""
    rung: str = ""
    """By which way packets went, as the node's agent says; empty: not known."""
    rtt_ms: float | None = None
    packet_bytes: int | None = None
    """The largest packet that went there and back whole, with "do not fragment"."""
    tcp_ms: float | None = None
    """For 64 KiB there and back."""


def encode_task(task: Task) -> str:
    return msgspec.json.encode(task).decode()


def decode_task(text: str) -> Task:
    """Raises: LimpetError."""
    try:
        return decode_json(text, Task)
    except msgspec.MsgspecError as error:
        raise LimpetError(f"read task: {error}") from error


def encode_outcomes(outcomes: list[TargetOutcome]) -> str:
    """In at most `MAX_MESSAGE_BYTES`, with errors shortened if need be."""
    text = ""
    for most in _WORDS:
        short = [msgspec.structs.replace(each, error=each.error[:most]) for each in outcomes]
        data = json.dumps(
            msgspec.to_builtins(short), separators=(",", ":")
        ).encode()  # ASCII: it stands in a pod's log
        if len(data) <= MAX_MESSAGE_BYTES:
            return data.decode()
        text = _COMPRESSED + base64.b64encode(zlib.compress(data, 9)).decode()
        if len(text) <= MAX_MESSAGE_BYTES:
            return text
    return text


def decode_outcomes(text: str) -> list[TargetOutcome]:
    """Raises: LimpetError for what no pod of this version has said."""
    try:
        data = text.encode()
        if text.startswith(_COMPRESSED):
            packed = base64.b64decode(text.removeprefix(_COMPRESSED))
            data = zlib.decompressobj().decompress(packed, PROBER_ANSWER.most)
        return decode_json(data, list[TargetOutcome])
    except (msgspec.MsgspecError, ValueError, zlib.error) as error:
        raise LimpetError(f"read what the pod has told: {error}") from error
