"""Descriptors that a service manager keeps while their process is away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.beds.services.service_manager import ServiceManager
from tests.waiting import PATIENCE_S, wait_until

_SERVICE = """
import os, sys
from pathlib import Path
from limpet.base.process.lifetime import KeptDescriptors, notify_service_manager
kept, told, turn = KeptDescriptors(), Path(sys.argv[1]), sys.argv[2]
kept.begin()
if turn == "first":
    fd = os.open(sys.argv[0], os.O_RDONLY)
    kept.keep("one", fd)
    kept.keep("other", os.open("/", os.O_RDONLY))
    os.close(fd)
names = sorted(each for each in ("one", "other", "none") if kept.find(each) is not None)
number = os.fstat(kept.find("one")).st_ino
with told.open("a") as file:
    file.write(f"{turn} {names} {number} {'LISTEN_FDS' in os.environ}\\n")
if turn == "first":
    kept.hand_on()
    os.execv(sys.executable, [sys.executable, *sys.argv[:2], "again"])
notify_service_manager("READY=1")
import signal
signal.pause()
"""


def test_what_is_kept_is_found_after_an_exec_and_after_a_death(tmp_path: Path) -> None:
    script, told = tmp_path / "service.py", tmp_path / "told"
    script.write_text(_SERVICE)
    number = script.stat().st_ino
    with ServiceManager(tmp_path) as manager:
        manager.start([sys.executable, str(script), str(told), "first"])
        wait_until(lambda: len(manager.stored) == 2, "it is kept once")
        assert sorted(name for name, _ in manager.stored) == ["one", "other"]
        manager.stop()
        manager.start([sys.executable, str(script), str(told), "then"])
        assert len(manager.stored) == 2
    seen = told.read_text().splitlines()
    assert seen == [
        f"{turn} ['one', 'other'] {number} False" for turn in ("first", "again", "then")
    ]


def test_what_was_meant_for_another_process_is_nobodys(tmp_path: Path) -> None:
    """As for what an agent starts: its environment goes on to them."""
    told = tmp_path / "told"
    words = "from limpet.base.process.lifetime import stored_descriptors as s; print(s())"
    command = f"LISTEN_PID=1 LISTEN_FDS=2 LISTEN_FDNAMES=a:b {sys.executable} -c '{words}' > {told}"
    subprocess.run(["sh", "-c", command], check=True, timeout=PATIENCE_S)
    assert told.read_text() == "[]\n"
