"""The version of a build is that of git's tag, in a checkout that was thrown together for it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from release import checkout
from release.checkout import copy_sources, is_release

_BUILD = """
import sys
import scikit_build_core.build as backend
print(getattr(backend, sys.argv[1])(sys.argv[2]))
"""
_AS_ANYBODY = ("-c", "user.name=a test", "-c", "user.email=test@example")
_OWN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("GIT_", "SETUPTOOLS_SCM_"))
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The sources of Limpet, one commit of them; releases are made of it."""
    made = copy_sources(tmp_path / "checkout")
    (made / ".gitignore").write_text("/build/\n__pycache__/\n")
    git(made, "init", "--quiet")
    commit(made)
    monkeypatch.setattr(checkout, "CHECKOUT", made)
    for name in os.environ.keys() - _OWN.keys():
        monkeypatch.delenv(name)
    yield made
    checkout.version.cache_clear()


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *_AS_ANYBODY, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=_OWN).stdout


def commit(folder: Path) -> str:
    """Its short name. All that is there is in it."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a commit")
    return git(folder, "rev-parse", "HEAD")[:7]


def build(folder: Path, hook: str) -> Path:
    """What that hook of the build backend (PEP 517) makes of the checkout, as pip calls it."""
    out = folder.parent / hook
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-c", _BUILD, hook, str(out)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=_OWN
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / done.stdout.splitlines()[-1]


def version(folder: Path) -> str:
    """Of a build; releases of the checkout have to name the same."""
    metadata = build(folder, "prepare_metadata_for_build_wheel") / "METADATA"
    lines = metadata.read_text(encoding="utf-8").splitlines()
    (built,) = (line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))
    checkout.version.cache_clear()
    assert checkout.version() == built
    return built


@pytest.mark.parametrize(("tag", "expected"), [("v0.2.0", "0.2.0"), ("v0.3.0rc1", "0.3.0rc1")])
def test_a_build_of_a_tag_has_its_version(folder: Path, tag: str, expected: str) -> None:
    git(folder, "tag", tag)

    assert version(folder) == expected
    assert is_release()


def test_a_build_past_a_tag_is_on_the_way_to_the_next_version(folder: Path) -> None:
    git(folder, "tag", "v0.2.0")
    commit(folder)
    name = commit(folder)

    assert version(folder).startswith(f"0.2.1.dev2+g{name}")
    assert not is_release()


def test_a_build_of_a_tag_whose_files_were_changed_is_not_that_version(folder: Path) -> None:
    git(folder, "tag", "v0.2.0")
    (folder / "README.md").write_text("changed\n")

    assert version(folder).startswith("0.2.1.dev0+")
    assert not is_release()


def test_a_build_without_any_tag_comes_before_all_versions(folder: Path) -> None:
    name = commit(folder)

    assert version(folder).startswith(f"0.0.0.dev2+g{name}")
    assert not is_release()


def test_a_wheel_of_a_tag_says_its_version_and_has_the_documentation(folder: Path) -> None:
    git(folder, "tag", "v0.2.0")

    wheel = build(folder, "build_wheel")

    assert wheel.name.startswith("limpet-0.2.0-")
    with zipfile.ZipFile(wheel) as archive:
        assert b'__version__ = "0.2.0"' in archive.read("limpet/_version.py")
        names = set(archive.namelist())
    assert {"limpet/docs/install.md", "limpet/docs/commands/ipam.md"} <= names
