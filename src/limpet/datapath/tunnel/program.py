"""The program that makes a tunnel: started in a thread of its own, and again when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from limpet.base.errors import LimpetError
from limpet.base.rate_limit import Restarts


class Program(Protocol):
    """What makes a tunnel, of whatever kind. Everything may take its time."""

    @property
    def missing(self) -> str:
        """Why it cannot be started, and what to do; empty: it can, as far as is seen."""

    @property
    def pid(self) -> int | None:
        """None: it does not run. Raises: KernelError."""

    def start(self) -> object:
        """Raises: LimpetError."""

    def stop(self) -> object:
        """Raises: LimpetError."""

    def read_version(self) -> str:
        """Empty if it does not say."""


class TunnelProgram:
    """Runs on the event loop, in the network namespace of the calling thread."""

    def __init__(
        self,
        program: Program,
        *,
        on_start: Callable[[], None],
        wake: Callable[[str], None],
    ) -> None:
        """`on_start`: a start has ended, well or not. `wake`: a round is needed soon."""
        self.problem = ""
        """Why it does not come up or does not stay, until it does."""
        self.version = ""
        """Empty: it does not run, or has not said yet."""
        self._failure = ""
        self._program = program
        self._on_start = on_start
        self._wake = wake
        self._starting: Future[str] | None = None
        self._restarts = Restarts()
        self._again: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tunnel")
        """It enters the namespace of the thread that gives it its first work."""

    def close(self) -> None:
        """It goes on."""
        if self._again is not None:
            self._again.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def is_starting(self) -> bool:
        return self._starting is not None

    def take_failure(self) -> str:
        """Of the last start, told once."""
        failure, self._failure = self._failure, ""
        return failure

    def forget(self) -> None:
        """It is not wanted any more."""
        self.problem = self.version = ""

    def start(self, *, ends: bool) -> None:
        """Now, or when it may be after it has ended again and again; nothing if it is missing.

        `ends`: one that runs has no device any more, or gives no answer, and is ended first.
        """
        if self._starting is not None or self._program.missing or not self._may_start():
            return
        loop = asyncio.get_running_loop()

        def tell(done: Future[str]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._started, done)

        self._starting = self._thread.submit(self._start, ends=ends)
        self._starting.add_done_callback(tell)

    def read_version_soon(self) -> None:
        self._thread.submit(self._read_version)

    def _may_start(self) -> bool:
        """Now; a round is woken when it may, if not."""
        waits_s = self._restarts.take(time.monotonic())
        if not waits_s:
            return True
        self.problem = self.problem or (
            f"its program has ended {self._restarts.count} times in short succession "
            "(journalctl -u limpet-agent, and the program's own log, say more)"
        )
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().call_later(
            waits_s, self._wake, "the tunnel's program may be started again"
        )
        return False

    def _start(self, *, ends: bool) -> str:
        if ends:
            self._program.stop()
        self._program.start()
        return self._program.read_version()

    def _started(self, done: Future[str]) -> None:
        self._starting = None
        if done.cancelled():
            return
        try:
            self.version = done.result()
            self.problem = ""
        except LimpetError as error:
            self.problem = self._failure = str(error)
        self._on_start()

    def _read_version(self) -> None:
        self.version = self._program.read_version()
