"""The record of what of flannel was put aside, and both ways: before anything is changed it is on
the disk, so that a node that loses power in between can be given back too."""

from __future__ import annotations

from pathlib import Path

import msgspec

from limpet.base.decoding import decode_json
from limpet.base.disk import read_if_there, remove_durably, write_durably
from limpet.base.errors import StorageError
from limpet.base.records.version import VERSION, check_version
from limpet.cli.install.flannel.devices import Device


class AsideFile(msgspec.Struct, frozen=True):
    path: str
    mode: int
    content: bytes


class Aside(msgspec.Struct, frozen=True):
    """What flannel had."""

    version: int
    files: tuple[AsideFile, ...] = ()
    devices: tuple[Device, ...] = ()
    rules: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def macs(self) -> dict[int, str]:
        """MACs of its VXLAN devices, by the IP version of the underlay."""
        return {device.version: device.mac for device in self.devices}


def record_path(state_dir: Path) -> Path:
    return state_dir / "flannel.json"


def load_aside(state_dir: Path) -> Aside | None:
    """None: nothing of flannel's was put aside. Raises: StorageError."""
    path = record_path(state_dir)
    data = read_if_there(path)
    if data is None:
        return None
    try:
        check_version(data)
        found = decode_json(data, Aside)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StorageError(
            "read", str(path), str(error), hint="move it away; what flannel had is in it, as JSON"
        ) from error
    return found


def note_aside(
    state_dir: Path, files: tuple[Path, ...], devices: list[Device], rules: dict[str, str]
) -> Aside:
    """What is there now, beside what was noted before. Raises: StorageError."""
    before = load_aside(state_dir) or Aside(VERSION)
    kept = {file.path: file for file in before.files}
    for path in files:
        content = read_if_there(path)
        if content is not None:
            mode = path.stat().st_mode & 0o7777
            kept[str(path)] = AsideFile(str(path), mode, content)
    found = Aside(
        VERSION,
        tuple(kept.values()),
        tuple({each.ifname: each for each in (*before.devices, *devices)}.values()),
        {**before.rules, **rules},
    )
    path = record_path(state_dir)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_durably(path, msgspec.json.encode(found), 0o600)
    return found


def put_files_back(aside: Aside) -> list[str]:
    """What was done, in words; what somebody has put there since stays. Raises: StorageError."""
    said = []
    for file in aside.files:
        path = Path(file.path)
        if read_if_there(path) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, file.content, file.mode)
            said.append(f"{path}: given back to flannel")
    return said


def forget_aside(state_dir: Path) -> None:
    """Raises: StorageError."""
    remove_durably(record_path(state_dir))
