"""Mutations that keep to an input's shape, so that what lies behind its decoder is reached too.

Pure: the same data, seed and bound give the same mutation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from tests.fuzz.target import Shape

_NUMBERS = (0, 1, -1, 127, 255, 256, 65535, 65536, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30)
_TEXTS = (
    *("", " ", "\n", "\x00", "\x1b[2J", "\ud800", "\u202e", "é", "a" * 300, "a" * 3000),
    *(
        "fe80::1%",
        "fe80::1%eth0",
        "::ffff:10.0.0.1",
        "999.1.1.1",
        "0.0.0.0/0",
        "::/0",
        "10.0.0.1/33",
    ),
    *("192.0.2.1", "2001:db8::1", "10.244.0.0/16", "00:00:00:00:00:00", "../../etc", "-1", "1e400"),
    *("null", "true", "9" * 30, "9" * 5000, "%s", "=", ",", ":", "[::1]:80", "http://[", "/"),
)
_DEEP = 3000
"""More levels than Python and msgspec go down."""
_WORDS = (b"\x00", b"\n", b"\r\n", b"\xff", b"\xff" * 8, b"\x00" * 16, b" ", b"=", b":", b"{", b"[")
_REPEATED = (2, 3, 16, 64, 257, 1000)


def mutate(data: bytes, shape: Shape, chance: Random, most_bytes: int) -> bytes:
    """Another input, of at most `most_bytes`; what does not fit its shape any more is cut."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        data = _once(data, shape, chance, most_bytes)[:most_bytes]
    return data


def _once(data: bytes, shape: Shape, chance: Random, most_bytes: int) -> bytes:
    if chance.random() < 0.2:
        shape = Shape.BYTES
    match shape:
        case Shape.JSON:
            return _in_tree(data, msgspec.json.decode, _encode_json(chance), chance, most_bytes)
        case Shape.MSGPACK:
            return _in_tree(
                data, msgspec.msgpack.decode, msgspec.msgpack.encode, chance, most_bytes
            )
        case Shape.JSON_LINES:
            return _in_lines(data, chance, most_bytes, of_json=True)
        case Shape.TEXT:
            return _in_lines(data, chance, most_bytes, of_json=False)
        case Shape.BYTES:
            return _in_bytes(data, chance, most_bytes)


# Bytes


def _in_bytes(data: bytes, chance: Random, most_bytes: int) -> bytes:
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice((0, 1, 2, 4, 8, 16, 64, 1000)))
    match chance.randrange(7):
        case 0:
            return data[:start] + chance.randbytes(max(end - start, 1)) + data[end:]
        case 1:
            return data[:start] + data[end:]
        case 2:
            return data[:start] + chance.choice(_WORDS) + data[end:]
        case 3:  # a number, as lengths and counts are
            width = chance.choice((1, 2, 4, 8))
            number = (chance.choice(_NUMBERS) + chance.choice((0, 0, 1, -1))) % (1 << 8 * width)
            order = chance.choice(("big", "little"))
            packed = number.to_bytes(width, "big" if order == "big" else "little")
            return data[:start] + packed + data[start + width :]
        case 4:  # the same again and again: what is quadratic shows
            part = data[start:end] or b"\0"
            times = min(chance.choice(_REPEATED), most_bytes // len(part) + 1)
            return data[:start] + part * times + data[end:]
        case 5:
            to = chance.randrange(len(data) + 1)
            return data[:to] + data[start:end] + data[to:]
        case _:
            if not data:
                return b"\0"
            at = chance.randrange(len(data))
            return data[:at] + bytes((data[at] ^ 1 << chance.randrange(8),)) + data[at + 1 :]


# Lines and words


def _in_lines(data: bytes, chance: Random, most_bytes: int, *, of_json: bool) -> bytes:
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    match chance.randrange(5):
        case 0:
            lines.insert(chance.randrange(len(lines) + 1), lines[at])
        case 1:
            del lines[at]
        case 2:
            times = min(chance.choice(_REPEATED), most_bytes // (len(lines[at]) + 1) + 1)
            lines[at:at] = [lines[at]] * times
        case _ if of_json:
            lines[at] = _once(lines[at], Shape.JSON, chance, most_bytes)
        case 3:
            words = lines[at].split(b" ")
            word = chance.choice(_TEXTS).encode(errors="surrogatepass")
            words[chance.randrange(len(words))] = word
            lines[at] = b" ".join(words)
        case _:
            lines[at] = _in_bytes(lines[at], chance, most_bytes)
    return b"\n".join(lines)


# Trees


def _encode_json(chance: Random) -> Callable[[Any], bytes]:
    as_ascii = chance.random() < 0.5
    return lambda tree: json.dumps(tree, ensure_ascii=as_ascii).encode(errors="surrogatepass")


def _in_tree(
    data: bytes,
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes],
    chance: Random,
    most_bytes: int,
) -> bytes:
    try:
        root = [decode(data)]
        places = list(_places(root))
        _change(*chance.choice(places), places, chance)
        return encode(root[0])
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, TypeError, IndexError):
        return _in_bytes(data, chance, most_bytes)


def _places(root: Any) -> list[tuple[Any, Any]]:
    """Each container with each of its keys or indexes."""
    found: list[tuple[Any, Any]] = []
    waiting = [root]
    while waiting and len(found) < 2000:
        at = waiting.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at))
        for key in keys:
            found.append((at, key))
            if isinstance(at[key], dict | list):
                waiting.append(at[key])
    return found


def _change(at: Any, key: Any, places: list[tuple[Any, Any]], chance: Random) -> None:
    match chance.randrange(8):
        case 0 | 1 | 2:
            at[key] = _value(chance)
        case 3 if at is not places[0][0]:
            del at[key]
        case 4 if isinstance(at, dict):
            at[chance.choice(_TEXTS)] = at[key] if chance.random() < 0.5 else at.pop(key)
        case 5 if isinstance(at, list) and at is not places[0][0]:
            at[key:key] = [at[key]] * chance.choice(_REPEATED)
        case 6:
            other, place = chance.choice(places)
            at[key] = json.loads(json.dumps(other[place], default=repr))
        case _:
            at[key] = _near(at[key], chance)


def _value(chance: Random) -> Any:
    match chance.randrange(8):
        case 0:
            return chance.choice((None, True, False, 0.5, -0.0, 1e308))
        case 1 | 2:
            return chance.choice(_NUMBERS)
        case 3:
            return chance.choice(([], {}, [[]], {"": ""}, [None], {"a": [1]}))
        case 4:
            tree: Any = []
            for _ in range(chance.choice((5, 40, _DEEP))):
                tree = [tree] if chance.random() < 0.5 else {"": tree}
            return tree
        case _:
            return chance.choice(_TEXTS)


def _near(value: Any, chance: Random) -> Any:
    """A little beside it."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + chance.choice((1, -1, 2**16, 2**32, 2**63))
    if isinstance(value, str):
        at = chance.randrange(len(value) + 1)
        return value[:at] + chance.choice(_TEXTS) + value[at + chance.randrange(2) :]
    if isinstance(value, bytes):
        return _in_bytes(value, chance, len(value) + 64)
    return [value]
