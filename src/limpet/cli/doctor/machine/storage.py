"""Whether what Limpet keeps on the disk is on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from limpet.agent.settings import Settings
from limpet.cli.doctor.findings import Finding, error

_MOUNTS = Path("/proc/self/mountinfo")
_VOLATILE = frozenset({"tmpfs", "ramfs"})


def examine_storage(settings: Settings, mounts: Path = _MOUNTS) -> Iterator[Finding]:
    folders = settings.folders
    for folder, harm in (
        (folders.data_dir, "after a reboot every pod gets another address"),
        (folders.cluster_dir, "after a reboot without the cloud the node knows no other"),
    ):
        kind = filesystem_of(folder, mounts.read_text(encoding="utf-8", errors="replace"))
        if kind in _VOLATILE:
            yield error(
                "records-volatile",
                f"{folder} is on a {kind}, in memory",
                harm,
                "mount a disk there, or name a folder on one in the agent's configuration "
                "(data_dir, state_dir)",
            )


def filesystem_of(folder: Path, mountinfo: str) -> str:
    """Its kind, by what /proc/self/mountinfo says. Source: proc(5). Later mounts hide earlier."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(fields[4].encode().decode("unicode_escape"))
        if (point == folder or point in folder.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split(" ")[0]
    return kind
