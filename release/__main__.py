"""`python -m release WHAT...`: see the package."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Callable

import release
from release.checkout import BUILD, MACHINES, OUT, ReleaseError, say
from release.wheel import build_wheel


def _wheels() -> None:
    for architecture in MACHINES:
        print(build_wheel(architecture))


_WHAT: dict[str, Callable[[], None]] = {"wheel": _wheels}


def main() -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m release",
        description=release.__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("what", nargs="+", choices=("all", *_WHAT))
    asked = parser.parse_args().what
    os.umask(0o022)
    BUILD.mkdir(parents=True, exist_ok=True)
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        with (BUILD / "lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            for name in _WHAT if "all" in asked else asked:
                _WHAT[name]()
    except ReleaseError as error:
        say(str(error))
        return 1
    return 0


sys.exit(main())
