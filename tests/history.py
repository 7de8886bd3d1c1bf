"""The version before this one, as the repository's own history has it, to be upgraded from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from release.checkout import CHECKOUT

PINNED = "a440ff73306a36e81c04c4051d14d35dc3afb13a"
"""Until there is a release: a commit whose records a node and a controller of today go on with.
Those of before 4ab80d5c had no `version` in `installed.json` and others, and are refused in words:
nobody had been given them. Once there is a release, what it has written stays readable."""


class Tree(NamedTuple):
    folder: Path
    python: Path
    """Of its environment, which has this checkout's tools and the sources of the tree."""


def commit_before() -> str:
    """The last release, or `PINNED`; empty: there is no history here, as in a shallow clone.

    Raises: CalledProcessError where the history lacks `PINNED`.
    """
    if _git("rev-parse", "--is-shallow-repository") != "false":
        return ""
    tag = _git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
    command = ["git", "-C", str(CHECKOUT), "rev-parse", "--verify", f"{tag or PINNED}^{{commit}}"]
    return subprocess.check_output(command, text=True).strip()


def tree_of(commit: str, folder: Path) -> Tree:
    """The checkout as it was then, made in `folder`, which is not there yet."""
    subprocess.run(
        ["git", "clone", "--quiet", "--shared", "--no-checkout", CHECKOUT, folder], check=True
    )
    subprocess.run(["git", "-C", folder, "checkout", "--quiet", "--detach", commit], check=True)
    venv = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    # Not by PYTHONPATH: an editable install's finder comes before it.
    (packages,) = venv.glob("lib/python*/site-packages")
    tools = next(path for path in sys.path if path.endswith("/site-packages"))
    (packages / "before.pth").write_text(f"{folder / 'src'}\n{tools}\n")
    return Tree(folder, venv / "bin" / "python")


def _git(*words: str) -> str:
    """Empty where it fails."""
    command = ["git", "-C", str(CHECKOUT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
