"""The name that somebody meant."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_KNOWN = 5000
"""Names that are compared: each comparison takes some 20 µs."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of `known` that is most like `word`; empty: none is like it."""
    # Only here: nobody needs it until somebody has mistyped something.
    from difflib import get_close_matches
    from itertools import islice

    by_case = {each.lower(): each for each in islice(known, _MOST_KNOWN)}
    found = get_close_matches(word[:200].lower(), by_case, n=1)
    return by_case[found[0]] if found else ""


def hint(word: str, known: Iterable[str], otherwise: str) -> str:
    """What to put in brackets behind an error: the nearest name, and how to see all of them."""
    found = nearest(word, known)
    return f"did you mean {found}? {otherwise}" if found else otherwise


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence to put behind an error; empty where no name is like `word`."""
    found = nearest(word, known)
    return f" Did you mean {found}?" if found else ""
