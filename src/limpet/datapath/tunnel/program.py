"""The program that makes a tunnel: started in a thread of its own, and again when it has ended."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from limpet.base.errors import LimpetError
from limpet.base.rate_limit import Restarts
from limpet.base.timer import Timer


class Program(ABC):
    """A program that makes a tunnel. Each call may take seconds."""

    @property
    @abstractmethod
    def missing(self) -> str:
        """Why it cannot be started, and what to do; empty: nothing known keeps it from starting."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """None: it does not run. Raises: KernelError."""

    @property
    def problem(self) -> str:
        """What a person should know of it while it runs; empty: nothing."""
        return ""

    @property
    @abstractmethod
    def hangs(self) -> bool:
        """It gives no answer, and has to be ended and started again."""

    @property
    def is_in_doubt(self) -> bool:
        """It gave no answer, and is to be asked again now."""
        return False

    @abstractmethod
    def start(self) -> None:
        """Returns when it runs; if it did already, it goes on. Raises: LimpetError."""

    @abstractmethod
    def stop(self) -> None:
        """Returns when it has ended and its device is gone. Raises: LimpetError."""

    @abstractmethod
    def read_version(self) -> str:
        """Such as 5.9.8; empty if it does not say."""


class TunnelProgram:
    """Runs on the event loop, in the network namespace of the calling thread."""

    def __init__(
        self,
        program: Program,
        *,
        on_start: Callable[[], None],
        wake: Callable[[str], None],
    ) -> None:
        """`on_start` is called when a start has succeeded or failed. `wake`: a round is needed."""
        self.problem = ""
        """Why it does not start or does not stay; empty: it does."""
        self.version = ""
        """Empty: it does not run, or has not said yet."""
        self._failure = ""
        self._program = program
        self._on_start = on_start
        self._starting: asyncio.Future[str] | None = None
        self._restarts = Restarts()
        self._again = Timer(
            "tunnel program", lambda: wake("the tunnel's program may be started again")
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tunnel")
        """It enters the namespace of the thread that gives it its first work."""

    def close(self) -> None:
        """The program runs on."""
        self._again.stop()
        if self._starting is not None:
            self._starting.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def is_starting(self) -> bool:
        return self._starting is not None

    def take_failure(self) -> str:
        """Failure of the last start; empty the next time."""
        failure, self._failure = self._failure, ""
        return failure

    def forget(self) -> None:
        """The program is not wanted any more."""
        self.problem = self.version = ""

    def start(self, *, ends: bool) -> None:
        """Starts it now, or later after it has ended again and again; nothing if it is missing.

        `ends`: one that still runs is ended first (it has no device any more, or does not answer).
        """
        if self._starting is not None or self._program.missing or not self._may_start():
            return
        loop = asyncio.get_running_loop()
        self._starting = loop.run_in_executor(self._thread, self._start, ends)
        self._starting.add_done_callback(self._started)

    def read_version_soon(self) -> None:
        self._thread.submit(self._read_version)

    def _may_start(self) -> bool:
        """Whether it may start now; if not, a round is woken when it may."""
        waits_s = self._restarts.take(time.monotonic())
        if not waits_s:
            return True
        self.problem = self.problem or (
            f"its program has ended {self._restarts.count} times in short succession "
            "(the agent's log and the program's own say more)"
        )
        self._again.set_in(waits_s)
        return False

    def _start(self, ends: bool) -> str:
        if ends:
            self._program.stop()
        self._program.start()
        return self._program.read_version()

    def _started(self, done: asyncio.Future[str]) -> None:
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
