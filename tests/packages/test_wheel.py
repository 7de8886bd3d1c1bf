"""The wheel on a Debian without a compiler, and everything made twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from release.checkout import CHECKOUT, say, sha256, version
from release.libraries import wheels
from release.wheel import BINARY

from tests.docs.pages import blocks
from tests.docs.worlds import Player
from tests.packages.roots import PACKAGES, RootMachine

pytestmark = pytest.mark.timeout(1500)

_FROM_THE_FOLDER = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": PACKAGES, "PIP_QUIET": "1"}
"""The machine has no network: pip finds there what an index would give it."""


def test_the_wheel_needs_no_compiler(released: Path, tmp_path: Path) -> None:
    by_the_wheels = [b for b in blocks("docs/platforms.md") if b.marker.get("deb") == "wheel"]
    assert by_the_wheels
    (wheel,) = released.glob("limpet-*x86_64*.whl")
    shutil.copy(wheel, tmp_path)
    for path in wheels("amd64", "3.13"):
        shutil.copy(path, tmp_path)
    shutil.copy(CHECKOUT / "requirements" / "run.lock", tmp_path)
    with RootMachine("trixie", tmp_path) as machine:
        machine.apt("install", "python3-venv", "libnftables1")
        assert machine.try_run("sh", "-c", "command -v cc gcc clang").returncode != 0

        def typed(words: str, marker: Mapping[str, str], pasted: str) -> CompletedProcess[str]:
            script = f"cd {PACKAGES}\n{words}"
            return machine.try_run("sh", "-euc", script, env=_FROM_THE_FOLDER, stdin=pasted)

        Player(typed, {}).play_all(by_the_wheels)

        assert machine.run("/opt/limpet/bin/limpet", "--version") == f"limpet {version()}\n"
        assert "`cni-config-missing`" in machine.run("/opt/limpet/bin/limpet", "help", "doctor")
        said = machine.run("/opt/limpet/bin/limpet", "install", "--segment", "10.244.7.0/24")
        assert "agent: runs" in said
        assert machine.run("systemctl", "is-active", "limpet-agent").strip() == "active"


def test_the_binary_asks_for_nothing_but_a_kernel(released: Path, tmp_path: Path) -> None:
    """No loader, no C library, no shell: so it is the same one for glibc and for musl."""
    (wheel,) = released.glob("limpet-*x86_64*.whl")
    with zipfile.ZipFile(wheel) as archive:
        Path(archive.extract(BINARY, tmp_path)).rename(tmp_path / "limpet-cni")
    (tmp_path / "limpet-cni").chmod(0o755)

    done = subprocess.run(
        [shutil.which("chroot") or "/usr/sbin/chroot", tmp_path, "/limpet-cni"],
        env={"CNI_COMMAND": "VERSION"},
        input="{}",
        capture_output=True,
        text=True,
        check=True,
    )

    assert "1.1.0" in json.loads(done.stdout)["supportedVersions"]


def test_made_again_in_another_folder_everything_has_the_same_bytes(
    released: Path, tmp_path: Path
) -> None:
    """As another person would, with another environment, locale and time zone."""
    copy = tmp_path / "another" / "folder"
    shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns("build", ".venv", ".mypy_cache"))
    began_s = time.monotonic()
    subprocess.run(
        ["make", "release"],
        cwd=copy,
        check=True,
        env={**os.environ, "TZ": "Pacific/Chatham", "LC_ALL": "C.UTF-8"},
    )
    took_s = time.monotonic() - began_s
    again = sums(copy / "build" / "release")
    shutil.rmtree(copy)  # a gigabyte

    size_mb = sum(path.stat().st_size for path in released.iterdir()) / 1e6
    say(f"made again: {len(again)} files, {size_mb:.0f} MB, {took_s:.0f} s")
    assert again == sums(released)


def sums(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in folder.iterdir()}
