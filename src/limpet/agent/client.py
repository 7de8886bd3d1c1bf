"""Asking the agent, from a person's shell."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from limpet.base.decoding import convert
from limpet.base.errors import AgentUnavailable, LimpetError, NotAllowedError, why_no_answer
from limpet.base.process.programs import peer_pid
from limpet.cni import frames as shim

_ANSWER_TIMEOUT_S = 60.0


Kind = TypeVar("Kind", bound=Struct)


def ask(socket_path: Path, verb: str, kind: type[Kind], **arguments: Any) -> Kind:
    """The agent's answer to an admin verb, as `agent.status` types it.

    Raises: AgentUnavailable; AnotherVersion; LimpetError with the agent's words on failure.
    """
    return typed(call(socket_path, verb, **arguments), kind)


def typed(
    document: Mapping[str, Any], kind: type[Kind], *, of: str = "the agent that runs"
) -> Kind:
    """`of`: who says it. Raises: AnotherVersion."""
    try:
        return convert(document, kind)
    except msgspec.ValidationError as error:
        raise AnotherVersion(f"{of} is older or newer than this command: {error}") from error


class AnotherVersion(LimpetError):
    """Who answers does not say what this version's does."""


def agent_pid(socket_path: Path) -> int:
    """The agent's process as it is numbered here: one in a container is another by its own count.

    0: it is not seen from here. Raises: AgentUnavailable, NotAllowedError.
    """
    with _connection(socket_path) as connection:
        return peer_pid(connection)


@contextlib.contextmanager
def _connection(socket_path: Path) -> Iterator[socket.socket]:
    """Raises: AgentUnavailable when nobody answers, NotAllowedError."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            connection.connect(str(socket_path))
            yield connection
    except PermissionError as error:
        raise NotAllowedError(
            f"ask the agent at {socket_path}: {why_no_answer(error, 'limpet-agent')}"
        ) from error
    except OSError as error:
        raise AgentUnavailable(
            f"ask the agent at {socket_path}: {why_no_answer(error, 'limpet-agent')}"
        ) from error


def call(socket_path: Path, verb: str, **arguments: Any) -> dict[str, Any]:
    """The agent's answer to an admin verb.

    Raises: AgentUnavailable when nobody answers; LimpetError with the agent's words on failure.
    """
    request = shim.encode_admin_call(shim.AdminCall(verb, arguments))
    with _connection(socket_path) as connection:
        connection.sendall(request)
        received = bytearray()
        while chunk := connection.recv(1 << 16):
            received += chunk
    header = shim.ANSWER_HEADER_BYTES
    cut_off = AgentUnavailable(f"ask the agent at {socket_path}: it went away while it answered")
    if len(received) < header:
        raise cut_off
    exit_code, length = shim.decode_answer_header(bytes(received[:header]))
    if len(received) != header + length:
        raise cut_off
    document: dict[str, Any] = json.loads(received[header:])
    if exit_code:
        raise LimpetError(str(document.get("error", "the agent failed without a word")))
    return document
