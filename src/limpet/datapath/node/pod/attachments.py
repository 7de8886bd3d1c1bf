"""The live attachments of this node: in memory, and one file each below /run."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from limpet.base.disk import refusals
from limpet.base.errors import StorageError
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.pod.attachment_codec import decode_attachment, encode_attachment
from limpet.ipam.leases import Holder

Key = tuple[str, Holder]
"""Network name and holder."""


class Attachments:
    """Not synced to disk: the folder is on tmpfs, and after a reboot no pod is left either."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._live: dict[Key, Attachment] = {}
        """In the order in which they were made."""
        self.damaged: list[tuple[Path, str]] = []
        """Files that could not be read, with the reason."""
        with refusals("use", folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
                self._load(path)

    def _load(self, path: Path) -> None:
        try:
            attachment = decode_attachment(path.read_bytes())
        except (ValueError, OSError) as error:
            self.damaged.append((path, str(error)))
            return
        self._live[attachment.network, attachment.holder] = attachment

    def __iter__(self) -> Iterator[Attachment]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def get(self, network: str, holder: Holder) -> Attachment | None:
        return self._live.get((network, holder))

    def put(self, attachment: Attachment) -> None:
        """Raises: StorageError; then nothing is changed."""
        path = self._path(attachment)
        temporary = path.with_suffix(".new")
        try:
            _write(temporary, encode_attachment(attachment))
            os.rename(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise StorageError("write", str(path), error.strerror or str(error)) from error
        self._live[attachment.network, attachment.holder] = attachment

    def remove(self, network: str, holder: Holder) -> Attachment | None:
        """What there was. Raises: StorageError; then it is forgotten in memory all the same."""
        attachment = self._live.pop((network, holder), None)
        if attachment is not None:
            path = self._path(attachment)
            with refusals("remove", path):
                path.unlink(missing_ok=True)
        return attachment

    def _path(self, attachment: Attachment) -> Path:
        return self._folder / f"{attachment.link.host_ifname}.json"


def _write(path: Path, content: bytes) -> None:
    """Raises: OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(fd, content) < len(content):  # what a full disk does before it refuses
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)
