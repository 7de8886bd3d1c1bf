"""The package of a version before this one, built from the repository's own history."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from release.checkout import cache_folder, say

from tests.history import commit_before, tree_of

_BUILD = "from release.deb import build_deb; print(build_deb(%r))"
_MADE_HERE = "0.0.0a0"


def package_before(deb: Path, architecture: str, folder: Path) -> Path:
    """The package of the version before; built once for all runs.

    Where the history is not here, as in a shallow clone, it is `deb` with another version and other
    bytes of the binary. `folder`: to work in.
    """
    commit = commit_before()
    if not commit:
        say("the history is not here: the version before is made from this very version")
        return _renamed(deb, folder)
    kept = cache_folder("packages-before") / f"{commit}_{architecture}.deb"
    if not kept.exists():
        say(f"building the package of {commit[:12]}, the version before")
        fresh = kept.with_name(f".{os.getpid()}.deb")
        shutil.copy(_built(commit, architecture, folder), fresh)
        fresh.rename(kept)
    return kept


def version_of(deb: Path) -> str:
    """What its `limpet --version` says."""
    path = "./usr/lib/limpet/site-packages/limpet/_version.py"
    packed = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE, check=True
    ).stdout
    said = subprocess.run(["tar", "-xO", path], input=packed, stdout=subprocess.PIPE, check=True)
    found = re.search('__version__ = "(.+)"', said.stdout.decode())
    assert found is not None
    return found[1]


def _built(commit: str, architecture: str, folder: Path) -> Path:
    """By its own sources and this checkout's tools."""
    tree, python = tree_of(commit, folder / "tree")
    said = subprocess.check_output([python, "-m", "setuptools_scm"], cwd=tree, text=True)
    version = said.split()[-1]
    (tree / "src" / "limpet" / "_version.py").write_text(f'__version__ = "{version}"\n')
    built = subprocess.check_output([python, "-c", _BUILD % architecture], cwd=tree, text=True)
    return Path(built.split()[-1])


def _renamed(deb: Path, folder: Path) -> Path:
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(
        re.sub(r"^Version: .*", "Version: 0~before", control.read_text(), flags=re.M)
    )
    packages = tree / "usr/lib/limpet/site-packages/limpet"
    with (packages / "bin" / "limpet-cni").open("ab") as binary:
        binary.write(b"\0")  # which nothing loads
    (packages / "_version.py").write_text(f'__version__ = "{_MADE_HERE}"\n')
    old = folder / "limpet_before.deb"
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", "-z1", tree, old],
        check=True,
        capture_output=True,
    )
    return old
