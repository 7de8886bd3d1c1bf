"""Decoding by type, for any thread.

msgspec (0.22, and before) finds out what a type holds when it is first used, and evaluates
annotations on the way, so that other threads get their turn. One that uses the same type meanwhile
takes what is half found out, and the process crashes. Here the first use of each type is alone;
nothing else in Limpet decodes by type, which tests/unit/test_house.py holds. Encoding, and decoding
to dicts and lists, ask nothing of a type.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_first = threading.RLock()
_known: set[Any] = set()


@overload
def decode_json(data: bytes | str, kind: type[T]) -> T: ...


@overload
def decode_json(data: bytes | str, kind: Any) -> Any: ...


def decode_json(data: bytes | str, kind: Any) -> Any:
    """Raises: msgspec.MsgspecError; UnicodeDecodeError, RecursionError for garbage."""
    _learn(kind)
    return msgspec.json.decode(data, type=kind)


@overload
def convert(value: Any, kind: type[T], *, strict: bool = True) -> T: ...


@overload
def convert(value: Any, kind: Any, *, strict: bool = True) -> Any: ...


def convert(value: Any, kind: Any, *, strict: bool = True) -> Any:
    """What has been decoded to dicts and lists as `kind`. Raises: msgspec.ValidationError."""
    _learn(kind)
    return msgspec.convert(value, kind, strict=strict)


def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """For what is decoded often."""
    with _first:
        return msgspec.json.Decoder(kind)


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...


@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """For what is decoded often."""
    with _first:
        return msgspec.msgpack.Decoder(kind)


def _learn(kind: Any) -> None:
    try:
        if kind in _known:
            return
        _known.add(_learned(kind))
    except TypeError:  # annotated with what has no hash: it is never remembered
        _learned(kind)


def _learned(kind: Any) -> Any:
    with _first:
        msgspec.json.Decoder(kind)
    return kind
