"""A process of ours that was told to end does so, whatever hangs in it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_HANGS = """
import asyncio, functools, threading
from limpet.base.process import lifetime

lifetime._END_S = 0.2

async def work():
    threading.Thread(target=threading.Event().wait).start()  # as one that waits for a dead disk
    asyncio.get_running_loop().call_soon(functools.partial(print, "up", flush=True))
    try:
        await lifetime.for_ever()
    finally:
        print("told", flush=True)

lifetime.run(work)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_hangs_when_it_is_told_to_end_says_where_and_ends(
    number: signal.Signals,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(number)
            told, said = process.communicate(timeout=30)
        finally:
            process.kill()

    assert (process.returncode, told) == (1, "told\n")
    assert "threading.py" in said
    assert "in wait" in said


_CRASHES = """
import ctypes
from limpet.base.process import lifetime

async def read_nowhere():
    ctypes.string_at(0)

lifetime.run(read_nowhere)
"""


def test_a_process_that_crashes_in_a_library_says_where() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CRASHES], capture_output=True, text=True, timeout=30
    )

    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert "in read_nowhere" in done.stderr


_ENDS_BEFORE_ITS_LOOP = """
import signal
from limpet.base.process import lifetime, signals

signals.hold_back()
signal.raise_signal(signal.SIGTERM)
print("held back", flush=True)
signals.end_at_once()
print("not ended")
"""
_IS_TOLD_TWICE = """
import asyncio, signal
from limpet.base.process import lifetime

async def work():
    signal.raise_signal(signal.SIGTERM)
    try:
        await asyncio.sleep(3600)
    finally:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        print("put away", flush=True)

assert lifetime.run(work) is None
"""
_IS_CANCELLED_BY_ITSELF = """
import asyncio
from limpet.base.process import lifetime

async def work():
    asyncio.current_task().cancel()
    await asyncio.sleep(0)

try:
    lifetime.run(work)
except asyncio.CancelledError:
    print("a defect", flush=True)
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (_ENDS_BEFORE_ITS_LOOP, "held back\n"),
        (_IS_TOLD_TWICE, "put away\n"),
        (_IS_CANCELLED_BY_ITSELF, "a defect\n"),
    ],
)
def test_a_process_that_is_told_to_end_puts_away_what_it_has_whenever_it_is_told(
    script: str, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=50
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
