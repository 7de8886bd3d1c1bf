"""How long programs and the browser waited for a processor, by the kernel's own count: on a busy
machine that says nothing of the page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.ui.conftest import own_processes


class Waited:
    """Of these processes (pids) and of this test's browser, from now on."""

    def __init__(self, programs: Iterable[int]) -> None:
        self._pids = [*programs, *_browsers()]
        self._before = self._each_s()

    def most_s(self) -> float:
        """Of each process the thread that has waited longest: what is to be drawn goes through one
        after the other."""
        longest: dict[str, float] = {}
        for path, waited_s in self._each_s().items():
            pid = path.parts[2]
            waited_s -= self._before.get(path, waited_s)
            longest[pid] = max(longest.get(pid, 0.0), waited_s)
        return sum(longest.values())

    def _each_s(self) -> dict[Path, float]:
        """How long each thread was ready and waited, since it began."""
        found = {}
        for pid in self._pids:
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):  # it has ended
                    found[path] = int(path.read_text().split()[1]) / 1e9
        return found


def _browsers() -> Iterator[int]:
    for pid in own_processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith("chromium"):
                yield pid
