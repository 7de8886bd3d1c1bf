"""SIGTERM ends what serves nodes cleanly from its first line on: while it begins, and once it is
ready."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from limpet.agent.client import call
from limpet.cni import frames
from limpet.lab.launch import Process, launcher
from tests.beds.namespaces import NetnsFactory
from tests.conftest import SEGMENTS
from tests.waiting import PATIENCE_S, wait_until

_INSTANTS = 4


class Served:
    """One program, started again and again with the same folder."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self._command = command
        self._log = folder / "log"
        self._readiness = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._readiness.bind(str(folder / "ready"))
        self._readiness.settimeout(PATIENCE_S)
        self._environment = {**os.environ, "NOTIFY_SOCKET": str(folder / "ready")}

    def close(self) -> None:
        self._readiness.close()

    def begin(self) -> Process:
        """Returns when it hears signals: the interpreter itself does not, and is ended by one."""
        with open(self._log, "wb") as log:
            process = launcher().start(self._command, env=self._environment, stderr=log)
        wait_until(lambda: process.poll() is not None or _hears_signals(process.pid), "it is deaf")
        return process

    def await_ready(self) -> None:
        while b"READY=1" not in self._readiness.recv(4096):
            pass

    def end(self, process: Process) -> tuple[int, str]:
        """Exit code, and what it said that is no line of a log."""
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE_S)
        self._readiness.setblocking(False)
        while _received(self._readiness):
            pass
        self._readiness.settimeout(PATIENCE_S)
        lines = self._log.read_text().splitlines()
        return code, "\n".join(line for line in lines if not line.startswith("timestamp="))


def _hears_signals(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def _received(readiness: socket.socket) -> bool:
    try:
        return bool(readiness.recv(4096))
    except BlockingIOError:
        return False


def _write(path: Path, **settings: object) -> list[str]:
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in settings.items()]
    path.write_text("\n".join(lines) + "\n")
    return ["--config", str(path)]


def controller(folder: Path) -> list[str]:
    settings = {
        "state_dir": str(folder / "state"),
        "socket": str(folder / "c.sock"),
        "listen": "127.0.0.1:7470",
    }
    return ["controller", *_write(folder / "controller.toml", **settings)]


def _folders(folder: Path) -> dict[str, str]:
    names = {"data_dir": "d", "state_dir": "s", "run_dir": "r", "socket": "r/agent.sock"}
    return {key: str(folder / name) for key, name in names.items()}


def agent(folder: Path) -> list[str]:
    return ["agent", *_write(folder / "agent.toml", segments=SEGMENTS, **_folders(folder))]


def names(folder: Path) -> list[str]:
    return ["dns", "serve", *_write(folder / "agent.toml", dns="on", **_folders(folder))]


def test_an_agent_ends_at_once_also_while_somebody_follows_what_happens(
    tmp_path: Path, make_netns: NetnsFactory
) -> None:
    """`limpet events --follow` waits for half a minute each time that it asks."""
    at = f"--net={make_netns().path}"
    served = Served(tmp_path, ["nsenter", at, sys.executable, "-m", "limpet", *agent(tmp_path)])
    path = Path(_folders(tmp_path)["socket"])
    try:
        process = served.begin()
        served.await_ready()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as follower:
            follower.connect(str(path))
            question = frames.AdminCall("events", {"after": 1000, "wait_s": 45.0})
            follower.sendall(frames.encode_admin_call(question))
            call(path, "status")  # connections are taken in their order

            assert served.end(process) == (0, "")
            assert follower.recv(4096), "it is answered"
    finally:
        served.close()


@pytest.mark.parametrize("program", [controller, agent, names])
def test_a_process_that_is_told_to_end_at_any_instant_ends_cleanly(
    tmp_path: Path, make_netns: NetnsFactory, program: Callable[[Path], list[str]]
) -> None:
    at = f"--net={make_netns().path}"
    command = ["nsenter", at, sys.executable, "-m", "limpet", *program(tmp_path)]
    served = Served(tmp_path, command)
    try:
        first = served.begin()
        heard_s = time.monotonic()
        served.await_ready()
        took_s = time.monotonic() - heard_s
        assert served.end(first) == (0, "")

        for instant in range(_INSTANTS):
            process = served.begin()
            try:
                process.wait(took_s * instant / _INSTANTS)  # nothing tells how far it has got
            except subprocess.TimeoutExpired:
                pass
            assert served.end(process) == (0, ""), f"after {instant} of {_INSTANTS} parts"
    finally:
        served.close()
