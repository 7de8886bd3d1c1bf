"""The launcher: knows Limpet's programs by their command, and has each forked."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from limpet.lab.launch import ByExec, Process
from tests.warm.request import MOST_BYTES, Request

_LIMPET = [sys.executable, "-m", "limpet"]
_CHECKOUT = Path(__file__).parents[2]
_OWN_NETNS = "/proc/thread-self/ns/net"
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LIMPET_", "TZ", "LANG", "LC_")
"""Variables that the interpreter, its libraries or our modules read when they are loaded."""


def what_is_wanted(command: Sequence[str]) -> tuple[str, str, list[str]] | None:
    """Kind, network namespace, words after `limpet`. None: it has to be started by exec."""
    words = list(command)
    netns = _OWN_NETNS
    if words[0] == "nsenter" and words[1].startswith("--net="):
        netns = words[1].removeprefix("--net=")
        del words[:2]
    if words[:3] != _LIMPET:
        return None
    del words[:3]
    match words:
        case ["agent" | "controller" as kind, "--config", _]:
            return kind, netns, words
        case [] | ["agent" | "controller" | "dns", *_]:
            return None
    return "command", netns, words


class Warmed:
    """A launcher; of each kind of program it has an interpreter, from when one is first wanted."""

    def __init__(self) -> None:
        self._exec = ByExec()
        self._environment = _read_at_start(os.environ)
        self._interpreters: dict[str, _Interpreter] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """What was forked goes on."""
        for each in self._interpreters.values():
            each.close()
        self._interpreters.clear()

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        start_new_session: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> Process:
        environment = os.environ if env is None else env
        asked = what_is_wanted(command)
        if (
            asked is None
            or pass_fds
            or not os.path.exists(asked[1])  # then nsenter says so
            or _read_at_start(environment) != self._environment
        ):
            return self._exec.start(
                command,
                env=env,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=start_new_session,
                pass_fds=pass_fds,
            )
        kind, netns, words = asked
        request = Request(words, dict(environment), os.getcwd(), start_new_session)
        with contextlib.ExitStack() as opened:
            files = [
                _descriptor(opened, file, number)
                for number, file in enumerate((stdin, stdout, stderr))
            ]
            files.append(_open(opened, netns, os.O_RDONLY))
            return self._interpreter(kind).fork(command, request, files)

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        if what_is_wanted(command) is None:
            return self._exec.run(command, env=env, input=input, timeout=timeout)
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(open(os.memfd_create(name), "w+b")) for name in "ioe"]
            files[0].write((input or "").encode())
            files[0].seek(0)
            stdin = files[0] if input is not None else None
            process = self.start(command, env=env, stdin=stdin, stdout=files[1], stderr=files[2])
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                raise
            said = []
            for file in files[1:]:
                file.seek(0)
                said.append(file.read().decode())
            return subprocess.CompletedProcess(command, code, *said)

    def _interpreter(self, kind: str) -> _Interpreter:
        with self._lock:
            if kind not in self._interpreters:
                self._interpreters[kind] = _Interpreter(kind)
            return self._interpreters[kind]


class _Interpreter:
    """A process that has loaded what a kind of program needs, and forks it when asked to."""

    def __init__(self, kind: str) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm.interpreter", kind, str(its.fileno())],
                cwd=_CHECKOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def fork(self, command: Sequence[str], request: Request, files: Sequence[int]) -> Process:
        """`files`: its stdin, stdout, stderr, and its network namespace."""
        told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with tells:
            data = msgspec.json.encode(request)
            assert len(data) < MOST_BYTES
            socket.send_fds(self._socket, [data], [*files, tells.fileno()])
        return _Forked(command, told)


class _Forked:
    """A process as `subprocess.Popen` has it; its parent is the warmed interpreter.

    That one tells its pid, then how it ended, and lets go of the pid when we have read that.
    """

    def __init__(self, command: Sequence[str], told: socket.socket) -> None:
        self.args = command
        self._told = told
        self._lock = threading.Lock()
        self._code: int | None = None
        self.pid = self._read()

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended_within(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, sig: int, /) -> None:
        with self._lock:  # its pid is nobody else's as long as we do not know that it has ended
            if self._code is None:
                os.kill(self.pid, sig)

    def _ended_within(self, seconds: float | None) -> int | None:
        with self._lock:
            if self._code is None and _readable(self._told, seconds):
                self._code = self._read()
                self._told.close()
            return self._code

    def _read(self) -> int:
        data = self._told.recv(32)
        assert data, f"the interpreter that {self.args} is forked from has ended"
        return int(data)

    def __del__(self) -> None:
        self._told.close()


def _readable(one: socket.socket, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(one, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in environment if name.startswith(_READ_AT_START)}


def _descriptor(opened: contextlib.ExitStack, file: int | IO[Any] | None, number: int) -> int:
    """Of what `subprocess` takes for `number`."""
    if file is None:
        return number
    if file == subprocess.DEVNULL:
        return _open(opened, os.devnull, os.O_RDWR)
    return file if isinstance(file, int) else file.fileno()


def _open(opened: contextlib.ExitStack, path: str, flags: int) -> int:
    descriptor = os.open(path, flags)
    opened.callback(os.close, descriptor)
    return descriptor
