"""Python's packages that Limpet needs, as `requirements/run.lock` fixes them: wheels, by checksum.

Nothing is compiled: where the index has no wheel for a machine and a Python, it says so.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from release.checkout import CHECKOUT, MACHINES, ReleaseError, cache_folder, run, say, sha256
from release.wheel import entries, is_executable, put

LOCK = CHECKOUT / "requirements" / "run.lock"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""That it is given out for: those that wheels are asked for."""
GLIBC_MINOR = 36
"""Of Debian 12: wheels may ask for this one at most."""
_LEFT_OUT = re.compile(r"(^|/)(tests?|__pycache__)/|\.(pyi|pyx|pxd|pxi|c|h|hpp|cpp)$|/\.hash/")
"""For compilers, type checkers and the libraries' own developers."""


@dataclass(frozen=True, slots=True)
class Locked:
    """A package of the lock."""

    requirement: Requirement
    digests: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.requirement.name

    @property
    def version(self) -> str:
        return next(iter(self.requirement.specifier)).version


def locked(lock: Path = LOCK) -> Iterator[Locked]:
    """All of the lock, whatever their markers say."""
    text = lock.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            words, *digests = line.split("--hash=sha256:")
            yield Locked(Requirement(words.strip()), tuple(each.strip() for each in digests))


def needed(architecture: str, python: str) -> list[Locked]:
    """Those whose markers hold there; pip asks the machine that it runs on instead."""
    there = {
        "implementation_name": "cpython",
        "platform_machine": MACHINES[architecture],
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "os_name": "posix",
        "sys_platform": "linux",
    }
    return [
        each
        for each in locked()
        if each.requirement.marker is None or each.requirement.marker.evaluate(there)
    ]


def wheels(architecture: str, python: str) -> list[Path]:
    """Files of the cache, which is filled. Raises: ReleaseError."""
    machine = MACHINES[architecture]
    folder = cache_folder("wheels") / f"{sha256(LOCK)[:16]}-{machine}-{python}"
    if not folder.exists():
        say(f"downloading Python's packages for {machine} and Python {python}")
        fresh = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        asked = fresh / "requirements.txt"
        asked.write_text(
            "".join(
                f"{each.name}=={each.version} "
                + " ".join(f"--hash=sha256:{digest}" for digest in each.digests)
                + "\n"
                for each in needed(architecture, python)
            )
        )
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC_MINOR, 16, -1)]
        run(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp"),
            *(f"--python-version={python}", "--dest", str(fresh), "--requirement", str(asked)),
            *(f"--platform={each}" for each in (*platforms, f"manylinux2014_{machine}")),
        )
        asked.unlink()
        fresh.rename(folder)
    known = {digest for each in locked() for digest in each.digests}
    found = sorted(folder.glob("*.whl"))
    for wheel in found:
        if sha256(wheel) not in known:
            raise ReleaseError(f"{wheel}: not what the lock names (remove it)")
    return found


def lay(architecture: str, own: Path, target: Path) -> None:
    """The wheel `own` and all that it needs, for all `PYTHONS`, in one folder.

    Machine code is named after the Python that it is for (PEP 3149), so one folder serves them all;
    of all else two Pythons have the same. Raises: ReleaseError where they have not.
    """
    paths = {path for python in PYTHONS for path in wheels(architecture, python)}
    by_name = {path.name: path for path in [own, *sorted(paths)]}
    for path in by_name.values():
        for entry, content in entries(path):
            if not _is_left_out(entry.filename):
                _add(target / entry.filename, content, path, executable=is_executable(entry))


def _is_left_out(name: str) -> bool:
    folder, _, file = name.partition("/")
    if folder.endswith(".dist-info"):
        return not (file == "METADATA" or file.startswith(("licenses/", "LICENSE")))
    return not name.startswith("limpet/") and _LEFT_OUT.search(name) is not None


def _add(target: Path, content: bytes, wheel: Path, *, executable: bool) -> None:
    if target.exists():
        # METADATA is as the tool of the day has written it.
        if target.read_bytes() != content and target.name != "METADATA":
            raise ReleaseError(f"{wheel.name}: another Python's wheel has another {target.name}")
        return
    # Of others' libraries nothing is started by itself, whatever their wheels say.
    put(target, content, executable=executable and wheel.name.startswith("limpet-"))
