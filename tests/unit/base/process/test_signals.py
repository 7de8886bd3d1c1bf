"""A process that is told to end before it has an event loop ends with code 0, whatever it is at."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S

_AMID_A_CLASS = """
import os
from limpet.base.process.signals import end_at_once

class Told:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), {number})

end_at_once()
class Owner:
    told = Told()
print("went on")
"""
"""Out of `__set_name__` any exception comes as a RuntimeError (Objects/typeobject.c of 3.11)."""

_SUPPRESSED = """
import os
from limpet.base.process.signals import end_at_once

end_at_once()
try:
    os.kill(os.getpid(), {number})
except BaseException:
    pass
print("went on")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("program", [_AMID_A_CLASS, _SUPPRESSED])
def test_no_import_makes_another_end_of_it(number: signal.Signals, program: str) -> None:
    command = [sys.executable, "-c", program.format(number=int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


_TOLD_AGAIN = """
import os, threading
from limpet.base.process.lifetime import for_ever, run
from limpet.base.process.signals import end_at_once

class AtTheEnd:
    def __del__(self):
        for _ in range(100):
            os.kill(os.getpid(), {number})
        os.write(1, b"at the end")

def told_again(stopping):
    stopping.wait()
    for _ in range(1000):
        os.kill(os.getpid(), {number})

async def main():
    stopping = threading.Event()
    threading.Thread(target=told_again, args=(stopping,)).start()
    os.kill(os.getpid(), {number})
    try:
        await for_ever()
    finally:
        stopping.set()

end_at_once()
kept = AtTheEnd()
run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_is_told_again_while_it_ends_ends_all_the_same(number: signal.Signals) -> None:
    """Other threads have blocked no signal, and Python resets handlers when it ends."""
    command = [sys.executable, "-c", _TOLD_AGAIN.format(number=int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "at the end", "")
