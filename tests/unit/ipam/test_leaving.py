"""A network's folder when Limpet leaves the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.base.errors import StorageError
from limpet.ipam.leaving import give_away, held_in, own_folders, settle
from tests.unit.ipam.ledgers import V4, open_ledger, pod, sandbox, write_files


def _used(folder: Path) -> None:
    """One address is held, and one kept for a pod that is away."""
    ledger = open_ledger(folder, network=folder.name)
    ledger.reserve(sandbox("c1"), pod("web-0"), [V4], now_s=0)
    ledger.reserve(sandbox("c2"), pod("db-0"), [V4], now_s=0)
    ledger.release(sandbox("c2"), now_s=1)
    ledger.close()


def test_a_folder_that_was_given_away_has_the_addresses_and_nothing_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "cbr0"
    _used(folder)
    settle(folder)
    assert own_folders(tmp_path) == [folder]

    give_away(folder)

    assert own_folders(tmp_path) == []
    names = {path.name for path in folder.iterdir()}
    addresses = {"10.0.0.2", "10.0.0.2_default_web-0", "10.0.0.3_default_db-0"}
    assert names == {*addresses, "lock", "last_reserved_ip.0"}


def test_who_holds_an_address_is_seen_whoever_gave_it(tmp_path: Path) -> None:
    folder = tmp_path / "cbr0"
    _used(folder)
    write_files(folder, {"10.0.0.6": "another\r\neth0", "10.0.0.5_default_cache-0": ""})

    assert list(map(str, held_in(folder))) == ["10.0.0.2", "10.0.0.6"]


def test_a_journal_that_says_more_than_the_files_is_not_thrown_away(tmp_path: Path) -> None:
    folder = tmp_path / "cbr0"
    _used(folder)
    # Where a file should be that the disk takes there is a folder.
    ledger = open_ledger(folder, network=folder.name)
    (folder / "10.0.0.4").mkdir()
    (folder / "10.0.0.4" / "full").touch()
    ledger.reserve(sandbox("c3"), pod("api-0"), [V4], now_s=2)
    ledger.close()

    with pytest.raises(StorageError, match="its files do not say yet all that its journal says"):
        give_away(folder)

    assert own_folders(tmp_path) == [folder]
