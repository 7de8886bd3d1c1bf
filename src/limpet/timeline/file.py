"""The timeline on the disk: two files, of which the newer is appended to and takes the place of the
older when it is full. For one thread at a time."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from pathlib import Path

from limpet.base.disk import Disk, read_regular
from limpet.picture.timeline import Clock
from limpet.timeline.log import Recorded, decode, encode

MOST_BYTES = 2 << 20
"""Most bytes of both files together."""
FOLDER = "events"
"""Below the state folder of whoever keeps one."""
NEWER, OLDER = "events.log", "events.before.log"


class EventFile:
    """Raises OSError, from all methods; they may be called again after that."""

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._disk = Disk()
        self._half_bytes = most_bytes // 2
        self._fd: int | None = None
        self._size = 0
        self._began_s: float | None = None
        """When its first entry was written; None: not read yet."""

    def append(self, batch: Sequence[Recorded], *, sync: bool, old_s: float = math.inf) -> None:
        """`sync`: it is on the disk when this returns; else the kernel writes it when it likes.

        `old_s`: a file that was begun longer ago is full.
        """
        data = b"".join(map(encode, batch))
        fd = self._open()
        if self._size and (self._size + len(data) > self._half_bytes or self._is_old(batch, old_s)):
            fd = self._create()
        if data:
            self._disk.pwrite(fd, data, self._size)
            self._size += len(data)
        if sync:
            self._disk.fdatasync(fd)

    def _open(self) -> int:
        if self._fd is None:
            self._disk.make_folder(self._folder)
            path = self._folder / NEWER
            if not path.exists():
                self._disk.write(path, b"")
                self._disk.fsync_folder(self._folder)
            self._fd = self._disk.open(path)
            self._size = os.fstat(self._fd).st_size
        return self._fd

    def _is_old(self, batch: Sequence[Recorded], old_s: float) -> bool:
        """Only by clocks that are right: a wrong one would take away what is hardly written."""
        if not batch or batch[-1].moment.clock is not Clock.KEPT:
            return False
        if self._began_s is None:
            first = next(decode(self._disk.read(self._folder / NEWER)), batch[0])
            kept = first.moment.clock is Clock.KEPT
            self._began_s = first.moment.wall_s if kept else batch[0].moment.wall_s
        return batch[-1].moment.wall_s - self._began_s > old_s

    def _create(self) -> int:
        """What is older goes, whole; a disk that is full has room by it."""
        self.close()
        self._disk.rename(self._folder / NEWER, self._folder / OLDER)
        return self._open()

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._began_s = None
            self._disk.close(fd)


def remove_all(state_dir: Path) -> None:
    """What is kept there, for a machine that is to be as it was before. Raises: OSError."""
    folder = state_dir / FOLDER
    for name in (OLDER, NEWER):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


def read_all(folder: Path) -> list[Recorded]:
    """What is kept there, the oldest first; empty where nothing ever was.

    Raises: OSError, NewerRecordError.
    """
    found: list[Recorded] = []
    for name in (OLDER, NEWER):
        with contextlib.suppress(FileNotFoundError):
            found += decode(read_regular(folder / name, 2 * MOST_BYTES))
    return found
