"""Fields of a body: what JSON has become -> what it should be. ValueError says what it is not."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def whole(value: Any, most: int) -> int:
    """A node signs what it says itself: that need not be what it should be."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no number from 0 to {most}")
    return value


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def bytes_of(value: str) -> bytes:
    """Of Base64."""
    return base64.b64decode(value, validate=True)


def by_version(found: Mapping[str, T]) -> dict[int, T]:
    """By IP version: JSON has no numbers for keys."""
    return {int(version): value for version, value in found.items()}
