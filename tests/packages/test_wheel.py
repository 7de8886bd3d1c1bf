"""The wheel on a Debian without a compiler, and everything made twice."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from release.checkout import CHECKOUT, version
from release.libraries import wheels

from tests.packages.roots import PACKAGES, RootMachine

pytestmark = pytest.mark.timeout(1500)


def test_the_wheel_needs_no_compiler(released: Path, tmp_path: Path) -> None:
    (wheel,) = released.glob("limpet-*x86_64*.whl")
    shutil.copy(wheel, tmp_path)
    for path in wheels("amd64", "3.13"):
        shutil.copy(path, tmp_path)
    shutil.copy(CHECKOUT / "requirements" / "run.lock", tmp_path)
    with RootMachine("trixie", tmp_path) as machine:
        machine.apt("install", "python3-venv", "libnftables1")
        assert machine.try_run("sh", "-c", "command -v cc gcc clang").returncode != 0
        machine.run("python3", "-m", "venv", "/opt/limpet")
        pip = ("/opt/limpet/bin/pip", "install", "--quiet", "--no-index", "--find-links", PACKAGES)
        machine.run(*pip, "--require-hashes", "-r", f"{PACKAGES}/run.lock")
        machine.run(*pip, f"{PACKAGES}/{wheel.name}")

        assert machine.run("/opt/limpet/bin/limpet", "--version") == f"limpet {version()}\n"
        said = machine.run("/opt/limpet/bin/limpet", "install", "--segment", "10.244.7.0/24")
        assert "agent: runs" in said
        assert machine.run("systemctl", "is-active", "limpet-agent").strip() == "active"


def test_made_again_in_another_folder_everything_has_the_same_bytes(
    released: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "another" / "folder"
    shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns("build", ".venv", ".mypy_cache"))
    # Its own environment is this one's: what is compared is what is made, not what makes it.
    script = (
        "import runpy, sys; folder = sys.argv[1]; sys.path.insert(0, folder);"
        "sys.argv[1:] = ['wheel', 'deb', 'chart', 'sbom'];"
        "runpy.run_module('release', run_name='__main__')"
    )
    environment = {**os.environ, "TZ": "Pacific/Chatham", "LC_ALL": "C.UTF-8"}
    subprocess.run(
        [sys.executable, "-P", "-c", script, copy], cwd=copy, check=True, env=environment
    )

    def sums(folder: Path) -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()
        }

    again = sums(copy / "build" / "release")
    assert len(again) == 7
    assert again.items() <= sums(released).items()
