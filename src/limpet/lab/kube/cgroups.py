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
"""Group of a node's own programs in v2, where a group that has groups may hold no processes."""
_INHERITED = ("cpuset.cpus", "cpuset.mems")
"""Files that are empty in a new group of v1, which takes no process until they are set."""
_WITHIN_S = 120.0


def into_groups(name: str, *, root: bool = False) -> list[str]:
    """A command in front of another, which then runs in a node's group of every hierarchy.

    `root`: in the topmost one, from which a cgroup namespace begins. The groups are made if need
    be. Raises: OSError.
    """
    groups = [_make(hierarchy / name) for hierarchy in _hierarchies()]
    if (_ROOT / "cgroup.controllers").exists():
        system = _make(_ROOT / name / _SYSTEM)
        groups = groups if root else [system]
    return ["sh", "-c", _ENTER, " ".join(map(str, groups))]


_ENTER = 'for group in $0; do echo $$ > "$group/cgroup.procs" || exit; done; exec "$@"'


def _hierarchies() -> list[Path]:
    """The only one of v2, or those of v1 and what of v2 is beside them."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return sorted(each for each in _ROOT.iterdir() if each.is_mount())


def _make(group: Path) -> Path:
    if not group.is_dir():
        group.mkdir(parents=True, exist_ok=True)
        for name in _INHERITED:
            if (group.parent / name).exists() and (group.parent / "cgroup.clone_children").exists():
                (group / name).write_text((group.parent / name).read_text(encoding="ascii"))
    return group


def end_groups(prefix: str) -> None:
    """Ends every process in groups whose names begin so, and removes them. Raises: LabError."""
    deadline_s = time.monotonic() + _WITHIN_S
    while tops := list(groups(prefix)):
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


def groups(prefix: str) -> Iterator[Path]:
    """Control groups whose names begin with `prefix`, in every hierarchy."""
    for hierarchy in (_ROOT, *_ROOT.glob("*/")):
        yield from hierarchy.glob(f"{prefix}*/")


def _processes(top: Path) -> Iterator[int]:
    for folder, _, _ in os.walk(top):
        with contextlib.suppress(OSError):
            text = Path(folder, "cgroup.procs").read_text(encoding="ascii")
            yield from (int(word) for word in text.split() if word != "0")
