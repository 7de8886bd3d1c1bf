"""What becomes of networks' folders when Limpet leaves a node: the next one may go on with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from limpet.base.addresses import Address
from limpet.base.disk import read_if_there, remove_durably
from limpet.base.errors import StorageError
from limpet.ipam.hostlocal import JOURNAL, NEW_JOURNAL
from limpet.ipam.journal_codec import parse_journal
from limpet.ipam.leases import AddressState
from limpet.ipam.ledger import Ledger, read_ledger


def own_folders(data_dir: Path) -> list[Path]:
    """Those that a journal of ours lies in."""
    return sorted(journal.parent for journal in data_dir.glob(f"*/{JOURNAL}"))


def only_network(data_dir: Path) -> str:
    """Name of the one that has addresses on record by us; empty: none has, or several have."""
    folders = own_folders(data_dir)
    return folders[0].name if len(folders) == 1 else ""


def settle(folder: Path) -> None:
    """Its files say all that its journal says: an agent that crashed has not left them so.

    Raises: StorageError.
    """
    Ledger.open(folder, folder.name).close()


def give_away(folder: Path) -> None:
    """Settles it, and takes the journal out: from now on nothing in it is only ours.

    Raises: StorageError, and then the journal stays: it may say what no other file does.
    """
    settle(folder)
    if parse_journal(read_if_there(folder / JOURNAL) or b"").entries:
        raise StorageError(
            "give away", str(folder), "its files do not say yet all that its journal says"
        )
    for name in (JOURNAL, NEW_JOURNAL):
        remove_durably(folder / name)


def held_in(folder: Path) -> Iterator[Address]:
    """Addresses that a container has, whoever gave them. Raises: StorageError."""
    for record in read_ledger(folder).records:
        if record.state is AddressState.LIVE:
            yield record.address
