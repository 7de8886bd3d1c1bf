"""An agent, a controller and a DNS process that answer every question with others' worst words."""

from __future__ import annotations

import contextlib
import email
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import inspect

from limpet.cni import frames

WORST = (
    "web\nforged-row  1.2.3.4\r\x1b[2J\x1b]0;title\x07\x9b31m"
    "\u202egpj\u2066\u200b\x00\ud800 [red]x[/red]"
)
CANNOT_BE_SEEN = ("\r", "\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\u200b", "\x00", "\ud800")


def worst(kind: Any) -> Any:
    """A document that `kind` can be read from, with `WORST` wherever text may stand."""
    return _worst(inspect.type_info(kind))


def _worst(kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType() | inspect.DataclassType():
            return {each.encode_name: _worst(each.type) for each in kind.fields}
        case inspect.UnionType():
            return _worst(
                next(each for each in kind.types if not isinstance(each, inspect.NoneType))
            )
        case (
            inspect.ListType()
            | inspect.VarTupleType()
            | inspect.SetType()
            | inspect.FrozenSetType()
        ):
            return [_worst(kind.item_type)]
        case inspect.TupleType():
            return [_worst(each) for each in kind.item_types]
        case inspect.DictType():
            return {_worst(kind.key_type): _worst(kind.value_type)}
        case inspect.EnumType():
            return next(iter(kind.cls)).value
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 4
        case inspect.FloatType():
            return 4.5
        case inspect.NoneType():
            return None
        case _:
            return WORST


@contextlib.contextmanager
def answering(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """A server at a Unix socket, one connection after the other."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _said(kind: Any) -> Any:
    return kind if isinstance(kind, dict) else worst(kind)


def agent(kinds: dict[str, Any]) -> Callable[[socket.socket], None]:
    """Answers by verb, at its worst where there is a type of it, or as it is given; an error in
    `WORST` words where there is neither."""

    def answer(connection: socket.socket) -> None:
        length = frames.request_length(connection.recv(frames.REQUEST_HEADER_BYTES))
        call = frames.decode_request(connection.recv(length, socket.MSG_WAITALL))
        assert isinstance(call, frames.AdminCall)
        if call.verb in kinds:
            code, said = 0, _said(kinds[call.verb])
        else:
            code, said = 1, {"error": WORST}
        connection.sendall(frames.encode_answer(code, json.dumps(said).encode()))

    return answer


def controller(kinds: dict[str, Any]) -> Callable[[socket.socket], None]:
    """As `agent` does."""

    def answer(connection: socket.socket) -> None:
        with connection.makefile("rb") as request:
            verb = request.readline().split()[1].decode().removeprefix("/")
            head = email.message_from_bytes(b"".join(iter(request.readline, b"\r\n")))
            request.read(int(head["Content-Length"] or 0))
        said, code = (_said(kinds[verb]), 200) if verb in kinds else ({"error": WORST}, 400)
        body = json.dumps(said).encode()
        start = f"HTTP/1.1 {code} Said\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(start.encode() + body)

    return answer


def names(kinds: dict[str, Any]) -> Callable[[socket.socket], None]:
    """As `agent` does, by what is asked."""

    def answer(connection: socket.socket) -> None:
        asked = json.loads(connection.recv(1 << 16))["ask"]
        connection.sendall(json.dumps(_said(kinds[asked])).encode())

    return answer
