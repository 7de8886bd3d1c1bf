"""Another wall clock for one process: no namespace isolates it, so its library calls lie."""

from __future__ import annotations

from pathlib import Path

from limpet.lab.command import LabError

_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib")
_LIBRARY = "libfaketimeMT.so.1"

LONG_AGO = "1970-01-02 00:00:00"
"""A machine without a battery starts about then."""


def has_clock_library() -> bool:
    """Clocks can be turned back on this machine."""
    return _find_library() is not None


def clock_environment(start: str) -> dict[str, str]:
    """Environment of a process whose wall clock is at `start` when it starts, and goes on.

    Its monotonic clock and the times of files stay true. Raises: LabError without libfaketime.
    """
    library = _find_library()
    if library is None:
        raise LabError(
            f"turn a clock back: there is no {_LIBRARY} on this machine (install it: "
            "apt-get install faketime)"
        )
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"@{start}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def forget_clock(pid: int) -> None:
    """Takes away what the library has made in /dev/shm for a process that was killed."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        (Path("/dev/shm") / name).unlink(missing_ok=True)


def _find_library() -> Path | None:
    places = (
        place
        for folder in _FOLDERS
        for pattern in (f"faketime/{_LIBRARY}", f"*/faketime/{_LIBRARY}")
        for place in Path(folder).glob(pattern)
    )
    return next(places, None)
