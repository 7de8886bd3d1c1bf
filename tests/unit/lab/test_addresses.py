"""Worlds of tests run beside each other on one machine, where an agent looks at every namespace
before it believes that nobody has an address."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[2]
_OF_A_WORLD = re.compile(r"^pod_cidrs = \[(.+)\]$", re.MULTILINE)


def test_worlds_with_addresses_of_their_own_share_them_with_no_other_world() -> None:
    users: dict[str, set[str]] = defaultdict(set)
    for file in TESTS.rglob("test_*.py"):
        for found in _OF_A_WORLD.finditer(file.read_text(encoding="utf-8")):
            for prefix in found[1].split(", "):
                users[prefix].add(str(file.relative_to(TESTS)))

    assert len(users) > 8
    assert {prefix: files for prefix, files in users.items() if len(files) > 1} == {}
