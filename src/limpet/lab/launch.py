"""How the lab starts programs: by exec. Tests, which start thousands, may put another way here."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Protocol, TypedDict, Unpack


class Process(Protocol):
    """What is used of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit code, -N: signal N ended it; None: it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises: subprocess.TimeoutExpired."""

    def send_signal(self, sig: int, /) -> None:
        """Does nothing when it is known to have ended."""


class How(TypedDict, total=False):
    """How a program is started; as in `subprocess`."""

    env: Mapping[str, str] | None
    stdin: int | IO[Any] | None
    stdout: int | IO[Any] | None
    stderr: int | IO[Any] | None
    start_new_session: bool
    pass_fds: Sequence[int]


class HowToRun(TypedDict, total=False):
    """How a program is run to its end; as in `subprocess`."""

    env: Mapping[str, str] | None
    input: str | None
    timeout: float | None


class Launcher(Protocol):
    """Starts programs."""

    def start(self, command: Sequence[str], **how: Unpack[How]) -> Process:
        """As `subprocess.Popen`, without pipes. Raises: OSError."""

    def run(
        self, command: Sequence[str], **how: Unpack[HowToRun]
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` that captures both outputs. Raises: OSError, TimeoutExpired."""


class ByExec:
    """As everybody starts programs."""

    def start(self, command: Sequence[str], **how: Unpack[How]) -> Process:
        return subprocess.Popen(command, **how)

    def run(
        self, command: Sequence[str], **how: Unpack[HowToRun]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False, **how)


_launchers: list[Launcher] = [ByExec()]


def launcher() -> Launcher:
    """The one that programs are started with now."""
    return _launchers[-1]


@contextlib.contextmanager
def launching_with(other: Launcher) -> Iterator[None]:
    """Within the block, programs are started with `other`."""
    _launchers.append(other)
    try:
        yield
    finally:
        _launchers.remove(other)
