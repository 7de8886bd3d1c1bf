"""Elements of nftables' maps and sets in netlink messages; chains and rules, to be compared only.

libnftables parses text and keeps what it has parsed; of 60,000 elements that takes seconds and a
few hundred megabytes. Keys and values are as the kernel holds them: fields of a concatenation one
after the other, each padded to four bytes. A value that is a verdict is `GOTO` with a chain's name.

Source: include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple

from limpet.linux.netlink.codec import Message, Request, attr, attr_text, nest, parse_attrs, text

GOTO = b"goto "
"""A value that begins so is a verdict: no address and port is as long as that with a name."""

_SUBSYSTEM = 10 << 8
_NEW_ELEMENT, _GET_ELEMENT, _DELETE_ELEMENT = (_SUBSYSTEM | each for each in (12, 13, 14))
_GET_CHAIN, _GET_RULE, _GET_SET = _SUBSYSTEM | 4, _SUBSYSTEM | 7, _SUBSYSTEM | 10
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
INET, BRIDGE = 1, 7
"""NFPROTO_INET, NFPROTO_BRIDGE. Source: include/uapi/linux/netfilter.h."""
_HEADS = {family: struct.pack(">BBH", family, 0, 0) for family in (INET, BRIDGE)}
_INET = _HEADS[INET]
_OF_NFTABLES = struct.pack(">BBH", 0, 0, 10)
_DUMP, _CREATE = 0x300, 0x400
_LIST_TABLE, _LIST_SET, _LIST_ELEMENTS = 1, 2, 3
_ELEMENT = 1
_KEY, _DATA, _FLAGS = 1, 2, 3
_INTERVAL_END = struct.pack(">I", 1)
_VALUE, _VERDICT = 1, 2
_CODE, _CHAIN = 1, 2
_NFT_GOTO = struct.pack(">i", -4)
_NFT_JUMP = struct.pack(">i", -3)
JUMP = b"jump "
_KEY_AT = 12
"""Where the bytes of an element's key begin: after the headers of three attributes."""
_PER_MESSAGE = 256
"""A list of elements is one attribute, of at most 64 KiB."""

_SET_DESCRIPTION, _SET_COUNT = 9, 20
_LENGTH = struct.Struct("=H")

Pairs = Iterable[tuple[bytes, bytes]]
Ranges = Iterable[tuple[bytes, bytes | None]]
"""The first key of each, and the first behind it; None: it goes to the end."""


def batch(requests: Iterable[Request]) -> list[Request]:
    """As one transaction: all of it is done, or nothing."""
    return [
        Request(_BATCH_BEGIN, 0, _OF_NFTABLES, ("transaction",)),
        *requests,
        Request(_BATCH_END, 0, _OF_NFTABLES, ("transaction",)),
    ]


def add_elements(table: str, name: str, elements: Pairs) -> Iterator[Request]:
    """Keys that are there with another value refuse the transaction: they are deleted before."""
    encoded = (_encode_element(key, value) for key, value in elements)
    return _lists(_NEW_ELEMENT, _CREATE, table, name, encoded)


def delete_elements(
    table: str, name: str, keys: Iterable[bytes], *, family: int = INET
) -> Iterator[Request]:
    """Deletes keys of a map or set. One that is not there refuses the transaction."""
    return _lists(_DELETE_ELEMENT, 0, table, name, map(_encode_key, keys), family)


def add_keys(
    table: str, name: str, keys: Iterable[bytes], *, family: int = INET
) -> Iterator[Request]:
    """Adds keys to a set."""
    return _lists(_NEW_ELEMENT, _CREATE, table, name, map(_encode_key, keys), family)


def add_ranges(table: str, name: str, ranges: Ranges) -> Iterator[Request]:
    """Adds ranges to a set of intervals. One that overlaps another refuses the transaction."""
    return _lists(_NEW_ELEMENT, _CREATE, table, name, map(_encode_range, ranges))


def delete_ranges(table: str, name: str, ranges: Ranges) -> Iterator[Request]:
    """Deletes ranges that a set of intervals has just so; another refuses the transaction."""
    return _lists(_DELETE_ELEMENT, 0, table, name, map(_encode_range, ranges))


def dump_elements(table: str, name: str) -> Request:
    body = _INET + attr_text(_LIST_TABLE, table) + attr_text(_LIST_SET, name)
    return Request(_GET_ELEMENT, _DUMP, body, ("elements of", name))


def dump_chains(table: str) -> Request:
    return Request(_GET_CHAIN, _DUMP, _INET + attr_text(1, table), ("chains of", table))


def dump_rules(table: str) -> Request:
    return Request(_GET_RULE, _DUMP, _INET + attr_text(1, table), ("rules of", table))


def dump_sets(table: str) -> Request:
    return Request(_GET_SET, _DUMP, _INET + attr_text(1, table), ("sets of", table))


class SetInfo(NamedTuple):
    """What the kernel tells of a set beside its elements."""

    name: str
    size: int
    """The most that it takes; 0: it does not say."""
    held: int | None
    """Elements. None: from Linux 6.17 on it is told."""


def parse_set(message: Message, table: str) -> SetInfo | None:
    """A set or map of the table; None: it is another table's."""
    attrs = parse_attrs(message.body, 4)
    if text(attrs.get(1)) != table:
        return None
    size = parse_attrs(memoryview(attrs.get(_SET_DESCRIPTION, b"")), 0).get(1, b"")
    count = attrs.get(_SET_COUNT)
    return SetInfo(
        text(attrs.get(2)),
        int.from_bytes(size, "big"),
        None if count is None else int.from_bytes(count, "big"),
    )


def get_element(table: str, name: str, key: bytes) -> Request:
    """ENOENT: it is not there."""
    body = _INET + attr_text(_LIST_TABLE, table) + attr_text(_LIST_SET, name)
    body += nest(_LIST_ELEMENTS, _encode_key(key))
    return Request(_GET_ELEMENT, 0, body, ("an element of", name))


def parse_chain(message: Message, table: str) -> tuple[str, bytes] | None:
    """Name of a chain of the table, and what makes it what it is; None: it is another table's."""
    attrs = parse_attrs(message.body, 4)
    if text(attrs.get(1)) != table:
        return None
    return text(attrs.get(3)), b"|".join(attrs.get(each, b"") for each in (4, 5, 7))


def parse_rule(message: Message, table: str) -> tuple[str, bytes] | None:
    """Name of its chain, and what the rule does, as the kernel has it; None: another table's."""
    attrs = parse_attrs(message.body, 4)
    return (text(attrs.get(2)), attrs.get(4, b"")) if text(attrs.get(1)) == table else None


def parse_elements(message: Message) -> Iterator[tuple[bytes, bytes]]:
    """Keys with their values; what has none is left out."""
    listed = parse_attrs(message.body, 4).get(_LIST_ELEMENTS, b"")
    if (found := _parse_alike(listed)) is not None:
        yield from found
        return
    for element in _each(memoryview(listed)):
        attrs = parse_attrs(element, 0)
        key = parse_attrs(memoryview(attrs.get(_KEY, b"")), 0).get(_VALUE)
        data = parse_attrs(memoryview(attrs.get(_DATA, b"")), 0)
        if key is not None and data:
            yield key, _parse_value(data)


def listed_elements(message: Message) -> bytes:
    """Elements as the kernel holds them, to be compared."""
    return parse_attrs(message.body, 4).get(_LIST_ELEMENTS, b"")


def split_elements(message: Message) -> Iterator[bytes]:
    """Each element as the kernel holds it, to be compared."""
    listed = listed_elements(message)
    offset, end = 0, len(listed)
    while offset + 4 <= end:
        (length,) = _LENGTH.unpack_from(listed, offset)
        if length < 4:
            return
        yield listed[offset : offset + length]
        offset += (length + 3) & ~3


def _parse_alike(listed: bytes) -> list[tuple[bytes, bytes]] | None:
    """Keys and values of elements that are of one length, and whose value is no verdict; None: they
    are not. There may be 50,000, which take seconds one attribute after the other."""
    if len(listed) < _KEY_AT:
        return None
    (length,) = struct.unpack_from("=H", listed)
    (key_bytes,) = struct.unpack_from("=H", listed, _KEY_AT - 4)
    data_at = _KEY_AT + key_bytes - 4
    value_at = data_at + 8
    if not value_at < length or len(listed) % length:
        return None
    before, between = listed[:_KEY_AT], listed[data_at:value_at]
    kinds = [struct.unpack_from("=H", between, each + 2)[0] & 0x3FFF for each in (0, 4)]
    lengths = [struct.unpack_from("=H", between, each)[0] for each in (0, 4)]
    if kinds != [_DATA, _VALUE] or lengths != [length - data_at, length - data_at - 4]:
        return None
    found = []
    for start in range(0, len(listed), length):
        at, value = start + data_at, start + value_at
        if listed[start : start + _KEY_AT] != before or listed[at:value] != between:
            return None
        found.append((listed[start + _KEY_AT : at], listed[value : start + length]))
    return found


def _lists(
    kind: int, flags: int, table: str, name: str, encoded: Iterable[bytes], family: int = INET
) -> Iterator[Request]:
    head = _HEADS[family] + attr_text(_LIST_TABLE, table) + attr_text(_LIST_SET, name)
    about = ("elements of", name)
    part: list[bytes] = []
    for each in encoded:
        part.append(each)
        if len(part) == _PER_MESSAGE:
            yield Request(kind, flags, head + nest(_LIST_ELEMENTS, *part), about)
            part = []
    if part:
        yield Request(kind, flags, head + nest(_LIST_ELEMENTS, *part), about)


def _encode_element(key: bytes, value: bytes) -> bytes:
    if value.startswith((GOTO, JUMP)):
        before, verdict = _around_verdict(len(key), value)
        return b"".join((before, key, verdict))
    before, between = _around(len(key), len(value))
    return b"".join((before, key, between, value))


def _encode_key(key: bytes) -> bytes:
    return _before_key(len(key)) + key


def _encode_range(between: tuple[bytes, bytes | None]) -> bytes:
    first, behind = between
    if behind is None:
        return _encode_key(first)
    return _encode_key(first) + _before_end(len(behind)) + behind


@cache
def _before_key(key_bytes: int) -> bytes:
    return nest(_ELEMENT, nest(_KEY, attr(_VALUE, bytes(key_bytes))))[:-key_bytes]


@cache
def _before_end(key_bytes: int) -> bytes:
    key = nest(_KEY, attr(_VALUE, bytes(key_bytes)))
    return nest(_ELEMENT, attr(_FLAGS, _INTERVAL_END), key)[:-key_bytes]


@cache
def _around(key_bytes: int, value_bytes: int) -> tuple[bytes, bytes]:
    """What stands before keys and before values of these lengths, which are multiples of four."""
    key, value = bytes(key_bytes), bytes(value_bytes)
    data = nest(_DATA, attr(_VALUE, value))
    whole = nest(_ELEMENT, nest(_KEY, attr(_VALUE, key)), data)
    return whole[: len(whole) - len(data) - key_bytes], data[: len(data) - value_bytes]


@lru_cache
def _around_verdict(key_bytes: int, value: bytes) -> tuple[bytes, bytes]:
    """What stands before keys of this length, and behind them."""
    code = _NFT_GOTO if value.startswith(GOTO) else _NFT_JUMP
    chain = attr(_CHAIN, value[len(GOTO) :] + b"\0")
    data = nest(_DATA, nest(_VERDICT, attr(_CODE, code), chain))
    whole = nest(_ELEMENT, nest(_KEY, attr(_VALUE, bytes(key_bytes))), data)
    return whole[: len(whole) - len(data) - key_bytes], data


def _parse_value(data: dict[int, bytes]) -> bytes:
    if _VERDICT not in data:
        return data.get(_VALUE, b"")
    verdict = parse_attrs(memoryview(data[_VERDICT]), 0)
    word = JUMP if verdict.get(_CODE) == _NFT_JUMP else GOTO
    return word + verdict.get(_CHAIN, b"").rstrip(b"\0")


def _each(listed: memoryview) -> Iterator[memoryview]:
    offset = 0
    while offset + 4 <= len(listed):
        (length,) = struct.unpack_from("=H", listed, offset)
        if length < 4:
            return
        yield listed[offset + 4 : offset + length]
        offset += (length + 3) & ~3
