"""Names of items as names of objects, and back. Pure."""

from __future__ import annotations

import hashlib
import re

_LONGEST_NAME = 200
_PLAIN = re.compile(r"[a-z0-9]")


def escape(name: str) -> str:
    """As a part of an object's name; no two names give one. Raises: UnicodeEncodeError."""
    encoded = name.encode()
    if not 0 < len(encoded) <= _LONGEST_NAME // 3:
        return "h--" + hashlib.sha256(encoded).hexdigest()
    text = encoded.decode("latin-1")
    return "".join(
        each if _PLAIN.fullmatch(each) or _is_inner_dot(text, at) else f"-{ord(each):02x}"
        for at, each in enumerate(text)
    )


def unescape(text: str) -> str:
    """The name that `escape` made this of; empty: it is none of those."""
    parts = text.split("-")
    try:
        found = parts[0].encode() + b"".join(
            bytes.fromhex(part[:2]) + part[2:].encode() for part in parts[1:]
        )
        return found.decode()
    except ValueError:
        return ""


def _is_inner_dot(text: str, at: int) -> bool:
    """A dot between two plain characters; an object's name has no others."""
    beside = text[at - 1 : at] + text[at + 1 : at + 2]
    return text[at] == "." and len(beside) == 2 and all(map(_PLAIN.fullmatch, beside))
