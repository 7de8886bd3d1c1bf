"""Whether a node has heard all that the cluster has to say, once: a file says that it may not have.

What the snapshot lacks, a policy among that, nobody misses otherwise. The file is there from a join
that could not hear all, or from when the snapshot was found damaged or gone, until all was told.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from limpet.base.disk import Disk, remove_durably, write_durably
from limpet.base.errors import StorageError

DOUBT_NAME = "snapshot.lacking"
LAG_NAME = "second-copy.lacking"
_WORDS = b"documents of the cluster may be missing here until its controller has told all of them\n"


class Doubt:
    """A doubt whether something is missing here: it counts at once, whatever the disk says."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the snapshot's."""
        self.is_there = is_doubted(folder)
        self.second_lags = (folder / LAG_NAME).exists()
        """The disk has refused the second copy something that the first one has."""
        self._folder = folder
        self._is_kept = True

    def begin(self) -> None:
        """`keep` is to come before the snapshot is written, which takes its damage away."""
        self.is_there, self._is_kept = True, False

    def keep(self) -> None:
        """For the next start, if it has begun and is not on the disk. Raises: StorageError."""
        if not self._is_kept:
            doubt(self._folder)
            self._is_kept = True

    def note_lag(self, second_lags: bool) -> None:
        """For the next start: a whole second copy says nothing of what it was never given. A file
        without content, which a full disk has room for; where it has none, nothing is noted."""
        if second_lags == self.second_lags:
            return
        path = self._folder / LAG_NAME
        with suppress(OSError, StorageError):
            if second_lags:
                path.touch(0o600)
                Disk().fsync_folder(self._folder)
            else:
                remove_durably(path)
            self.second_lags = second_lags

    def end(self) -> None:
        """All that was told is on the disk. Raises: StorageError."""
        if self.is_there:
            settle(self._folder)
            self.is_there = False


def is_doubted(folder: Path) -> bool:
    """`folder`: the snapshot's."""
    return (folder / DOUBT_NAME).exists()


def doubt(folder: Path) -> None:
    """Raises: StorageError."""
    write_durably(folder / DOUBT_NAME, _WORDS)


def settle(folder: Path) -> None:
    """All was told, and is on the disk. Raises: StorageError."""
    remove_durably(folder / DOUBT_NAME)
