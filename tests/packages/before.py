"""The package of a version before this one, built from the repository's own history."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from release.checkout import CHECKOUT, cache_folder, say

PINNED = "a440ff73306a36e81c04c4051d14d35dc3afb13a"
"""Until there is a release: a commit whose records a node and a controller of today go on with.
Those of before 4ab80d5c had no `version` in `installed.json` and others, and are refused in words:
nobody had been given them. Once there is a release, what it has written stays readable."""
_BUILD = "from release.deb import build_deb; print(build_deb(%r))"
_MADE_HERE = "0.0.0a0"


def package_before(deb: Path, architecture: str, folder: Path) -> Path:
    """The package of the last release, or of `PINNED`; built once for all runs.

    Where the history is not here, as in a shallow clone, it is `deb` with another version and other
    bytes of the binary. `folder`: to work in.
    """
    commit = _commit()
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


def _commit() -> str:
    """Empty: there is no history here. Raises: CalledProcessError where that lacks `PINNED`."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return ""
    tag = _git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
    command = ["git", "-C", str(CHECKOUT), "rev-parse", "--verify", f"{tag or PINNED}^{{commit}}"]
    return subprocess.check_output(command, text=True).strip()


def _git(*words: str) -> str:
    """Empty where it fails."""
    command = ["git", "-C", str(CHECKOUT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _built(commit: str, architecture: str, folder: Path) -> Path:
    """In a clone, by the tools that this checkout's environment has, and by its own sources."""
    tree, venv = folder / "tree", folder / "venv"
    subprocess.run(
        ["git", "clone", "--quiet", "--shared", "--no-checkout", CHECKOUT, tree], check=True
    )
    subprocess.run(["git", "-C", tree, "checkout", "--quiet", "--detach", commit], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    # Not by PYTHONPATH: an editable install's finder comes before it.
    (packages,) = venv.glob("lib/python*/site-packages")
    tools = next(path for path in sys.path if path.endswith("/site-packages"))
    (packages / "before.pth").write_text(f"{tree / 'src'}\n{tools}\n")
    python = venv / "bin" / "python"
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
