"""Runs CNI plugins as a runtime does, and times them from outside: before the fork to the exit.

os.posix_spawn does not copy the caller's memory, so what Python adds is the same few hundred
microseconds for every plugin; `launcher_floor` measures it and both sides carry it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """One process to start. `stdin` must fit in a pipe (64 KiB)."""

    program: str
    environment: Mapping[str, str]
    stdin: bytes
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended: `exit_code` is negative for a signal, times are monotonic ns."""

    command: Command
    exit_code: int
    stdout: bytes
    started_ns: int
    ended_ns: int

    @property
    def took_ms(self) -> float:
        return (self.ended_ns - self.started_ns) / 1e6

    def check(self) -> Outcome:
        """Itself, or RuntimeError with what the process said."""
        if self.exit_code != 0:
            verb = self.command.environment.get("CNI_COMMAND", "")
            said = self.stdout.decode(errors="replace").strip()
            program = Path(self.command.program).name
            raise RuntimeError(f"{program} {verb}: exit {self.exit_code}: {said}")
        return self


class Child:
    """A started process, in the caller's network namespace."""

    def __init__(self, command: Command) -> None:
        arguments = [command.program, *command.arguments]
        environment = dict(command.environment)
        stdin, to_stdin = os.pipe()
        from_stdout, stdout = os.pipe()
        os.write(to_stdin, command.stdin)
        os.close(to_stdin)
        self._command = command
        self._stdout = from_stdout
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1)]
        self._started_ns = time.monotonic_ns()
        try:
            self.pid = os.posix_spawn(command.program, arguments, environment, file_actions=actions)
        finally:
            os.close(stdin)
            os.close(stdout)

    def outcome(self, status: int, ended_ns: int) -> Outcome:
        """The outcome, once waitpid gave its status."""
        with open(self._stdout, "rb") as stdout:
            said = stdout.read()
        code = os.waitstatus_to_exitcode(status)
        return Outcome(self._command, code, said, self._started_ns, ended_ns)


def run(command: Command) -> Outcome:
    """Start it, wait for its exit."""
    child = Child(command)
    _, status = os.waitpid(child.pid, 0)
    return child.outcome(status, time.monotonic_ns())


def run_many(commands: Iterable[Command], width: int) -> list[Outcome]:
    """Run all, `width` at a time, each started as soon as another has ended."""
    waiting = deque(commands)
    running: dict[int, Child] = {}
    outcomes = []
    try:
        while waiting or running:
            while waiting and len(running) < width:
                child = Child(waiting.popleft())
                running[child.pid] = child
            # Only the caller's process group: agents and servers are in sessions of their own.
            pid, status = os.waitpid(0, 0)
            outcomes.append(running.pop(pid).outcome(status, time.monotonic_ns()))
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return outcomes


def launcher_floor(folder: Path, rounds: int) -> list[float]:
    """Milliseconds that a static C program which does nothing takes, each round."""
    program = folder / "nothing"
    compiler = shutil.which("cc") or "gcc"
    subprocess.run(
        [compiler, "-Os", "-static", "-x", "c", "-o", str(program), "-"],
        input=b"int main(void) { return 0; }",
        check=True,
    )
    command = Command(str(program), {}, b"")
    return [run(command).check().took_ms for _ in range(rounds)]
