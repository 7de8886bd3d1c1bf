"""Small files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from limpet.base.disk import Disk, read_if_there, read_regular, remove_durably, write_durably
from limpet.base.errors import StorageError


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "10-limpet.conflist"
    path.write_bytes(b"old")

    def full(_self: Disk, _path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "fsync", full)
        with pytest.raises(StorageError, match=str(path)):
            write_durably(path, b"new", 0o644)

    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"old"]


def test_what_is_written_has_its_mode_whatever_the_umask_and_whatever_is_left_of_an_earlier_try(
    tmp_path: Path,
) -> None:
    path = tmp_path / "key"
    path.with_name("key.new").write_bytes(b"longer than the new content")
    before = os.umask(0o077)
    try:
        write_durably(path, b"shared", 0o644)
    finally:
        os.umask(before)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"shared", 0o644)

    write_durably(path, b"secret")
    assert (read_if_there(path), path.stat().st_mode & 0o777) == (b"secret", 0o600)

    assert (remove_durably(path), remove_durably(path), read_if_there(path)) == (True, False, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["fifo", "device", "folder", "large"])
def test_what_is_no_file_of_a_sensible_size_is_refused_at_once(what: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    match what:
        case "fifo":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case _:
            path.write_bytes(bytes(11))

    with pytest.raises(OSError, match=r"regular|directory|too large"):
        read_regular(path, 10)
    if what != "large":
        with pytest.raises(StorageError):
            read_if_there(path)


def test_a_file_that_says_no_size_is_read_whole() -> None:
    assert read_regular(Path("/proc/version")) == Path("/proc/version").read_bytes()
