"""A wheel is what its tags say: nothing in it asks for more of a machine."""

from __future__ import annotations

import base64
import csv
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from release.checkout import CHECKOUT, ReleaseError
from release.elf import read_elf
from release.wheel import BINARY, OBJECTS, PAGE, check, entries, is_executable, pack

from limpet.cni.shim_binary import shim_path

MACHINE = "x86_64"


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """As pip has unpacked it."""
    folder = tmp_path / "unpacked"
    built = shim_path().parents[1]
    for name in (BINARY, *OBJECTS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(built.parent / name, folder / name)
    (folder / PAGE).parent.mkdir()
    shutil.copy(CHECKOUT / "docs" / "install.md", folder / PAGE)
    (folder / "limpet-1.dist-info").mkdir()
    (folder / "limpet-1.dist-info" / "WHEEL").write_text("Wheel-Version: 1.0\nTag: py3-none-any\n")
    (folder / "limpet-1.dist-info" / "RECORD").write_text("")
    return folder


def test_this_machines_binary_and_objects_are_as_a_wheel_wants_them(unpacked: Path) -> None:
    check(unpacked, read_elf(unpacked / BINARY).machine)


def test_a_binary_that_needs_a_library_is_refused(unpacked: Path) -> None:
    shutil.copy(Path(sys.executable).resolve(), unpacked / BINARY)

    with pytest.raises(ReleaseError, match="wanted a static one"):
        check(unpacked, MACHINE)


def test_a_binary_of_another_machine_is_refused(unpacked: Path) -> None:
    with pytest.raises(ReleaseError, match="wanted a static one for riscv64"):
        check(unpacked, "riscv64")


def test_a_wheel_without_the_pages_of_help_is_refused(unpacked: Path) -> None:
    (unpacked / PAGE).unlink()

    with pytest.raises(ReleaseError, match="is missing: `limpet help` reads it"):
        check(unpacked, read_elf(unpacked / BINARY).machine)


def test_a_wheel_without_the_object_of_services_is_refused(unpacked: Path) -> None:
    (unpacked / OBJECTS[0]).unlink()

    with pytest.raises(ReleaseError, match="is missing"):
        check(unpacked, read_elf(unpacked / BINARY).machine)


def test_machine_code_that_nobody_has_spoken_of_is_refused(unpacked: Path) -> None:
    shutil.copy(unpacked / BINARY, unpacked / "limpet" / "further.so")

    with pytest.raises(ReleaseError, match="nobody has spoken of"):
        check(unpacked, read_elf(unpacked / BINARY).machine)


def test_packed_twice_it_has_the_same_bytes_and_its_record_is_true(
    unpacked: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.whl", tmp_path / "two.whl"

    for wheel in (one, two):
        pack(unpacked, wheel, MACHINE)

    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as archive:
        tags = archive.read("limpet-1.dist-info/WHEEL").decode()
        record = archive.read("limpet-1.dist-info/RECORD").decode().splitlines()
        for name, digest, size in csv.reader(record):
            content = archive.read(name)
            if digest:
                said = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
                assert (digest, size) == (f"sha256={said.decode()}", str(len(content)))
        assert {name for name, _, _ in csv.reader(record)} == set(archive.namelist())
    modes = {entry.filename: is_executable(entry) for entry, _ in entries(one)}
    assert [name for name, executable in modes.items() if executable] == [BINARY]
    assert "Tag: py3-none-any" not in tags
    assert f"Tag: py3-none-manylinux2014_{MACHINE}\n" in tags


def test_the_version_is_that_of_gits_tag_and_needs_neither_tag_nor_git(tmp_path: Path) -> None:
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)

    def git(*words: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", tmp_path, *names, *words], check=True, capture_output=True)

    def version() -> str:
        words = [sys.executable, "-m", "setuptools_scm", "--root", str(tmp_path)]
        words += ["-c", str(tmp_path / "pyproject.toml")]
        return subprocess.check_output(words, text=True, stderr=subprocess.DEVNULL).strip()

    assert version() == "0.0.0.dev0"
    git("init", "--quiet")
    git("add", "pyproject.toml")
    git("commit", "--quiet", "--message", "one")
    assert version().startswith("0.0.0.dev1+g")
    git("tag", "v1.2.3")
    assert version() == "1.2.3"
    git("commit", "--quiet", "--message", "two", "--allow-empty")
    assert version().startswith("1.2.4.dev1+g")
