"""How much a test does: enough to tell the claim in `make test`, all that it can in `make soak`.

It is the same test in both: only numbers differ, of rounds, kills, seeds and examples. A test that
does more in `make soak` says so by `@pytest.mark.soak`; those that hypothesis feeds need not: they
get the same examples each time in `make test`, which says whether a change is right and fails for
nothing else, and new ones in `make soak` and `make properties`.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

WHOLE = os.environ.get("LIMPET_EFFORT") == "whole"
_FEWEST_EXAMPLES = 10
_SHARE = 3
"""Of so many examples `make test` tries one."""


def effort(few: T, whole: T) -> T:
    """`few` in `make test`, `whole` in `make soak`."""
    return whole if WHOLE else few


def examples(whole: int) -> int:
    """Of a property: how many of them are tried."""
    return effort(min(whole, max(_FEWEST_EXAMPLES, whole // _SHARE)), whole)
