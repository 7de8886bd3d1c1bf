"""What the agent keeps in files for the process that answers names."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.base.records.version import NewerFormatError
from limpet.dns.kept_services import KeptHere
from limpet.services.kept_here import FORGET_AFTER_S, HERE_FILE, encode_here
from limpet.services.rotation import Here


def test_what_a_later_agent_says_changes_nothing_and_the_dead_are_forgotten_all_the_same(
    tmp_path: Path,
) -> None:
    kept, here = KeptHere(tmp_path), Here("a", silent=frozenset({"b"}), distances={"c": 1})
    kept.read()
    assert kept.known(5.0) == Here()
    (tmp_path / HERE_FILE).write_bytes(encode_here(here, 5.0))
    kept.read()
    assert kept.known(6.0) == here

    (tmp_path / HERE_FILE).write_bytes(b'{"version":2,"here":"anything"}')
    with pytest.raises(NewerFormatError, match="it has format 2, this Limpet knows 1"):
        kept.read()
    assert kept.known(6.0) == here
    assert kept.known(5.0 + FORGET_AFTER_S) == Here("a", distances={"c": 1})
