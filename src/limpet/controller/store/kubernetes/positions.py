"""Where a watch goes on: what a bookmark says, as text and by kind. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from limpet.controller.store.interface import (
    TooOldError,
)

_VERSION = re.compile(r"(?:(?:0|[0-9a-f-]{36}\.[0-9]+)-)?([0-9]{1,18})")
"""Version of an item, a list, or one kind in a bookmark. Another store's has another shape."""


def positions_in(since: str, kinds: Collection[str]) -> dict[str, int]:
    """Where to go on, by kind: one resource version, or one for each.

    A bare one is of custom resources, which the API server keeps in one etcd with one revision
    (`--etcd-servers-overrides` is for its own resources alone). Raises: TooOldError.
    """
    parts = dict(part.rpartition(":")[::2] for part in since.split(","))
    found = {}
    for kind in kinds:
        matched = _VERSION.fullmatch(parts.get(kind, parts.get("", "")))
        if matched is None:
            raise TooOldError(f"watch from {since[:200]!r}: that is no version of this store")
        found[kind] = int(matched[1])
    return found


def text_of(positions: dict[str, int]) -> str:
    return ",".join(f"{kind}:{position}" for kind, position in positions.items())
