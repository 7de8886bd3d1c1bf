"""The checkout that a release is made of: its version, its time, a clean copy of its sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
BUILD = CHECKOUT / "build" / "release-parts"
"""What is on its way; `OUT` has what is given out."""
OUT = CHECKOUT / "build" / "release"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of an architecture, and everybody else's."""
_NO_COMMIT_EPOCH_S = 315532800
"""1980, the first year that a zip file knows."""
_SOURCES = (
    *("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"),
    *("src", "shim", "bpf", "docs"),
)


class ReleaseError(Exception):
    """In words for whoever makes the release."""


def say(words: str) -> None:
    print(f"release: {words}", file=sys.stderr)


def run(*words: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Its output. Raises: ReleaseError with what it said."""
    done = subprocess.run(
        list(map(str, words)),
        text=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": "C", **(env or {})},
        cwd=cwd,
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-3000:]
        raise ReleaseError(f"{' '.join(map(str, words[:4]))}: {said}")
    return done.stdout


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder(name: str) -> Path:
    """Of downloads, outside of the checkout: `LIMPET_CACHE`, by default ~/.cache/limpet."""
    base = os.environ.get("LIMPET_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "limpet"
    )
    folder = Path(base) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def alone(name: str) -> Iterator[Path]:
    """The folder of that name in `BUILD`, for this process alone."""
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield folder


@cache
def version() -> str:
    """By git's tags (PEP 440): `0.2.0` at v0.2.0, `0.2.1.dev3+g1234567` three commits on."""
    said = run(
        sys.executable,
        "-m",
        "setuptools_scm",
        "--root",
        CHECKOUT,
        "-c",
        CHECKOUT / "pyproject.toml",
    )
    return said.split()[-1]


def is_release() -> bool:
    """The commit has a tag of its own, and nothing was changed since."""
    return ".dev" not in version() and "+" not in version()


@cache
def epoch_s() -> int:
    """The time of the commit, for all times in what is made: `SOURCE_DATE_EPOCH`."""
    if asked := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(asked)
    try:
        return int(run("git", "-C", CHECKOUT, "log", "-1", "--format=%ct"))
    except (ReleaseError, OSError):
        return _NO_COMMIT_EPOCH_S


def environment(as_version: str | None = None) -> dict[str, str]:
    """Of every program whose output is given out."""
    return {
        "SOURCE_DATE_EPOCH": str(epoch_s()),
        "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_LIMPET": as_version or version(),
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
    }


def copy_sources(target: Path) -> Path:
    """What a wheel is built of, into a folder of its own: a build leaves traces where it runs."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so")
    for name in _SOURCES:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, target / name, ignore=ignored)
        else:
            shutil.copy(CHECKOUT / name, target)
    return target
