"""A command in a container, run through the API server, as `kubectl exec` does it.

Each message begins with a byte that says which stream it is of; the last one, of the error stream,
is a Status. Nothing is sent: the command has no input and no terminal.
Source: k8s.io/apimachinery/pkg/util/remotecommand, websocket subprotocols v4 and v5, which differ
in how input ends.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Sequence
from enum import IntEnum
from urllib.parse import urlencode

from limpet.base.bounds.servers import EXEC_MESSAGE
from limpet.base.decoding import decode_json
from limpet.base.http.connection import Connection, LinkError
from limpet.base.http.websocket import (
    MessageReader,
    Opcode,
    WebSocketMessage,
    accept_of,
    encode_frame,
)
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import Status
from limpet.kubernetes.pods import PODS, Pod

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_SWITCHED = 101
_KEY_BYTES, _MASK_BYTES = 16, 4


class ExecStream(IntEnum):
    """What a message is of."""

    STDOUT = 1
    STDERR = 2
    ERROR = 3


async def run_in_pod(
    client: Client,
    pod: Pod,
    container: str,
    command: Sequence[str],
    hear: Callable[[ExecStream, bytes], None],
    *,
    silence_s: float,
) -> int:
    """The command's exit code; `hear` gets what it writes, as it comes.

    Raises: StatusError where the API server refuses or does not get there; LinkError, also when
    the command writes nothing for `silence_s`.
    """
    name, namespace = pod.metadata.name, pod.metadata.namespace
    what = f"run {command[0]} in pod {namespace}/{name}"
    words = [("command", word) for word in command]
    query = urlencode([("container", container), ("stdout", "true"), ("stderr", "true"), *words])
    path = f"{PODS.path(name, namespace=namespace, sub='exec')}?{query}"
    key = base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
    headers = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key),
        ("Sec-WebSocket-Protocol", ", ".join(_PROTOCOLS)),
    ]
    connection, answer, said = await client.upgrade(path, headers)
    try:
        if answer.status != _SWITCHED:
            client.check(answer, PODS, what)
            raise ValueError(f"HTTP status {answer.status}")
        if said.get("sec-websocket-accept") != accept_of(key):
            raise ValueError("it agrees to no WebSocket")
        if said.get("sec-websocket-protocol") not in _PROTOCOLS:
            raise ValueError(f"it speaks none of {', '.join(_PROTOCOLS)}")
        return exit_code(await _hear_all(connection, what, hear, silence_s), what)
    except ValueError as error:  # msgspec's too
        raise LinkError(f"{what}: the API server does not do that as expected: {error}") from error
    finally:
        connection.close()


async def _hear_all(
    connection: Connection, what: str, hear: Callable[[ExecStream, bytes], None], silence_s: float
) -> bytes:
    """How it ended: the error stream's message. Raises: LinkError, ValueError."""
    reader = MessageReader(most_bytes=EXEC_MESSAGE.most)
    while data := await connection.read(what, silence_s):
        for message in reader.take(data):
            ended = _take(connection, message, hear)
            if ended is not None:
                return ended
    raise LinkError(f"{what}: the connection ended before the command did")


def _take(
    connection: Connection, message: WebSocketMessage, hear: Callable[[ExecStream, bytes], None]
) -> bytes | None:
    if message.opcode is Opcode.PING:
        mask = secrets.token_bytes(_MASK_BYTES)
        connection.write(encode_frame(Opcode.PONG, message.body, mask))
    elif message.opcode is Opcode.CLOSE:
        raise ValueError(f"it ended without a word: {message.body[2:].decode(errors='replace')}")
    elif message.opcode is Opcode.BINARY and message.body:
        stream, body = message.body[0], message.body[1:]
        if stream == ExecStream.ERROR:
            return body
        if stream in (ExecStream.STDOUT, ExecStream.STDERR):
            hear(ExecStream(stream), body)
    return None


def exit_code(ended: bytes, what: str) -> int:
    """Raises: LinkError where the command did not run; ValueError."""
    status = decode_json(ended, Status)
    if status.status == "Success":
        return 0
    for cause in (status.details.causes if status.details is not None else None) or ():
        if cause.reason == "ExitCode":
            return int(cause.message)
    raise LinkError(f"{what}: {' '.join(status.message.split()) or 'it failed without a word'}")
