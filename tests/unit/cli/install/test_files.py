"""What install writes can be taken back, wherever it was interrupted."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.agent.settings import parse_settings
from limpet.base.errors import StorageError
from limpet.cli.doctor.installed.installation import examine_record, find_installed
from limpet.cli.install.files import DamagedRecordError, Manifest
from limpet.cni.shim_binary import shim_path

NAMES = ["bin/limpet", "net.d/10-limpet.conflist", "unit/limpet-agent.service"]
theirs = st.binary(max_size=8).map(lambda content: b"theirs" + content)
ours = st.binary(max_size=8).map(lambda content: b"ours" + content)


def tree(root: Path) -> dict[str, bytes | None]:
    """Files with their content, folders with None."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def take_everything_back(state_dir: Path) -> None:
    """As uninstall --purge does, in a process of its own."""
    manifest = Manifest.load(state_dir)
    for file in list(manifest.files.values()):
        manifest.take_back(file)
    manifest.remove_folders()
    manifest.path.unlink(missing_ok=True)
    manifest.remove_folders()


@settings(deadline=None)
@given(
    before=st.dictionaries(st.sampled_from(NAMES), theirs),
    puts=st.lists(st.tuples(st.sampled_from(NAMES), ours), max_size=8),
)
def test_after_any_installations_everything_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[str, bytes],
    puts: list[tuple[str, bytes]],
) -> None:
    root = tmp_path_factory.mktemp("root")
    for name, content in before.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    original = tree(root)

    for name, content in puts:
        Manifest.load(root / "state").put("file", root / name, content, 0o644)
        assert (root / name).read_bytes() == content
    take_everything_back(root / "state")

    assert tree(root) == original


@pytest.mark.parametrize("refused", range(4))
def test_a_disk_that_fails_at_any_step_leaves_a_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/limpet").write_bytes(b"another program")
    original = tree(tmp_path)
    renames = iter(range(100))
    rename = os.rename

    def fail_once(source: str, target: Path) -> None:
        if next(renames) == refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    def install() -> None:
        manifest = Manifest.load(tmp_path / "state")
        for name in NAMES[:2]:
            manifest.put("file", tmp_path / name, b"ours", 0o755)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail_once)
        with pytest.raises(StorageError, match="Input/output error"):
            install()
    take_everything_back(tmp_path / "state")

    left = tree(tmp_path)
    if refused == 0:  # the very first record could not be written
        del left["state"]
    assert left == original


def test_a_second_put_of_the_same_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert Manifest.load(tmp_path / "state").put("file", path, b"x", 0o644)
    before = path.stat().st_ino, path.stat().st_mtime_ns

    assert not Manifest.load(tmp_path / "state").put("file", path, b"x", 0o644)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before


def test_a_changed_mode_is_put_right(tmp_path: Path) -> None:
    path = tmp_path / "file"
    Manifest.load(tmp_path / "state").put("file", path, b"x", 0o755)
    path.chmod(0o600)

    assert Manifest.load(tmp_path / "state").put("file", path, b"x", 0o755)
    assert path.stat().st_mode & 0o777 == 0o755


def test_only_what_somebody_else_wrote_counts_as_edited(tmp_path: Path) -> None:
    path = tmp_path / "file"
    manifest = Manifest.load(tmp_path / "state")
    assert not manifest.is_edited(path)
    manifest.put("file", path, b"old version", 0o644)
    manifest.put("file", path, b"new version", 0o644)
    path.write_bytes(b"old version")
    assert not manifest.is_edited(path)

    path.write_bytes(b"a person's")
    assert manifest.is_edited(path)


FORMER = {
    "binary": b"\x7fELF" + shim_path().read_bytes()[4:] + b"of before",
    "conflist": json.dumps(
        {"name": "net", "plugins": [{"type": "limpet", "ipMasq": True}]}
    ).encode(),
    "unit": b"# Limpet's; `systemctl edit limpet-agent.service` keeps changes apart from it.\n",
}


@pytest.mark.parametrize("role", FORMER)
def test_a_file_of_a_former_version_without_a_record_is_not_put_back(
    tmp_path: Path, role: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(FORMER[role])

    Manifest.load(tmp_path / "state").put(role, path, b"of now", 0o644)
    take_everything_back(tmp_path / "state")

    assert not path.exists()


@pytest.mark.parametrize("role", FORMER)
@pytest.mark.parametrize("content", [b"a person's", b'{"plugins": [{"type": "flannel"}]}', b"{}"])
def test_a_file_of_somebody_else_is_put_back(tmp_path: Path, role: str, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    Manifest.load(tmp_path / "state").put(role, path, b"of now", 0o644)
    take_everything_back(tmp_path / "state")

    assert path.read_bytes() == content


@pytest.mark.parametrize("left", [b"", bytes(4096), b"new ver", b"new ver" + bytes(400)])
def test_what_a_power_cut_leaves_is_nobodys_edit(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "file"
    manifest = Manifest.load(tmp_path / "state")
    manifest.put("file", path, b"new version", 0o644)

    path.write_bytes(left)

    assert not manifest.is_edited(path, b"new version")
    assert manifest.put("file", path, b"new version", 0o644)
    assert path.read_bytes() == b"new version"
    path.write_bytes(b"new verse")
    assert manifest.is_edited(path, b"new version")


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"version": 1, "files": [{"role": 1}], "folders": []}', '{"version": 1}', "{}"],
)
def test_a_damaged_record_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "installed.json").write_text(text)

    with pytest.raises(StorageError, match=r"installed\.json"):
        Manifest.load(tmp_path)


def test_a_damaged_record_is_put_aside_where_a_new_one_begins(tmp_path: Path) -> None:
    (tmp_path / "installed.json").write_bytes(bytes(100))

    manifest, damage = Manifest.begin(tmp_path)
    manifest.put("file", tmp_path / "file", b"ours", 0o644)

    assert "installed.json: it was damaged" in damage
    assert (tmp_path / "installed.json.damaged").read_bytes() == bytes(100)
    assert Manifest.begin(tmp_path) == (manifest, "")


def test_a_record_that_the_disk_has_lost_is_put_aside_too(tmp_path: Path) -> None:
    (tmp_path / "installed.json").symlink_to("/proc/self/mem")  # EIO
    with pytest.raises(DamagedRecordError, match="Input/output error"):
        Manifest.load(tmp_path)
    settings = parse_settings({"state_dir": str(tmp_path)}, "test")
    assert find_installed(settings, tmp_path, tmp_path).cni_bin_dir == tmp_path
    assert [each.id for each in examine_record(tmp_path)] == ["installation-damaged"]

    manifest, damage = Manifest.begin(tmp_path)

    assert manifest.files == {}
    assert "it was damaged" in damage
