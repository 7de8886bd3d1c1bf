"""Another wall clock for one process: no namespace isolates it, so its library calls lie."""

from __future__ import annotations

import math
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

from limpet.lab.command import LabError, run_command

_SOURCE = Path(__file__).with_name("clock.c")

LONG_AGO = "1970-01-02 00:00:00"
"""A machine without a battery starts about then."""


def can_turn_clocks() -> bool:
    """Clocks can be turned back on this machine."""
    return shutil.which("cc") is not None


def clock_environment(start: str, folder: Path) -> dict[str, str]:
    """Environment of a process whose wall clock is at `start` (UTC) now, and goes on.

    Its monotonic clock, its sleeps and the times of files stay true. The library for it is built in
    `folder`. Raises: LabError without a C compiler.
    """
    if not can_turn_clocks():
        raise LabError(
            "turn a clock back: there is no C compiler (cc) on this machine "
            "(install it: apt-get install gcc libc6-dev)"
        )
    library = folder / "clock.so"
    if not library.exists():
        fresh = library.with_suffix(f".{os.getpid()}")
        run_command("cc", "-O1", "-shared", "-fPIC", "-o", str(fresh), str(_SOURCE))
        fresh.rename(library)
    shift_s = datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp() - time.time()
    return {"LD_PRELOAD": str(library), "LIMPET_CLOCK_SHIFT_S": str(math.ceil(shift_s))}
