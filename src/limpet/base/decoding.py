"""Decoding by type, for any thread.

msgspec (0.22, and before) finds out what a type holds when it is first used, and evaluates
annotations on the way, so that other threads get their turn. One that uses the same type meanwhile
takes what is half found out, and the process crashes. Here the first use of each type is alone;
nothing else in Limpet decodes by type, which tests/unit/test_house.py holds. Encoding, and decoding
to dicts and lists, ask nothing of a type.

Whatever is wrong with what is decoded, one error says it. msgspec itself has others for text that
is no UTF-8 and for thousands of levels, which nobody who reads its documentation expects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview | msgspec.Raw
_GARBAGE = (UnicodeError, RecursionError)

_first = threading.RLock()
_known: set[Any] = set()


@overload
def decode_json(data: bytes | str, kind: type[T]) -> T: ...


@overload
def decode_json(data: bytes | str, kind: Any) -> Any: ...


def decode_json(data: bytes | str, kind: Any) -> Any:
    """Raises: msgspec.MsgspecError, and nothing else."""
    _learn(kind)
    try:
        return msgspec.json.decode(data, type=kind)
    except _GARBAGE as error:
        raise msgspec.DecodeError(str(error)) from error


def decode_plain_json(data: bytes | str) -> Any:
    """Dicts, lists, texts, numbers. Raises: msgspec.MsgspecError, and nothing else."""
    try:
        return msgspec.json.decode(data)
    except _GARBAGE as error:
        raise msgspec.DecodeError(str(error)) from error


@overload
def convert(value: Any, kind: type[T], *, strict: bool = True) -> T: ...


@overload
def convert(value: Any, kind: Any, *, strict: bool = True) -> Any: ...


def convert(value: Any, kind: Any, *, strict: bool = True) -> Any:
    """What has been decoded to dicts and lists as `kind`. Raises: msgspec.ValidationError."""
    _learn(kind)
    try:
        return msgspec.convert(value, kind, strict=strict)
    except UnicodeError as error:  # a key with a lone surrogate, which JSON can spell
        raise msgspec.ValidationError(str(error)) from error


class Decoder(Generic[T]):
    """Decoder of one type, for what is decoded often."""

    def __init__(self, decode: Callable[[Buffer], T]) -> None:
        self._decode = decode

    def decode(self, data: Buffer) -> T:
        """Raises: msgspec.MsgspecError, and nothing else."""
        try:
            return self._decode(data)
        except _GARBAGE as error:
            raise msgspec.DecodeError(str(error)) from error


def json_decoder(kind: type[T]) -> Decoder[T]:
    with _first:
        return Decoder(msgspec.json.Decoder(kind).decode)


@overload
def msgpack_decoder(kind: type[T]) -> Decoder[T]: ...


@overload
def msgpack_decoder(kind: Any) -> Decoder[Any]: ...


def msgpack_decoder(kind: Any) -> Decoder[Any]:
    with _first:
        return Decoder(msgspec.msgpack.Decoder(kind).decode)


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
