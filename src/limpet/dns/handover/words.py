"""What is said on `dns.sock` and `dns-held.sock`, and its version: during an upgrade processes,
agents and commands of several versions speak with each other there. It imports nothing that takes
time.

A request on `dns.sock` says its `version`, and what follows on the connection is of that one; with
plain words a later version is a number behind the word. Who says none, as everybody did at first,
speaks version 1. A later one is refused in words, and he who hears it goes on: a later program may
ask again in version 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

VERSION = 1
SOCKETS, TAKEN = b"sockets\n", b"taken\n"
"""On `dns.sock`: with the sockets; and by who has taken them over."""
HERE, KEEP = b"here\n", b"keep\n"
"""On `dns-held.sock`: with those that are held; and by who leaves his."""


class VersionError(ValueError):
    """What was said is of a version that is not known here; in words."""


def encode_request(what: Mapping[str, str]) -> bytes:
    """A line for `dns.sock`, in our version."""
    return json.dumps({**what, "version": VERSION}).encode() + b"\n"


def check_request(request: Mapping[str, object]) -> None:
    """Raises: VersionError."""
    _check(request.get("version", VERSION))


def is_word(said: bytes, word: bytes) -> bool:
    """Whether just that word was said, in our version. Raises: VersionError."""
    match said.split():
        case [first, number] if first == word.strip() and number.isdigit():
            _check(int(number))
            return True
        case _:
            return said == word


def _check(version: object) -> None:
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise VersionError(
            f"it is of version {version!r:.40}, this Limpet knows {VERSION} (run the same version "
            "of both)"
        )
