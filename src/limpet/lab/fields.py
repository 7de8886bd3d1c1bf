"""Fields of a topology file: each is read, or refused by ValueError in words that name it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from limpet.lab.world.site import CLOUD

_NAME = re.compile(r"[a-z][a-z0-9-]{0,11}")
"""A port of a switch is named after its node: 15 characters, and room for a prefix."""
_RESERVED = (CLOUD, "all", "backbone", "controller", "router")
_SMALLEST_MTU, _LARGEST_MTU = 1280, 9000


def check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{where}: {name!r} is no name for the lab (a lower-case letter, then letters, "
            "digits and '-', at most 12 in all)"
        )
    if name in _RESERVED:
        raise ValueError(f"{where}: {name!r} is the lab's own word (take another name)")


def check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = sorted(table.keys() - set(known))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in {where} (known: {', '.join(known)})")


def read_table(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        raise ValueError(f"[{where}] is missing")
    if not isinstance(value, dict):
        raise ValueError(f"{where} = {value!r}: not a table")
    return value


def read_texts(value: Any, where: str, example: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError(f"{where} = {value!r}: not a list such as {example}")
    return value


def read_flag(table: Mapping[str, Any], key: str, where: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise ValueError(f"{where}.{key} = {value!r}: neither true nor false")
    return value


def read_word(table: Mapping[str, Any], key: str, where: str, known: tuple[str, ...]) -> str:
    """One of the known words; the first one is the default."""
    value = table.get(key, known[0])
    if value not in known:
        raise ValueError(f"{where}.{key} = {value!r}: not one of {', '.join(known)}")
    return str(value)


def read_mtu(table: Mapping[str, Any], key: str, where: str) -> int:
    return read_whole(table.get(key, 1500), f"{where}.{key}", _SMALLEST_MTU, _LARGEST_MTU)


def read_whole(value: Any, where: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{where} = {value!r}: not a whole number from {low} to {high}")
    return value
