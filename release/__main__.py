"""`python -m release WHAT...`: see the package."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import release
from release.bundle import lock_debians, write_bundle, write_image, write_sums
from release.chart import write_chart
from release.checkout import MACHINES, OUT, ReleaseError, alone, is_release, say, version
from release.deb import debs
from release.sbom import write_sbom
from release.wheel import build_wheel

_WHAT: dict[str, Callable[[], Iterable[Path]]] = {
    "wheel": lambda: [build_wheel(architecture) for architecture in MACHINES],
    "deb": lambda: debs(tuple(MACHINES)),
    "image": lambda: [write_image()],
    "chart": write_chart,
    "sbom": lambda: [write_sbom()],
    "bundle": lambda: [write_bundle()],
}
"""In the order in which one needs the other."""


def main() -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m release",
        description=release.__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("what", nargs="+", choices=("all", "lock", *_WHAT))
    asked = parser.parse_args().what
    os.umask(0o022)
    try:
        with alone("all"):
            if "lock" in asked:
                print(lock_debians())
            if "all" in asked:
                shutil.rmtree(OUT, ignore_errors=True)
            OUT.mkdir(parents=True, exist_ok=True)
            made = [
                path
                for name, make in _WHAT.items()
                if name in asked or "all" in asked
                for path in make()
            ]
            if "all" in asked:
                made.append(write_sums(made))
                if not is_release():
                    say(f"this is no release: the commit has no tag, or was changed ({version()})")
        for path in made:
            print(path)
    except ReleaseError as error:
        say(str(error))
        return 1
    return 0


sys.exit(main())
