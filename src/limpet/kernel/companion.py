"""What the programs beside the agent have in common: they are ended, and their logs are cut."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

from limpet.model.errors import KernelError

_STOP_TIMEOUT_S = 5.0
_LARGEST_LOG_BYTES = 256 << 10


def end_process(pid_of: Callable[[], int | None], where: Path) -> None:
    """Ends the process that answers at the socket `where`, by force if it does not end by itself.

    `pid_of`: that process now; None: none does. Raises: KernelError when it is still there.
    """
    pid = pid_of()
    if pid is None:
        return
    descriptor = os.pidfd_open(pid)
    try:
        if pid_of() != pid:
            return  # it ended meanwhile, and the number is another's
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(descriptor, number)
            if ended.poll(_STOP_TIMEOUT_S * 1000):
                return
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)
    raise KernelError("stop", f"process {pid} ({where})", errno.ETIMEDOUT)


def cut_log(log: Path) -> None:
    """Empties a log that has grown for months; one that cannot be cut is no reason to have no
    tunnel."""
    try:
        if log.stat().st_size > _LARGEST_LOG_BYTES:
            os.truncate(log, 0)
    except OSError:
        return
