"""How the lab starts programs: by exec. Tests, which start thousands, may put another way here."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Protocol


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


class Launcher(Protocol):
    """Starts programs; arguments are as in `subprocess`."""

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        start_new_session: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> Process:
        """As `subprocess.Popen`, without pipes. Raises: OSError."""

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` that captures both outputs. Raises: OSError, TimeoutExpired."""


class ByExec:
    """As everybody starts programs."""

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        start_new_session: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> Process:
        return subprocess.Popen(
            command,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=start_new_session,
            pass_fds=pass_fds,
        )

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=env,
            input=input,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )


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
