"""docs/files.md as a table: a path's row of it, and the owner and mode that a path really has."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "files.md"
_BESIDE = ".new"
"""How a name ends while a file is written beside the one whose place it takes."""


def documented() -> dict[str, str]:
    """Mode by pattern, the closest pattern first."""
    rows = re.findall(r"^\| `(/\S+)` \| (\w+) \|", _PAGE.read_text(encoding="utf-8"), re.M)
    return dict(sorted(rows, key=lambda row: (row[0].count("*"), -len(row[0]))))


def row_of(path: str, rows: Iterable[str]) -> str | None:
    """The pattern of the page that a path falls under; None: the page does not know it."""
    name = path.removesuffix(_BESIDE)
    for pattern in rows:
        # Some have that in place of their own suffix.
        names = {pattern, pattern.rpartition(".")[0]} if name != path else {pattern}
        if any(fnmatchcase(name, each) for each in names) and name.count("/") == pattern.count("/"):
            return pattern
    return None


def differences(found: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Paths whose mode or owner is not the page's: what it is, and what the page says. A file that
    is being written lets nobody do more than what it will be."""
    rows = documented()
    wrong = {}
    for path, mode in found.items():
        row = row_of(path, rows)
        said = "not on the page" if row is None else rows[row]
        if mode != said and not (
            path.endswith(_BESIDE) and row is not None and _lets_no_more(mode, said)
        ):
            wrong[path] = (mode, said)
    return wrong


def _lets_no_more(mode: str, said: str) -> bool:
    """What others than the owner may do."""
    return mode.isdigit() and not int(mode, 8) & ~int(said, 8) & 0o077


def rows_of(paths: Iterable[str]) -> set[str]:
    """Patterns of the page under which some of the paths fall."""
    rows = documented()
    return {row for path in paths if (row := row_of(path, rows)) is not None}


def modes(root: Path, tops: Iterable[str]) -> dict[str, str]:
    """What is below these folders of a root, by path, as the page writes modes: with the owner
    where that is not root. What is mounted below them is none of it."""
    found = {}
    for top in tops:
        device = (root / top).stat().st_dev if (root / top).exists() else 0
        for folder, folders, files in os.walk(root / top):
            for each in (*folders, *files):
                path = Path(folder, each)
                try:
                    info = path.lstat()
                except FileNotFoundError:
                    continue  # it was written beside, and has its place now
                if stat.S_ISDIR(info.st_mode) and info.st_dev != device:
                    folders.remove(each)
                    continue
                mode = "link" if stat.S_ISLNK(info.st_mode) else f"{stat.S_IMODE(info.st_mode):o}"
                owner = "" if info.st_uid == info.st_gid == 0 else f" {info.st_uid}:{info.st_gid}"
                found[f"/{path.relative_to(root)}"] = mode + owner
    return found
