"""The journal's file, between its halves."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from limpet.base.disk import Disk
from limpet.base.errors import StorageError
from limpet.ipam.folder import read_folder
from limpet.ipam.journal_codec import encode_entries, parse_journal
from limpet.ipam.journal_file import JournalFile
from limpet.ipam.leases import Entry, Holder

SIZE = 4096
HALF = SIZE // 2


class SickDisk(Disk):
    sick = False

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        if self.sick:
            raise OSError(errno.EIO, "sick")


def opened(folder: Path, disk: Disk) -> JournalFile:
    return JournalFile(read_folder(folder, "net", disk), disk, SIZE)


def held(number: int, name: str) -> bytes:
    return encode_entries({number: Entry(Holder(name, "eth0"), None)}, {})


def test_a_journal_begins_anew_in_the_other_half_and_back_again(tmp_path: Path) -> None:
    journal = opened(tmp_path, Disk())
    for turn in range(3):
        journal.append([held(1, f"turn-{turn}")])
        journal.start_over(held(2, f"former-{turn}"), clean=False)
        journal.start_over(held(2, f"carried-{turn}"), clean=False)
    journal.close()
    state = parse_journal((tmp_path / "limpet.journal").read_bytes())
    assert state.entries == {2: Entry(Holder("carried-2", "eth0"), None)}
    assert (state.damage, state.next_number) == ("", 11)


@pytest.mark.parametrize("lost", [False, True])
def test_a_base_that_the_disk_refused_may_be_there_or_not(tmp_path: Path, *, lost: bool) -> None:
    disk = SickDisk()
    journal = opened(tmp_path, disk)
    journal.append([held(1, "a")])
    disk.sick = True
    with pytest.raises(StorageError, match="sick"):
        journal.start_over(held(1, "a"), clean=False)
    disk.sick = False
    journal.append([held(2, "b")])
    journal.append([held(1, "c")])
    journal.close()

    path = tmp_path / "limpet.journal"
    if lost:
        path.write_bytes(path.read_bytes()[:HALF] + bytes(HALF))
    state = parse_journal(path.read_bytes())
    assert state.damage == ""
    assert {n: e.holder.container_id for n, e in state.entries.items() if e.holder} == {
        1: "c",
        2: "b",
    }
    journal = opened(tmp_path, disk)
    journal.append([held(3, "d")])
    journal.start_over(held(3, "e"), clean=False)
    journal.close()
    assert parse_journal(path.read_bytes()).entries.keys() == {3}


def test_a_change_that_the_disk_refused_is_not_there_twice(tmp_path: Path) -> None:
    disk = SickDisk()
    journal = opened(tmp_path, disk)
    disk.sick = True
    with pytest.raises(StorageError, match="sick"):
        journal.append([held(1, "a")])
    disk.sick = False
    journal.append([held(1, "a"), held(1, "b")])
    journal.close()
    state = parse_journal((tmp_path / "limpet.journal").read_bytes())
    assert state.entries == {1: Entry(Holder("b", "eth0"), None)}
    assert (state.damage, state.next_number) == ("", 3)


def test_an_unfinished_journal_of_a_former_attempt_is_removed(tmp_path: Path) -> None:
    opened(tmp_path, Disk()).close()
    (tmp_path / "limpet.journal.new").write_bytes(b"half")
    opened(tmp_path, Disk()).close()
    assert [p.name for p in tmp_path.iterdir()] == ["limpet.journal"]
