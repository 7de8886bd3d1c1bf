"""The files of an installation as they should be, and how each comes to its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from limpet.agent.settings import Settings
from limpet.base.disk import read_if_there
from limpet.cli.doctor.findings import Finding, warn
from limpet.cli.doctor.target import Installation
from limpet.cli.install.files import Manifest
from limpet.cli.install.options import InstallOptions
from limpet.cli.install.units.dns_service import DNS_ROLE, DNS_UNIT, dns_unit_text
from limpet.cli.install.units.service import UNIT, packaged, unit_text
from limpet.cni.conflist import conflist_text
from limpet.cni.shim_binary import shim_path


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file as it should be. `keep`: one that is there already is a person's."""

    role: str
    path: Path
    content: bytes
    mode: int = 0o644
    keep: bool = False


def planned_files(options: InstallOptions, target: Installation) -> list[PlannedFile]:
    """In the order of writing. The conflist is the last, since a runtime acts on it at once."""
    settings = target.settings
    config = PlannedFile("config", options.paths.config, options.asked.text(), keep=True)
    unit = PlannedFile(
        "unit", options.paths.unit_dir / UNIT, unit_text(options.paths.config).encode()
    )
    units = [unit]
    if settings.dns.dns == "on":
        text = dns_unit_text(options.paths.config).encode()
        units.append(PlannedFile(DNS_ROLE, options.paths.unit_dir / DNS_UNIT, text))
    if not settings.pods.cni:
        return [config, *units]
    files = [
        PlannedFile("binary", target.cni_bin_dir / "limpet", shim_path().read_bytes(), 0o755),
        config,
        *units,
        PlannedFile("conflist", target.conflist, conflist_text(target.network_name)),
    ]
    if settings.folders.socket != Settings().folders.socket:
        shim_conf = options.paths.config.parent / "shim.conf"
        text = f"# Read by Limpet's CNI binary.\nsocket={settings.folders.socket}\n".encode()
        files.insert(2, PlannedFile("shim_conf", shim_conf, text, keep=True))
    return files


def differs(file: PlannedFile) -> bool:
    """Whether writing it would change anything. Raises: StorageError."""
    if packaged(file.path, file.content) is not None:
        return read_if_there(file.path) is not None
    now = read_if_there(file.path)
    return now is None or (not file.keep and now != file.content)


def examine_edits(manifest: Manifest, files: Iterable[PlannedFile]) -> Iterator[Finding]:
    """Files that somebody has changed since they were installed."""
    for file in files:
        if not file.keep and file.role != "binary" and manifest.is_edited(file.path, file.content):
            yield warn(
                "file-changed",
                f"{file.path} was changed since it was installed",
                "it is left as it is",
                "delete it to get Limpet's own again",
            )


def _is_ours(manifest: Manifest, file: PlannedFile) -> bool:
    return str(file.path) in manifest.files and not manifest.is_edited(file.path, file.content)


def put_file(manifest: Manifest, file: PlannedFile) -> str:
    """What was done with the file. Raises: StorageError."""
    there = read_if_there(file.path) is not None
    own = packaged(file.path, file.content)
    if own is not None and (not there or _is_ours(manifest, file)):
        # One that we have written would hide the package's, also that of its next version.
        for written in [each for each in manifest.files.values() if each.path == str(file.path)]:
            manifest.take_back(written)
        return f"{own}: the package's"
    is_edited = file.role != "binary" and manifest.is_edited(file.path, file.content)
    kept = there and (file.keep or is_edited)
    if kept:
        said = "kept"
    elif not manifest.put(file.role, file.path, file.content, file.mode):
        said = "up to date"
    else:
        said = "replaced" if there else "written"
    return f"{file.path}: {said}"
