"""A process of ours leaves nothing of its memory."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

_PT_LOAD = 1
_PROGRAM = """
import asyncio, ctypes, resource, subprocess
from limpet.base.process.lifetime import run

async def main():
    look = ["sh", "-c", "ulimit -H -c; cat /proc/self/coredump_filter"]
    child = subprocess.run(look, capture_output=True, text=True)
    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)  # PR_GET_DUMPABLE
    print(dumpable, resource.getrlimit(resource.RLIMIT_CORE), *child.stdout.split())

run(main)
"""
_STARTS_ONE_THAT_DIES = """
import resource, subprocess, sys
from limpet.base.process.secrecy import dump_nothing

_, most = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
resource.setrlimit = lambda *_: None  # as where dumps are piped into a program: no limit counts
if sys.argv[1] == "secretly":
    dump_nothing()
dies = "import os, sys; secret = bytes.fromhex(sys.stdin.read()) * 100; os.abort()"
child = subprocess.run([sys.executable, "-c", dies], input=sys.argv[2].encode()[::-1])
print(child.returncode)
"""


def test_neither_it_nor_what_it_starts_dumps_core() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 (0, 0) 0 00000000\n"


def dumped_of_a_child(how: str, secret: bytes, folder: Path) -> bytes:
    """The memory that is dumped of a program which holds the secret, and which another started."""
    folder.mkdir()
    command = [sys.executable, "-c", _STARTS_ONE_THAT_DIES, how, secret.hex()[::-1]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert int(done.stdout) == -signal.SIGABRT
    (core,) = folder.iterdir()
    return memory_in(core.read_bytes())


def memory_in(core: bytes) -> bytes:
    """Without its notes, which have the registers. Source: elf(5), ELFCLASS64."""
    assert core.startswith(b"\x7fELF\x02")
    (first,) = struct.unpack_from("=Q", core, 32)
    size, count = struct.unpack_from("=HH", core, 54)
    memory = b""
    for number in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("=IIQQQQ", core, first + number * size)
        if kind == _PT_LOAD:
            memory += core[offset : offset + length]
    return memory


def test_a_dump_that_no_limit_stops_has_no_memory_of_what_it_started(tmp_path: Path) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8")
    if pattern.startswith(("|", "/")):
        pytest.skip("this machine's dumps are not put where the process was")
    secret = os.urandom(32)

    assert secret in dumped_of_a_child("openly", secret, tmp_path / "openly")

    memory = dumped_of_a_child("secretly", secret, tmp_path / "secretly")
    assert secret not in memory
    assert len(memory) < 1 << 16, "some kilobytes of the kernel's own are in every dump"
