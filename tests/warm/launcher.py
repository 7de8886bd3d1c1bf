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
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, NamedTuple, Unpack

import msgspec

from limpet.lab.launch import ByExec, How, HowToRun, Process
from tests.warm.request import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    MOST_BYTES,
    Request,
)

_LIMPET = [sys.executable, "-m", "limpet"]
_CHECKOUT = Path(__file__).parents[2]
_KINDS = {
    "net": (CLONE_NEWNET, "net"),
    "uts": (CLONE_NEWUTS, "uts"),
    "ipc": (CLONE_NEWIPC, "ipc"),
    "pid": (CLONE_NEWPID, "pid"),
    "mount": (CLONE_NEWNS, "mnt"),
}
_PLAIN = {"LC_ALL": "C.UTF-8"}
"""What the machines of tests say of all that is read at the start."""
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LIMPET_", "TZ", "LANG", "LC_")
"""Variables that the interpreter, its libraries or our modules read when they are loaded."""


class Wanted(NamedTuple):
    """A program of Limpet, and where."""

    kind: str
    words: list[str]
    """After `limpet`."""
    namespaces: list[tuple[int, str]]
    """Kind and path of each."""
    environment: Mapping[str, str] | None
    """None: that of the one who starts it."""


def what_is_wanted(command: Sequence[str]) -> Wanted | None:
    """None: it has to be started by exec."""
    words = list(command)
    namespaces = [(CLONE_NEWNET, "/proc/thread-self/ns/net")]
    environment = None
    if words[0] == "nsenter":
        options = list(takewhile(lambda each: each.startswith("--"), words[1:]))
        del words[: len(options) + 1]
        namespaces = list(_namespaces(options))
    if words[:2] == ["env", "-i"]:
        assigned = list(takewhile(lambda each: "=" in each, words[2:]))
        environment = dict(each.split("=", 1) for each in assigned)
        del words[: len(assigned) + 2]
    if words[:3] != _LIMPET:
        return None
    del words[:3]
    match words:
        case ["agent" | "controller" as kind, "--config", _]:
            return Wanted(kind, words, namespaces, environment)
        case [] | ["agent" | "controller" | "dns", *_]:
            return None
    return Wanted("command", words, namespaces, environment)


def _namespaces(options: Iterable[str]) -> Iterator[tuple[int, str]]:
    """What nsenter(1) enters with them; of mounts last, since paths are others from then on."""
    given = dict(each.removeprefix("--").partition("=")[::2] for each in options)
    for name, (kind, file) in _KINDS.items():
        if name in given:
            yield kind, given[name] or f"/proc/{given['target']}/ns/{file}"


class Warmed:
    """A launcher; of each kind of program it has an interpreter, from when one is first wanted."""

    def __init__(self) -> None:
        self._exec = ByExec()
        self._environment = _read_at_start(os.environ)
        self._interpreters: dict[Hashable, _Interpreter] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """What was forked goes on."""
        for each in self._interpreters.values():
            each.close()
        self._interpreters.clear()

    def start(self, command: Sequence[str], **how: Unpack[How]) -> Process:
        asked = what_is_wanted(command)
        if asked is None or how.get("pass_fds"):
            return self._exec.start(command, **how)
        environment = asked.environment or how.get("env") or os.environ
        read_at_start = _read_at_start(environment)
        if read_at_start not in (self._environment, _PLAIN) or not all(
            os.path.exists(path)  # else nsenter says so
            for _, path in asked.namespaces
        ):
            return self._exec.start(command, **how)
        request = Request(
            asked.words,
            dict(environment),
            os.getcwd(),
            how.get("start_new_session", False),
            [kind for kind, _ in asked.namespaces],
        )
        with contextlib.ExitStack() as opened:
            files = [
                _descriptor(opened, file, number)
                for number, file in enumerate(
                    (how.get("stdin"), how.get("stdout"), how.get("stderr"))
                )
            ]
            files += [_open(opened, path, os.O_RDONLY) for _, path in asked.namespaces]
            return self._interpreter(asked.kind, read_at_start).fork(command, request, files)

    def run(
        self, command: Sequence[str], **how: Unpack[HowToRun]
    ) -> subprocess.CompletedProcess[str]:
        if what_is_wanted(command) is None:
            return self._exec.run(command, **how)
        said = how.get("input")
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(open(os.memfd_create(name), "w+b")) for name in "ioe"]
            files[0].write((said or "").encode())
            files[0].seek(0)
            stdin = files[0] if said is not None else None
            process = self.start(
                command, env=how.get("env"), stdin=stdin, stdout=files[1], stderr=files[2]
            )
            try:
                code = process.wait(how.get("timeout"))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                raise
            outputs = []
            for file in files[1:]:
                file.seek(0)
                outputs.append(file.read().decode())
            return subprocess.CompletedProcess(command, code, *outputs)

    def _interpreter(self, kind: str, read_at_start: Mapping[str, str]) -> _Interpreter:
        key = kind, *sorted(read_at_start.items())
        with self._lock:
            if key not in self._interpreters:
                self._interpreters[key] = _Interpreter(kind, read_at_start)
            return self._interpreters[key]


class _Interpreter:
    """A process that has loaded what a kind of program needs, and forks it when asked to."""

    def __init__(self, kind: str, read_at_start: Mapping[str, str]) -> None:
        others = {
            name: os.environ[name] for name in os.environ if name not in _read_at_start(os.environ)
        }
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm.interpreter", kind, str(its.fileno())],
                cwd=_CHECKOUT,
                env={**others, **read_at_start},
                stdin=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def fork(self, command: Sequence[str], request: Request, files: Sequence[int]) -> Process:
        """`files`: its stdin, stdout, stderr, and its namespaces."""
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
