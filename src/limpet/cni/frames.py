"""Frames between the shim (shim/limpet.c), or a person's command, and the agent.

    request   4 bytes "LMP1", u32 length of the rest, u8 kind, u8 attempt, then
                kind C: the CNI_* variables as KEY=VALUE NUL, one more NUL, stdin as it came
                kind A: a JSON object with "verb"
    answer    4 bytes "LMP1", u32 exit code, u32 length, that many bytes (kind C: for stdout)

Integers are little endian. One request per connection; the agent closes it after the answer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from limpet.base.bounds.tenants import CNI_REQUEST, CNI_STDIN
from limpet.base.decoding import decode_plain_json
from limpet.base.errors import LimpetError

REQUEST_HEADER_BYTES = 8
ANSWER_HEADER_BYTES = 12
MAX_REQUEST_BYTES = CNI_REQUEST.most
"""Size of a whole request, header included."""
MAX_STDIN_BYTES = CNI_STDIN.most
MAX_ANSWER_BYTES = 1 << 20
"""Size of an answer's body: what the shim takes. An answer to an admin request may be longer."""

_MAGIC = b"LMP1"
_REQUEST = struct.Struct("<4sI")
_ANSWER = struct.Struct("<4sII")
_SHORTEST_REST = 2


class FrameError(LimpetError):
    """Bytes that are no frame of ours."""


@dataclass(frozen=True, slots=True)
class CniCall:
    """What the shim was called with; `attempt` counts the agents that went away over it."""

    environ: Mapping[str, str]
    """Bytes that are not UTF-8 as surrogates, as os.environ has them."""
    stdin: bytes
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class AdminCall:
    """A command of a person: `verb` and its arguments."""

    verb: str
    args: Mapping[str, Any]


def encode_admin_call(call: AdminCall) -> bytes:
    """The whole request frame. Raises: FrameError if it is too long."""
    rest = b"A\0" + msgspec.json.encode({**call.args, "verb": call.verb})
    if REQUEST_HEADER_BYTES + len(rest) > MAX_REQUEST_BYTES:
        raise FrameError(f"encode request: {len(rest)} bytes are more than {MAX_REQUEST_BYTES}")
    return _REQUEST.pack(_MAGIC, len(rest)) + rest


def request_length(header: bytes) -> int:
    """How many bytes follow the REQUEST_HEADER_BYTES of a request. Raises: FrameError."""
    if len(header) != REQUEST_HEADER_BYTES:
        raise FrameError(f"request: header of {len(header)} bytes")
    magic, length = _REQUEST.unpack(header)
    if magic != _MAGIC:
        raise FrameError(f"request: begins with {magic!r}, not with {_MAGIC!r}")
    if not _SHORTEST_REST <= length <= MAX_REQUEST_BYTES - REQUEST_HEADER_BYTES:
        raise FrameError(f"request: length {length} is not within 2 to {MAX_REQUEST_BYTES}")
    return int(length)


def decode_request(rest: bytes) -> CniCall | AdminCall:
    """The request whose header announced exactly `rest`. Raises: FrameError."""
    if len(rest) < _SHORTEST_REST:
        raise FrameError(f"request: cut off after {len(rest)} bytes")
    kind, attempt, body = rest[:1], rest[1], rest[2:]
    if kind == b"C":
        return _decode_cni_call(body, attempt)
    if kind == b"A":
        return _decode_admin_call(body)
    raise FrameError(f"request: unknown kind {kind!r}")


def _decode_cni_call(body: bytes, attempt: int) -> CniCall:
    if body.startswith(b"\0"):
        variables, stdin = b"", body[1:]
    else:
        variables, end, stdin = body.partition(b"\0\0")
        if not end:
            raise FrameError("request: the variables do not end")
    if len(stdin) > MAX_STDIN_BYTES:
        raise FrameError(f"request: stdin of {len(stdin)} bytes is more than {MAX_STDIN_BYTES}")
    environ = {}
    for variable in variables.split(b"\0") if variables else []:
        key, equals, value = variable.decode("utf-8", "surrogateescape").partition("=")
        if not equals or not key.startswith("CNI_"):
            raise FrameError(f"request: {variable[:40]!r} is not a CNI variable")
        environ[key] = value
    return CniCall(environ, stdin, attempt)


def _decode_admin_call(body: bytes) -> AdminCall:
    try:
        given = decode_plain_json(body)
    except msgspec.MsgspecError as error:
        raise FrameError(f"admin request: {error}") from None
    verb = given.pop("verb", None) if isinstance(given, dict) else None
    if not isinstance(verb, str):
        raise FrameError("admin request: not an object with a verb")
    return AdminCall(verb, given)


def encode_answer(exit_code: int, body: bytes) -> bytes:
    """The whole answer frame."""
    return _ANSWER.pack(_MAGIC, exit_code, len(body)) + body


def decode_answer_header(header: bytes) -> tuple[int, int]:
    """Exit code and length of the body that follows. Raises: FrameError."""
    if len(header) != ANSWER_HEADER_BYTES:
        raise FrameError(f"answer: header of {len(header)} bytes")
    magic, exit_code, length = _ANSWER.unpack(header)
    if magic != _MAGIC:
        raise FrameError(f"answer: begins with {magic!r}, not with {_MAGIC!r}")
    return exit_code, length
