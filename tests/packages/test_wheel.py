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
from release.libraries import PYTHONS, wheels
from release.wheel import BINARY

from tests.docs.pages import blocks
from tests.docs.worlds import Player
from tests.packages.roots import PACKAGES, RootMachine

pytestmark = pytest.mark.timeout(1500)

_FROM_THE_FOLDER = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": PACKAGES, "PIP_QUIET": "1"}
"""The machine has no network: pip finds there what an index would give it."""
PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}
"""What Debian calls python3."""
_LOAD_ALL = """
import importlib, pkgutil, limpet
found = [each.name for each in pkgutil.walk_packages(limpet.__path__, "limpet.")]
for name in found:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(found))
"""


def _put(released: Path, python: str, folder: Path) -> None:
    """All that pip needs for that Python, into a folder."""
    (wheel,) = released.glob("limpet-*x86_64*.whl")
    for path in (wheel, *wheels("amd64", python), CHECKOUT / "requirements" / "run.lock"):
        shutil.copy(path, folder)


@pytest.mark.parametrize(("suite", "python"), PYTHON_OF.items())
def test_the_wheel_needs_no_compiler(
    suite: str, python: str, released: Path, tmp_path: Path
) -> None:
    by_the_wheels = [b for b in blocks("docs/platforms.md") if b.marker.get("deb") == "wheel"]
    assert by_the_wheels
    _put(released, python, tmp_path)
    with RootMachine(suite, tmp_path) as machine:
        machine.apt("install", "python3-venv", "libnftables1")
        assert machine.run("python3", "--version").startswith(f"Python {python}.")
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


@pytest.mark.parametrize("python", sorted(set(PYTHONS) - set(PYTHON_OF.values())))
def test_what_no_debian_has_loads_all_of_the_wheel_where_this_machine_has_it(
    python: str, released: Path, tmp_path: Path
) -> None:
    """As far as a command goes: nothing is installed, and this machine's Debian is left alone."""
    interpreter = _interpreter(python)
    if interpreter is None:
        pytest.skip(f"no Python {python} on this machine (pyenv, uv, or on PATH)")
    folder, venv = tmp_path / "wheels", tmp_path / "venv"
    folder.mkdir()
    _put(released, python, folder)
    subprocess.run([interpreter, "-m", "venv", venv], check=True)
    here = {**os.environ, **_FROM_THE_FOLDER, "PIP_FIND_LINKS": str(folder)}
    pip = [str(venv / "bin" / "pip"), "install", "--no-compile", "--disable-pip-version-check"]
    lock = ["--require-hashes", "-r", str(folder / "run.lock")]
    subprocess.run([*pip, *lock], check=True, env=here)
    subprocess.run([*pip, *map(str, folder.glob("limpet-*.whl"))], check=True, env=here)

    loaded = subprocess.check_output([venv / "bin" / "python", "-I", "-c", _LOAD_ALL], text=True)
    assert int(loaded) > 500
    said = subprocess.check_output([venv / "bin" / "limpet", "--version"], text=True)
    assert said == f"limpet {version()}\n"
    said = subprocess.check_output([venv / "bin" / "limpet", "help", "doctor"], text=True)
    assert "`cni-config-missing`" in said


def _interpreter(python: str) -> Path | None:
    """Of that version, of those that somebody has put on this machine."""
    homes = ("~/.pyenv/versions", "~/.local/share/uv/python")
    found = [
        path
        for home in homes
        for path in sorted(Path(home).expanduser().glob(f"*{python}.*/bin/python{python}"))
    ]
    on_path = shutil.which(f"python{python}")
    for each in [*found, *([Path(on_path)] if on_path else [])]:
        # One of pyenv's on PATH may only say that it is not chosen.
        if not subprocess.run(
            [each, "-c", "import venv"], capture_output=True, check=False
        ).returncode:
            return each
    return None


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
