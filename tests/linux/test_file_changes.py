"""Files that were replaced, also in folders that were not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from limpet.linux.file_changes import FileChanges
from tests.waiting import wait_until


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[FileChanges]:
    with closing(FileChanges([tmp_path / "folder" / "file"], follows=True)) as changes:
        yield changes


def test_a_folder_that_comes_later_is_watched_from_then_on(
    tmp_path: Path, changes: FileChanges
) -> None:
    (tmp_path / "other").mkdir()
    assert not changes.drain()
    folder = tmp_path / "folder"
    folder.mkdir()
    assert changes.drain()
    (folder / "another").touch()
    assert not changes.drain()
    (folder / "file").touch()
    assert changes.drain()
    assert not changes.drain()


def test_a_folder_that_is_put_in_anothers_place_is_watched_from_then_on(
    tmp_path: Path, changes: FileChanges
) -> None:
    """As when a node joins another cluster."""
    folder = tmp_path / "folder"
    folder.mkdir()
    assert changes.drain()
    folder.rename(tmp_path / "before")
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh" / "file").touch()
    (tmp_path / "fresh").rename(folder)
    assert changes.drain()
    (folder / "file").write_text("again")
    assert changes.drain()


def test_what_is_in_a_folder_that_came_with_the_one_above_it_is_found_when_looked_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "above" / "folder" / "file"
    with closing(FileChanges([path], follows=True)) as changes:
        path.parent.mkdir(parents=True)
        assert not changes.drain()
        changes.look_again()
        path.touch()
        assert changes.drain()


def test_what_is_closed_is_given_back_though_nobody_waits_for_the_kernel(tmp_path: Path) -> None:
    changes = FileChanges([tmp_path / "file"])
    held = Path(f"/proc/self/fd/{changes.fileno()}")
    assert str(held.readlink()) == "anon_inode:inotify"
    changes.close()
    wait_until(lambda: not held.is_symlink(), "it is open still")
