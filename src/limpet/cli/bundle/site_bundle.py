"""A release's bundle in, a site's bundle out: checked file by file, with that site's own files."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from limpet.base.bounds.words import FILE
from limpet.base.errors import LimpetError, StorageError

SUMS = "SHA256SUMS"
_FOLDER = re.compile(r"limpet-[^/]+-bundle-[a-z0-9]+")
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SiteBundle:
    path: Path
    folder: str
    """The one folder that it unpacks to."""
    sha256: str
    files: int
    size_bytes: int


def write_site_bundle(released: Path, target: Path, site: Mapping[str, bytes]) -> SiteBundle:
    """`site`: what is added, by path below the folder. The same input gives the same bytes.

    Raises: StorageError, LimpetError where `released` is no bundle of a release, or is damaged.
    """
    try:
        with tarfile.open(released, "r:") as tar:
            members = tar.getmembers()
            folder = _folder_of(released, members)
            sums = _sums(released, tar, members, folder)
            added = dict(site)
            added[SUMS] = _with_those_of(sums, site)
            with _written_whole(target) as file:
                with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as out:
                    _copy(released, tar, members, sums, out)
                    _add(out, folder, added, mtime=max(each.mtime for each in members))
                file.seek(0)
                return SiteBundle(
                    target, folder, _sha256(file), len(sums) + len(added), file.tell()
                )
    except tarfile.TarError as error:
        raise _no_bundle(released, str(error)) from error
    except OSError as error:
        name = str(error.filename or released)
        raise StorageError("read or write", name, error.strerror or str(error)) from error


def _folder_of(released: Path, members: Sequence[tarfile.TarInfo]) -> str:
    """All is below it, and is a plain file whose path leads nowhere else."""
    folders = {each.name.partition("/")[0] for each in members}
    folder = next(iter(folders), "")
    if len(folders) != 1 or not _FOLDER.fullmatch(folder):
        raise _no_bundle(released, "it has not one folder limpet-VERSION-bundle-ARCHITECTURE")
    for each in members:
        parts = each.name.split("/")
        if not each.isreg() or {"", ".", ".."} & set(parts) or len(parts) < 2:
            raise _no_bundle(released, f"{each.name!r} in it is no plain file of that folder")
    if any(each.name.startswith(f"{folder}/site/") for each in members):
        raise LimpetError(f"bundle: {released} is of a site already: give the release's own bundle")
    return folder


def _sums(
    released: Path, tar: tarfile.TarFile, members: Sequence[tarfile.TarInfo], folder: str
) -> dict[str, str]:
    """By path below the folder: of every file but the list itself."""
    lists = [each for each in members if each.name == f"{folder}/{SUMS}"]
    if len(lists) != 1 or lists[0].size > FILE.most:
        raise _no_bundle(released, f"it has no {SUMS}")
    text = _opened(tar, lists[0]).read().decode("utf-8", errors="replace")
    found = [_SUM.fullmatch(line) for line in text.splitlines()]
    sums = {each[2]: each[1] for each in found if each is not None}
    paths = [each.name.removeprefix(f"{folder}/") for each in members if each is not lists[0]]
    if len(sums) != len(found) or sorted(paths) != sorted(sums):
        raise _no_bundle(released, f"its {SUMS} does not name the files that are in it")
    return sums


def _copy(
    released: Path,
    tar: tarfile.TarFile,
    members: Sequence[tarfile.TarInfo],
    sums: Mapping[str, str],
    out: tarfile.TarFile,
) -> None:
    for member in members:
        path = member.name.partition("/")[2]
        if path == SUMS:
            continue
        checked = _Checked(_opened(tar, member))
        out.addfile(member, checked)
        if checked.sha256 != sums[path]:
            raise LimpetError(
                f"bundle: {path} in {released} is not as it was made: nothing was written "
                "(copy or fetch the release's bundle again)"
            )


class _Checked(io.RawIOBase):
    """A file whose checksum is known when it was read to its end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def _add(out: tarfile.TarFile, folder: str, files: Mapping[str, bytes], *, mtime: float) -> None:
    for path, content in sorted(files.items()):
        info = tarfile.TarInfo(f"{folder}/{path}")
        info.size, info.mtime, info.mode = len(content), mtime, 0o644
        out.addfile(info, io.BytesIO(content))


def _with_those_of(sums: Mapping[str, str], site: Mapping[str, bytes]) -> bytes:
    """As `sha256sum --check` reads it."""
    every = {**sums, **{path: hashlib.sha256(data).hexdigest() for path, data in site.items()}}
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(every.items())).encode()


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


@contextmanager
def _written_whole(target: Path) -> Iterator[IO[bytes]]:
    """In its place when the block is left without an exception; else there is nothing new."""
    fresh = target.with_name(f".{target.name}.new")
    try:
        with fresh.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(target)
    finally:
        fresh.unlink(missing_ok=True)


def _opened(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = tar.extractfile(member)
    assert file is not None, "a plain file"
    return file


def _no_bundle(released: Path, why: str) -> LimpetError:
    return LimpetError(
        f"bundle: {released} is not the bundle of a release: {why} (it is called "
        "limpet-VERSION-bundle-ARCHITECTURE.tar; docs/release.md says how it is made)"
    )
