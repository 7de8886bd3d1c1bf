"""What the agent keeps in files for the process that answers names."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.base.errors import StorageError
from limpet.base.records.version import NewerFormatError
from limpet.dns.kept_services import KeptHere, KeptServices
from limpet.services.kept import KEPT_FILE, encode_end, encode_items, encode_lines
from limpet.services.kept_here import FORGET_AFTER_S, HERE_FILE, encode_here
from limpet.services.rotation import Here
from limpet.services.values import Service


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


@pytest.mark.parametrize("damage", ["no end", "a rotten line"])
def test_of_a_file_that_is_damaged_from_the_start_what_can_be_read_is_known(
    tmp_path: Path, damage: str
) -> None:
    """As the agent does it, which writes the file anew when an API server has told all."""
    services = [
        Service("shop", name, cluster_ips=(f"10.96.0.{n}",)) for n, name in enumerate("abc")
    ]
    whole = encode_items(services)
    lines = whole.split(b"\n")
    lines[2] = b"" if damage == "no end" else lines[2][:-4] + b"\0\0\0\0"
    damaged = b"\n".join(lines[:3] if damage == "no end" else lines)
    path = tmp_path / KEPT_FILE
    path.write_bytes(damaged)

    kept = KeptServices(tmp_path, tmp_path)
    known = kept.read()
    assert known == {("shop", "a"), ("shop", "b")}
    assert kept.read() is None
    path.write_bytes(damaged[:-10])
    with pytest.raises(StorageError, match="when an API server has told all"):
        kept.read()
    known_part = encode_lines(services[1:2]) + encode_end(1, is_part=True)
    path.write_bytes(known_part)
    assert kept.read() == set()
    assert kept.is_partial
    assert {each.name for each in kept.catalog} == {"a", "b"}, "nothing says that one is gone"
    path.write_bytes(whole)
    kept.read()
    assert not kept.is_partial
    assert {each.name for each in kept.catalog} == {"a", "b", "c"}
