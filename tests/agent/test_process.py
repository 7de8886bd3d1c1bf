"""A process of ours that was told to end does so, whatever hangs in it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_HANGS = """
import asyncio, functools, threading
from limpet.base import process

process._END_S = 0.2

async def run():
    threading.Thread(target=threading.Event().wait).start()  # as one that waits for a dead disk
    asyncio.get_running_loop().call_soon(functools.partial(print, "up", flush=True))
    await process.until_stopped()
    print("told", flush=True)

asyncio.run(run())
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
