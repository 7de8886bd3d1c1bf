"""What is tried: packages as `python -m release` makes them, once for all tests."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from release.checkout import BUILD, CHECKOUT, OUT

from tests.clients.machine import remove_leftovers


@pytest.fixture(scope="session", autouse=True)
def _leftovers() -> None:
    remove_leftovers()


@pytest.fixture(scope="session")
def released() -> Path:
    """The folder of what was made; held, since several processes run these tests."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "tests.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        stamp = BUILD / "tests.stamp"
        now = _state_of_checkout()
        if not stamp.exists() or stamp.read_text() != now:
            subprocess.run([sys.executable, "-m", "release", "all"], cwd=CHECKOUT, check=True)
            stamp.write_text(now)
    return OUT


def _state_of_checkout() -> str:
    def git(*words: str) -> str:
        return subprocess.check_output(["git", "-C", CHECKOUT, *words], text=True)

    changed = git("status", "--porcelain") + git("diff", "HEAD")
    return git("rev-parse", "HEAD") + changed


@pytest.fixture(scope="session")
def architecture() -> str:
    """Debian's name of this machine's."""
    return subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()


@pytest.fixture(scope="session")
def deb(released: Path, architecture: str) -> Path:
    """The package for this machine's architecture."""
    (found,) = released.glob(f"limpet_*_{architecture}.deb")
    return found
