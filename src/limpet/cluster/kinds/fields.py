"""Fields of a body: what JSON has become -> what it should be. ValueError says what it is not."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeVar

from limpet.base.addresses import Address, Prefix, packed, shortest_text
from limpet.base.bounds.bound import Bound
from limpet.base.bounds.words import NAME
from limpet.base.text.names import label_problem, name_problem

T = TypeVar("T")
Word = TypeVar("Word", bound=Enum)


def known_fields(of: type, found: Mapping[str, Any]) -> dict[str, Any]:
    """What a body says that this version knows; what a later one may say more is passed over."""
    return {name: found[name] for name in of.__dataclass_fields__ if name in found}  # type: ignore[attr-defined]


def one_word(words: type[Word], value: object, *, else_: Word) -> Word:
    """`else_`: what a word is taken for that only a later version knows: whatever lets nobody do
    more than that word may."""
    found = text(value)
    return next((each for each in words if each.value == found), else_)


def known_words(words: type[Word], values: Iterable[object]) -> frozenset[Word]:
    """Without those that only a later version knows: each word that is there allows more."""
    known = {each.value: each for each in words}
    return frozenset(known[found] for each in values if (found := text(each)) in known)


def whole(value: Any, most: int) -> int:
    """A node signs what it says itself: that need not be what it should be."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no number from 0 to {most}")
    return value


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def prefixes(value: Iterable[object]) -> tuple[Prefix, ...]:
    """Each as text, as `ipaddress` takes numbers, too; and without a scope, as it takes any."""
    return tuple(map(_prefix, value))


def _prefix(value: object) -> Prefix:
    found = text(value)
    if "%" in found:
        raise ValueError(f"{found[:60]!r} is no prefix that means the same everywhere")
    at, _, length = found.partition("/")
    if not (length.isascii() and length.isdigit()):
        return ip_network(found)
    try:
        return (IPv6Network if ":" in at else IPv4Network)((packed(at), int(length)))
    except ValueError:
        return ip_network(found)  # which says in words what is wrong


def name(value: object) -> str:
    """A name that a pod, a namespace or a node may have."""
    found = text(value)
    if problem := name_problem(found):
        raise ValueError(f"{found[:300]!r} {problem}")
    return found


def word(value: object) -> str:
    """Printable ASCII, as long as a name; it may be empty."""
    found = text(value)
    if not (found.isascii() and found.isprintable() and len(found) <= NAME.most):
        raise ValueError(f"{found[:300]!r} is no word of printable characters")
    return found


def labels(value: object) -> dict[str, str]:
    """Labels as Kubernetes allows them."""
    if not isinstance(value, dict):
        raise ValueError("labels are no object")
    for key, each in value.items():
        if problem := label_problem(text(key), text(each)):
            raise ValueError(f"label {key[:300]!r}: {each[:100]!r} {problem}")
    return value


def bytes_of(value: str) -> bytes:
    """Bytes of Base64 text."""
    return base64.b64decode(value, validate=True)


_VERSIONS = {"4": 4, "6": 6}


def by_version(found: Mapping[str, T]) -> dict[int, T]:
    """By IP version: JSON has no numbers for keys."""
    if strange := found.keys() - _VERSIONS.keys():
        raise ValueError(f"{min(strange)[:40]!r} is no IP version")
    return {_VERSIONS[version]: value for version, value in found.items()}


def address(value: object) -> Address:
    """An address without a scope: that could be any text, or the name of another node's link."""
    found = _unscoped(value)
    # Whoever sends thousands has them read before it is known who has signed them.
    try:
        return (IPv6Address if ":" in found else IPv4Address)(packed(found))
    except ValueError:
        return ip_address(found)  # which says in words what is wrong


def address_text(value: object) -> str:
    """The same, as it is written shortest."""
    found = _unscoped(value)
    try:
        return shortest_text(packed(found))
    except ValueError:
        return str(ip_address(found))


def _unscoped(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_ADDRESS or "%" in value:
        raise ValueError(f"{str(value)[:60]!r} is no address that means the same everywhere")
    return value


_LONGEST_ADDRESS = 45
"""Characters, of a mapped IPv4 address. Source: INET6_ADDRSTRLEN in netinet/in.h."""


def few(value: object, most: Bound) -> list[Any]:
    if not isinstance(value, list) or len(value) > most.most:
        raise ValueError(f"{most.most} {most.unit} at most")
    return value
