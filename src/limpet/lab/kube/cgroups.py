"""Control groups of simulated nodes: one for each node, so that all its processes can be ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from limpet.lab.command import LabError

_ROOT = Path("/sys/fs/cgroup")
_SYSTEM = "system"
"""Of a node's own programs, beside its pods: a group that has groups may hold no processes."""
_WITHIN_S = 30.0


def system_group(name: str) -> Path:
    """Where a node's own programs are put; made if need be."""
    hierarchy = _ROOT if (_ROOT / "cgroup.controllers").exists() else _ROOT / "memory"
    group = hierarchy / name / _SYSTEM
    group.mkdir(parents=True, exist_ok=True)
    return group


def end_groups(prefix: str) -> None:
    """Ends every process in groups whose names begin so, and removes them. Raises: LabError."""
    deadline_s = time.monotonic() + _WITHIN_S
    while tops := list(_groups(prefix)):
        for top in tops:
            for pid in _processes(top):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):  # the kernel still holds it
                    os.rmdir(folder)
        if time.monotonic() > deadline_s:
            raise LabError(f"remove {tops[0]}: something in it does not end")
        time.sleep(0.01)


def _groups(prefix: str) -> Iterator[Path]:
    for hierarchy in (_ROOT, *_ROOT.glob("*/")):
        yield from hierarchy.glob(f"{prefix}*/")


def _processes(top: Path) -> Iterator[int]:
    for folder, _, _ in os.walk(top):
        with contextlib.suppress(OSError):
            text = Path(folder, "cgroup.procs").read_text(encoding="ascii")
            yield from (int(word) for word in text.split() if word != "0")
