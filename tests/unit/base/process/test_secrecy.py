"""A process of ours leaves nothing of its memory."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import asyncio, ctypes, resource, subprocess
from limpet.base.process.lifetime import run

async def main():
    child = subprocess.run(["sh", "-c", "ulimit -H -c"], capture_output=True, text=True)
    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)  # PR_GET_DUMPABLE
    print(dumpable, resource.getrlimit(resource.RLIMIT_CORE), child.stdout.strip())

run(main)
"""


def test_neither_it_nor_what_it_starts_dumps_core() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 (0, 0) 0\n"
