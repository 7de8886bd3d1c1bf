"""Files that install writes: atomically, and recorded before, so that they can be taken back."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from limpet.base.decoding import decode_plain_json
from limpet.base.disk import (
    is_rotten,
    put_aside,
    read_if_there,
    refusals,
    remove_durably,
    write_durably,
)
from limpet.base.errors import StorageError
from limpet.base.records.version import VERSION, NewerFormatError, check_version

_NAME = "installed.json"


class DamagedRecordError(StorageError):
    """There is a record of an installation, and not what was written."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(slots=True)
class InstalledFile:
    """One file that we have put somewhere."""

    role: str
    """binary, config, shim_conf, unit, dns_unit, daemon or conflist."""
    path: str
    sha256: list[str]
    """Hash of every content that we have ever put there; another one is a person's edit."""
    mode: int
    replaced: str | None = None
    """What was there before us, as base64; None: nothing."""
    replaced_mode: int = 0o644


@dataclass(slots=True)
class Manifest:
    """What is installed, in a file that is always ahead of what it tells of."""

    path: Path
    files: dict[str, InstalledFile] = field(default_factory=dict)
    """By path."""
    folders: list[str] = field(default_factory=list)
    """Folders that were not there, in the order they were made."""

    @classmethod
    def load(cls, state_dir: Path) -> Manifest:
        """Empty where nothing is installed. Raises: StorageError, DamagedRecordError."""
        path = state_dir / _NAME
        hint = "move it away; uninstall then leaves the installed files to you"
        try:
            text = read_if_there(path)
        except StorageError as error:
            if not is_rotten(error):
                raise
            raise DamagedRecordError(
                "read", str(path), "Input/output error: the disk has lost it", hint=hint
            ) from error
        if text is None:
            return cls(path)
        try:
            check_version(text)
            document = decode_plain_json(text)
            files = [InstalledFile(**entry) for entry in document["files"]]
            return cls(path, {file.path: file for file in files}, list(document["folders"]))
        except NewerFormatError as error:
            raise StorageError("read", str(path), str(error)) from error
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
            raise DamagedRecordError(
                "read", str(path), f"not a record of an installation: {error}", hint=hint
            ) from error

    @classmethod
    def begin(cls, state_dir: Path) -> tuple[Manifest, str]:
        """Like `load`; a damaged record is put aside, and begun without what it knew. What became
        of it, in words, or nothing. Raises: StorageError."""
        try:
            return cls.load(state_dir), ""
        except DamagedRecordError:
            path = state_dir / _NAME
            return cls(path), f"{path}: it was damaged, and is begun anew ({put_aside(path)})"

    def save(self) -> None:
        """Raises: StorageError."""
        self.make_folder(self.path.parent, record=False)
        document = {
            "version": VERSION,
            "files": [asdict(file) for file in self.files.values()],
            "folders": self.folders,
        }
        write_durably(self.path, json.dumps(document, indent=1).encode() + b"\n", 0o600)

    def of_role(self, role: str) -> list[InstalledFile]:
        return [file for file in self.files.values() if file.role == role]

    def make_folder(self, folder: Path, *, record: bool = True) -> None:
        """Makes the folder and those above it; those that were not there are recorded.

        Raises: StorageError.
        """
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        self.folders += [str(each) for each in reversed(missing) if str(each) not in self.folders]
        if missing and record:
            self.save()
        for each in reversed(missing):
            with refusals("make folder", each):
                each.mkdir(exist_ok=True)

    def is_edited(self, path: Path, wanted: bytes = b"") -> bool:
        """Somebody has changed a file that we put there. What a power cut leaves, nothing, zeros or
        the beginning of what is `wanted`, is nobody's edit."""
        known = self.files.get(str(path))
        content = read_if_there(path)
        if known is None or content is None or wanted.startswith(content.rstrip(b"\0")):
            return False
        return sha256(content) not in known.sha256

    def put(self, role: str, path: Path, content: bytes, mode: int) -> bool:
        """Records, then writes. False when the file was as it should be.

        A file that has that very content already, unrecorded, or says that it is Limpet's, is ours
        from a record that was lost: it is not put back some day. Raises: StorageError.
        """
        now = read_if_there(path)
        known = self.files.get(str(path))
        same = now == content and (path.stat().st_mode & 0o7777) == mode
        if same and known is not None and known.sha256[-1] == sha256(content):
            return False
        if known is None:
            known = InstalledFile(role, str(path), [], mode)
            if now is not None and not same and not _is_limpets(role, now):
                known.replaced = base64.b64encode(now).decode()
                known.replaced_mode = path.stat().st_mode & 0o7777
            self.files[str(path)] = known
        known.mode = mode
        known.sha256 = [*(sha for sha in known.sha256 if sha != sha256(content)), sha256(content)]
        self.make_folder(path.parent)
        self.save()
        if not same:
            write_durably(path, content, mode)
        return not same

    def take_back(self, file: InstalledFile) -> str:
        """Removes the file, or puts back what was there; says which. Raises: StorageError."""
        path = Path(file.path)
        if file.replaced is not None:
            write_durably(path, base64.b64decode(file.replaced), file.replaced_mode)
            said = f"{path}: what was there before is back"
        else:
            said = f"{path}: removed" if remove_durably(path) else f"{path}: was gone already"
        del self.files[file.path]
        if self.path.exists():
            self.save()
        return said

    def remove_folders(self) -> list[str]:
        """Removes those that we made and that are empty now; returns them. Raises: StorageError."""
        removed = []
        for folder in reversed(list(self.folders)):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
                removed.append(folder)
        self.folders = [folder for folder in self.folders if folder not in removed]
        return removed


def _is_limpets(role: str, content: bytes) -> bool:
    """A file of some version of Limpet, by what it says."""
    if role == "binary":
        return content.startswith(b"\x7fELF") and b"limpet: a CNI plugin" in content
    if role != "conflist":
        return content.startswith(b"# Limpet's; `systemctl edit ")
    try:
        plugins = decode_plain_json(content)["plugins"]
        return bool(plugins) and all(each["type"] == "limpet" for each in plugins)
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError):
        return False
