"""What a node has heard of Services since it wrote all of them to its disk: its kernel has it
already, so an agent that is killed has to begin with it, too.

It is in the folder that is gone with a reboot, as the kernel's tables are: nothing is synced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog

from limpet.services.catalog import Catalog
from limpet.services.kept import decode_change

_log = structlog.get_logger("services")

MOST_BYTES = 4 << 20
"""It is memory. What does not fit is on the disk some seconds later."""


class ChangeJournal:
    """For one process at a time. Raises nothing: without it, older Services are begun with."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = 0

    def replay(self, catalog: Catalog) -> None:
        """What is in it is in the catalog then. What cannot be read ends it, and is cut off."""
        try:
            content = self._path.read_bytes()
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _log.warning("what was heard of Services last is lost", error=str(error))
            return
        try:
            for line in content.split(b"\n")[:-1]:
                decode_change(line).apply(catalog)
                self._bytes += len(line) + 1
        except ValueError as error:
            _log.warning("what was heard of Services last is lost", error=str(error))
        if self._bytes < len(content):
            with suppress(OSError):  # then what comes next cannot be read either
                os.truncate(self._path, self._bytes)

    def note(self, lines: Iterable[bytes]) -> None:
        """By `kept.encode_item` and `kept.encode_gone`."""
        content = b"".join(line + b"\n" for line in lines)
        if not content or self._bytes + len(content) > MOST_BYTES:
            return
        self._append(content)

    @property
    def end(self) -> int:
        """What is noted up to now; for `forget`."""
        return self._bytes

    def forget(self, end: int) -> None:
        """What was noted up to then is on the disk."""
        if not end:
            return
        try:
            rest = self._path.read_bytes()[end:]
            fresh = self._path.with_suffix(".new")
            fresh.write_bytes(rest)
            fresh.replace(self._path)
            self._bytes = len(rest)
        except OSError as error:
            _log.debug("changes of Services cannot be forgotten", error=str(error))
            # Who reads it would go back to what was so before the others were written.
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._bytes = 0

    def _append(self, content: bytes) -> None:
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.write(fd, content) < len(content):
                    # Half a line would end what is read, and hide what is noted once there is room.
                    os.ftruncate(fd, self._bytes)
                else:
                    self._bytes += len(content)
            finally:
                os.close(fd)
        except OSError as error:
            _log.debug("changes of Services cannot be noted", error=str(error))
