"""The archive: each piece cut and without secrets, with a list of what is in it and what is not."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from limpet.base.errors import LimpetError, StorageError
from limpet.cli.bugreport.pieces import Piece
from limpet.cli.bugreport.secrets import redact

MOST_PIECE_BYTES = 4 << 20
MOST_BYTES = 48 << 20
"""Most bytes of all pieces before they are compressed, which makes a tenth of it."""
_ABOUT = """\
A report of `limpet bugreport`. Left out, by value and by form: private keys, tokens, passwords,
pre-shared keys, credentials of kubeconfigs, values of telling environment variables. In it are
names and addresses of nodes, pods and Services, and logs: look through it before it goes to anybody
who may not know these.

"""


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A line of the list of contents."""

    name: str
    size_bytes: int
    note: str = ""
    """Why it is not there, or is cut."""


def write_report(path: Path, pieces: Iterable[Piece], secrets: set[str]) -> list[ArchiveEntry]:
    """Writes the archive, which only its owner may read; returns what is in it.

    Raises: StorageError.
    """
    entries: list[ArchiveEntry] = []
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError("write", str(path), error.strerror or str(error)) from error
    top = path.name.removesuffix(".tar.gz")
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            left = MOST_BYTES
            for piece in pieces:
                data, note = _content(piece, secrets, min(left, MOST_PIECE_BYTES))
                left -= len(data)
                entries.append(ArchiveEntry(piece.name, len(data), note))
                if data:
                    _add(tar, f"{top}/{piece.name}", data)
            lines = [f"{each.size_bytes:>9} {each.name}  {each.note}".rstrip() for each in entries]
            _add(tar, f"{top}/CONTENTS.txt", (_ABOUT + "\n".join(lines) + "\n").encode())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise StorageError("write", str(path), error.strerror or str(error)) from error
    return entries


def _content(piece: Piece, secrets: set[str], most: int) -> tuple[bytes, str]:
    try:
        text = piece.gather()
    except LimpetError as error:
        return b"", redact(f"not there: {error}", secrets)
    except OSError as error:
        return b"", redact(f"not there: {error.strerror or error}", secrets)
    data = redact(text, secrets).encode("utf-8", errors="replace")
    if len(data) <= most:
        return data, ""
    return data[len(data) - most :], f"cut: the last {most} of {len(data)} bytes"


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
    tar.addfile(info, io.BytesIO(data))
