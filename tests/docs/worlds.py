"""Worlds in which commands of pages run, as a person types them: one of the lab, or a machine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

from limpet.lab.launch import launcher
from limpet.lab.world.worlds import take_down
from tests.cli.install.service_machine import ServiceMachine
from tests.clients.machine import OUTSIDE
from tests.docs.pages import Block, Command, printed_as_shown
from tests.docs.prepared import PREPARED
from tests.waiting import PATIENCE_S, wait_until

Run = Callable[[str, Mapping[str, str], str], CompletedProcess[str]]
"""What is typed, the block's marker, what is pasted when the command asks: to its end."""
Said = Callable[[], tuple[str, bool]]
"""What something that was started has said by now, and whether it goes on."""
Start = Callable[[str, Mapping[str, str]], AbstractContextManager[Said]]
"""What is typed and goes on, the block's marker: until the end of `with`."""

CLOUD = ("203.0.113.10", "198.51.100.5")
"""Where pages say that the controller is, and where it moves to."""
_NEEDS_A_SHELL = re.compile(r"[#|<>;&$'\"*!]")
_LIMPET = f"{shlex.quote(sys.executable)} -m limpet"


@dataclass(frozen=True, slots=True)
class Player:
    """Plays blocks in their order; what one gives (a token) is pasted where the next one asks."""

    run: Run
    given: dict[str, str]
    start: Start | None = None
    """Of a world in which blocks have `stays`."""

    def play_all(self, blocks: list[Block]) -> None:
        """Goes on behind what fails. Raises: AssertionError with all that did."""
        failed = []
        for block in blocks:
            try:
                if file := block.marker.get("file"):
                    self.write(file, block)
                else:
                    self.play(block)
            except AssertionError as error:
                failed.append(str(error))
        assert not failed, "\n\n".join(failed)

    def write(self, file: str, block: Block) -> None:
        """What a person saves as this file, with the folders that it needs."""
        text = f"mkdir -p $(dirname {file}) && cat >{file}"
        done = self.run(text, block.marker, block.text + "\n")
        assert done.returncode == 0, f"{block}: {done.stderr}"

    def play(self, block: Block) -> None:
        """Raises: AssertionError with the page, the line, the command and what it said."""
        for number, command in enumerate(block.commands, 1):
            if "stays" in block.marker and number == len(block.commands):
                self._play_what_stays(block, command)
            elif "within" in block.marker:
                wait_until(partial(self._works, block, command), f"{block}: {command.text}")
            else:
                assert not (wrong := self._wrong(block, command)), wrong

    def _play_what_stays(self, block: Block, command: Command) -> None:
        """Until it has printed what the page shows."""
        assert self.start is not None, f"{block}: nothing stays in this world"
        with self.start(command.text, block.marker) as said:
            try:
                wait_until(lambda: _shows(command, said), "it does not print what is shown")
            except AssertionError as error:
                told = f"{block}: $ {command.text}: {error}: {said()[0]}"
                raise AssertionError(told) from error

    def _works(self, block: Block, command: Command) -> bool:
        return not self._wrong(block, command)

    def _wrong(self, block: Block, command: Command) -> str:
        pasted = self.given.get(block.marker.get("asks", ""), "")
        done = self.run(command.text, block.marker, pasted)
        said = f"{block}: $ {command.text}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        expected = int(block.marker.get("fails", "0") or "1")
        if done.returncode != expected:
            return said
        if missing := printed_as_shown(command.shown, done.stdout + done.stderr):
            return f"{said}\nwhich does not have {missing!r}"
        if name := block.marker.get("gives", ""):
            self.given[name] = done.stdout.strip().splitlines()[-1] + "\n"
        return ""


def _shows(command: Command, said: Said) -> bool:
    """Raises: AssertionError where it never will."""
    printed, goes_on = said()
    missing = printed_as_shown(command.shown, printed)
    assert goes_on, "it has ended"
    return not missing


@contextlib.contextmanager
def going_on(words: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[Said]:
    """A command with all that it starts, until the end of `with`."""
    with (
        log.open("wb") as out,
        subprocess.Popen(
            words, stdout=out, stderr=out, env=environment, start_new_session=True
        ) as process,
    ):
        try:
            yield lambda: (log.read_text(), process.poll() is None)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE_S)


@contextlib.contextmanager
def on_this_machine(folder: Path) -> Iterator[Player]:
    """`limpet lab` of a world that nobody else has; it is taken down however the page ends."""
    name = f"docs{os.getpid()}"
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    script = bin_folder / "limpet"
    script.write_text(
        '#!/bin/sh\nif [ "$1" = lab ] && [ $# -gt 1 ]; then\n'
        f'    sub=$2; shift 2; exec {_LIMPET} lab "$sub" --name {name} "$@"\nfi\n'
        f'exec {_LIMPET} "$@"\n'
    )
    script.chmod(0o755)
    limpet = [sys.executable, "-m", "limpet"]
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}

    def on(at: str, text: str) -> list[str]:
        words = ["sh", "-euc", f"cd {folder}; {text}"]
        return [*limpet, "lab", "shell", "--name", name, at, "--", *words] if at else words

    def start(text: str, marker: Mapping[str, str]) -> AbstractContextManager[Said]:
        return going_on(on(marker["at"], text), folder / "stays.log", environment)

    def run(text: str, marker: Mapping[str, str], pasted: str) -> CompletedProcess[str]:
        at = marker.get("at", "")
        words = on(at, text)
        if not at and not _NEEDS_A_SHELL.search(text) and text.startswith("limpet "):
            typed = shlex.split(text)[1:]  # forked, not started: half a second less for each
            named = ["--name", name] if typed[0] == "lab" else []
            words = [*limpet, *typed[:2], *named, *typed[2:]]
        return launcher().run(words, input=pasted, env=environment)

    try:
        yield Player(run, {}, start)
    finally:
        take_down(name)


@contextlib.contextmanager
def in_the_lab(topology: str, folder: Path) -> Iterator[Player]:
    """A world where every pod reaches every other; `at=crane-1` is typed on that node."""
    with on_this_machine(folder) as player:
        done = player.run(f"limpet lab up {topology}", {}, "")
        assert done.returncode == 0, done.stdout + done.stderr
        wait_until(lambda: player.run("limpet lab status --ping", {}, "").returncode == 0)
        yield player


@contextlib.contextmanager
def on_a_machine(assumed: str = "") -> Iterator[Player]:
    """Debian with systemd and containerd, and a controller next door; `at=cloud` is typed there.

    `assumed`: what pages take for granted there, of `PREPARED`; empty: nothing.
    """
    with ServiceMachine() as machine:
        machine.write("/usr/local/bin/limpet", f'#!/bin/sh\nexec {_LIMPET} "$@"\n')
        machine.path("/usr/local/bin/limpet").chmod(0o755)
        for address in CLOUD:
            machine.run("ip", "address", "add", f"{address}/32", "dev", "uplink", netns=OUTSIDE)
        settings = "/tmp/cloud/controller.toml"
        machine.write(
            settings,
            'state_dir = "/tmp/cloud/state"\nsocket = "/tmp/cloud/c.sock"\nlisten = "[::]:7470"\n',
        )
        machine.start(*shlex.split(_LIMPET), "controller", "--config", settings, netns=OUTSIDE)
        wait_until(machine.path("/tmp/cloud/c.sock").exists, "the controller listens")
        path = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin"}

        def run(text: str, marker: Mapping[str, str], pasted: str) -> CompletedProcess[str]:
            cloud = marker.get("at", "") == "cloud"
            return machine.try_run(
                *("bash", "-euc", f"cd /root; {text}"),
                netns=OUTSIDE if cloud else "",
                env=path | ({"LIMPET_CONTROLLER_CONFIG": settings} if cloud else {}),
                stdin=pasted,
            )

        def typed(text: str, *, at: str = "", pasted: str = "") -> str:
            done = run(text, {"at": at}, pasted)
            assert done.returncode == 0, f"{text}: {done.stdout}{done.stderr}"
            return done.stdout

        if assumed:
            PREPARED[assumed](machine, typed)
        yield Player(run, {})
