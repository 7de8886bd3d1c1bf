"""The image of the version before this one, from which agents are upgraded."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from release.checkout import CHECKOUT, cache_folder

from tests.history import commit_before, tree_of

TAG = "before"
IMAGE = f"limpet.dev/limpet:{TAG}"


def image_before(folder: Path) -> Path:
    """An archive to be imported with ctr, of the version before; built once for all runs.

    Where the history is not here it is of this very commit, which says another version of itself
    than the image that tests are made with. `folder`: to work in.
    """
    head = ["git", "-C", str(CHECKOUT), "rev-parse", "HEAD"]
    commit = commit_before() or subprocess.check_output(head, text=True).strip()
    kept = cache_folder("images-before") / f"{commit}.tar"
    if not kept.exists():
        tree, python = tree_of(commit, folder / "tree")
        command = [str(python), str(tree / "scripts" / "build-image"), "--tag", TAG]
        built = subprocess.check_output(command, text=True).split()[-1]
        fresh = kept.with_name(f".{os.getpid()}.tar")
        shutil.copy(built, fresh)
        fresh.rename(kept)
    # The lab's nodes see the checkout, and not all else of this machine.
    seen = CHECKOUT / "build" / "image-before.tar"
    shutil.copy(kept, seen)
    return seen
