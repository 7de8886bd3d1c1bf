"""Processes that outlive a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from limpet.lab.command import LabError
from limpet.lab.process import Daemon

READY = """
import os, signal, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
    s.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
signal.pause()
"""


def daemon(folder: Path) -> Daemon:
    return Daemon("helper", folder / "helper.pid", folder / "helper.log")


def start(folder: Path, script: str = READY) -> Daemon:
    found = daemon(folder)
    found.start([sys.executable, "-S", "-c", script], notify=folder / "notify")
    return found


def test_another_command_finds_the_process_and_ends_it(tmp_path: Path) -> None:
    first = start(tmp_path)
    second = daemon(tmp_path)
    pid = second.pid

    assert pid is not None
    assert os.getsid(pid) == pid
    second.kill()

    assert second.pid is None
    first.stop()


def test_a_process_that_does_not_get_ready_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="start helper: no, thanks"):
        start(tmp_path, "raise SystemExit('no, thanks')")

    daemon(tmp_path).stop()


def test_a_stranger_with_the_same_pid_is_never_touched(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as other:
        (tmp_path / "helper.pid").write_text(f"{other.pid} 1\n")
        stale = daemon(tmp_path)

        assert stale.pid is None
        stale.stop(signal.SIGKILL)

        assert other.poll() is None
        other.communicate(b"\n")
    assert other.returncode == 0


@pytest.mark.parametrize("content", ["", "12", "a b", "1 2 3"])
def test_a_pid_file_cut_short_is_no_process(tmp_path: Path, content: str) -> None:
    (tmp_path / "helper.pid").write_text(content)

    assert daemon(tmp_path).pid is None
