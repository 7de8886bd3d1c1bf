"""The live attachments of this node: in memory, and one file each below /run."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from limpet.base.disk import read_regular, refusals
from limpet.base.errors import StorageError
from limpet.datapath.node.pod.attachment import Attachment
from limpet.datapath.node.pod.attachment_codec import decode_attachment, encode_attachment
from limpet.ipam.leases import Holder

Key = tuple[str, Holder]
"""Network name and holder."""
_BEGUN = ".new"
"""Suffix of a record until `put` gives it its name."""


class Attachments:
    """Not synced to disk: the folder is on tmpfs, and after a reboot no pod is left either."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._live: dict[Key, Attachment] = {}
        """Attachments by key, in the order in which they were made."""
        self.damaged: list[tuple[Path, str]] = []
        """Files that could not be read, with the reason."""
        self.unfinished: frozenset[str] = frozenset()
        """Host ends of pods that an earlier agent began to attach and did not live to record."""
        self._begun: set[Path] = set()
        self._latest_ns = 0
        """Time of the latest record's file. Their order is that of the attachments after a
        restart, so each gets a later one than those before it, also where the clock went back."""
        with refusals("use", folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = sorted((path.lstat().st_mtime_ns, path) for path in folder.glob("*.json"))
            for self._latest_ns, path in made:
                self._load(path)
            begun = {path.stem for path in folder.glob(f"*{_BEGUN}")}
            self.unfinished = frozenset(begun - {each.link.host_ifname for each in self})

    def _load(self, path: Path) -> None:
        try:
            attachment = decode_attachment(read_regular(path))
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

    def begin(self, attachment: Attachment) -> None:
        """Before its interface is made, `put` or `abandon` follows. Raises: StorageError."""
        begun = self._path(attachment).with_suffix(_BEGUN)
        self._begun.add(begun)
        self._latest_ns = max(self._latest_ns + 1, time.time_ns())
        try:
            _write(begun, encode_attachment(attachment), self._latest_ns)
        except OSError as error:
            self.abandon(attachment)
            raise StorageError("write", str(begun), error.strerror or str(error)) from error

    def abandon(self, attachment: Attachment) -> None:
        """Its interface is gone again, or was never made."""
        begun = self._path(attachment).with_suffix(_BEGUN)
        self._begun.discard(begun)
        with contextlib.suppress(OSError):
            begun.unlink()

    def forget_unfinished(self) -> None:
        """Nothing is left of them."""
        for ifname in self.unfinished:
            with contextlib.suppress(OSError):
                (self._folder / f"{ifname}{_BEGUN}").unlink()
        self.unfinished = frozenset()

    def put(self, attachment: Attachment) -> None:
        """Raises: StorageError; then nothing is changed."""
        path = self._path(attachment)
        begun = path.with_suffix(_BEGUN)
        if begun not in self._begun:
            self.begin(attachment)
        try:
            os.rename(begun, path)
        except OSError as error:
            self.abandon(attachment)
            raise StorageError("write", str(path), error.strerror or str(error)) from error
        self._begun.discard(begun)
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


def _write(path: Path, content: bytes, modified_ns: int) -> None:
    """Raises: OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(fd, content) < len(content):  # what a full disk does before it refuses
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.utime(fd, ns=(modified_ns, modified_ns))
    finally:
        os.close(fd)
