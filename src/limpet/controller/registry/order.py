"""In which order the changes of a commit are written, where a store writes one after another."""

from __future__ import annotations

from typing import Any

from limpet.cluster.kinds import KINDS
from limpet.controller.registry.records import (
    AUTHORITY,
    COMMUNITY,
    NODE,
    SEGMENT,
    STATE,
    TOKEN,
)


def order(changed: tuple[str, str, Any], *, state_last: bool = False) -> float:
    """Such that every beginning is safe: what is claimed before the grant that names it, what is
    released after the grant that named it.

    `state_last`: where all is done again as long as the state does not say that it is done.
    """
    kind, _, record = changed
    if kind == TOKEN and record is None:
        return -1  # or one of before a recovery might let somebody in
    if kind == TOKEN and record.used_by:
        return 1.5  # or a second node might be let in by it; who takes a place holds it by then
    if kind == STATE:
        return 9 if state_last else 0
    if kind == AUTHORITY:
        return 0.5  # nobody hears of a key that may be lost; what it has to sign, it signs later
    if kind == SEGMENT:
        is_claimed = record is not None and record.resting_since_s is None
        is_nobodys = record is not None and not record.uid  # or its machine's grant would be buried
        return 1 if is_claimed or is_nobodys else 5
    if kind == COMMUNITY:
        return 1 if record is not None else 5
    if kind == NODE and record is not None and record.replaced_by:
        return 3  # what it was granted is in its heir's grant by then
    return 2 + KINDS.order(kind) / 100 if KINDS.get(kind) is not None else 4
