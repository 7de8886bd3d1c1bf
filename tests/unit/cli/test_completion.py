"""Completion: all commands are in the scripts, and bash completes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from limpet.cli.completion import names
from limpet.cli.completion.commands import NAMES, words_by_command
from limpet.cli.completion.shells import Shell, completion_script
from limpet.cli.main import app, main
from limpet.cli.usage.tree import all_commands
from tests.unit.cli.hostile import agent, answering, controller

COMMANDS = list(all_commands(typer.main.get_command(app)))
_ASK = r"""
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); compopt() { :; }
_limpet
printf '%s\n' "${COMPREPLY[@]}"
"""
Complete = Callable[..., list[str]]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Complete:
    """What bash has for the last of the words behind `limpet`."""
    folder = tmp_path_factory.mktemp("completion")
    script = completion_script(Shell.BASH, words_by_command(COMMANDS))
    (folder / "script").write_text(script + _ASK)
    limpet = folder / "limpet"
    limpet.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m limpet "$@"\n')
    limpet.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    def run(*words: str) -> list[str]:
        command = ["bash", "--norc", str(folder / "script"), "limpet", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, cwd=folder
        )
        assert done.stderr == ""
        return done.stdout.split()

    return run


@pytest.mark.parametrize("shell", Shell)
def test_a_script_has_every_command_and_every_option(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in COMMANDS:
        for word in (*command.below, *(word for each in command.options for word in each.words)):
            assert word in script, f"{command.words} {word}"


def test_names_are_asked_for_of_parameters_that_there_are() -> None:
    found = {each.words: {one.name for one in each.parameters} for each in COMMANDS}
    for words, parameters in NAMES.items():
        assert set(parameters) <= found[words], words
        assert set(parameters.values()) <= set(names._KINDS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nod"], ["node"]),
        (["node", "l"], ["list", "label"]),
        (["node", "list", "--al"], ["--all"]),
        (["status", "-o", ""], ["table", "wide", "json", "yaml"]),
        (["status", "--output", "=", "j"], ["json"]),
        (["status", "--config", "sc"], ["script"]),
        (["path", "--port", "80", "--protocol", ""], ["tcp", "udp", "sctp"]),
        (["lab", "up", "two"], ["two-sites"]),
        (["lab", "fault", "re"], ["reboot"]),
        (["status", "nothing", ""], []),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes(complete: Complete, words: list[str], expected: list[str]) -> None:
    assert complete(*words) == expected


def test_names_come_from_who_runs_here_and_none_of_them_is_a_command(
    complete: Complete, tmp_path: Path
) -> None:
    at_agent, at_controller = tmp_path / "agent.toml", tmp_path / "controller.toml"
    at_agent.write_text(f'socket = "{tmp_path}/agent.sock"\n')
    at_controller.write_text(f'socket = "{tmp_path}/controller.sock"\n')
    records = [
        {"pod_namespace": "default", "pod": "web-0"},
        {"pod_namespace": "default", "pod": "$(touch /tmp/limpet-was-here)"},
    ]
    nodes = [{"name": "crane-1"}, {"name": "crane-2\nrm"}, {"name": "`id`"}, {"name": "-rf"}]
    tokens = [{"id": "5f2c9a10b7"}, {"id": "$(id)"}]
    says: dict[str, Any] = {"ipam.list": {"records": records}}
    with (
        answering(tmp_path / "agent.sock", agent(says)),
        answering(
            tmp_path / "controller.sock",
            controller({"node.list": {"nodes": nodes}, "token.list": {"tokens": tokens}}),
        ),
    ):
        found = complete("ipam", "release", "--config", str(at_agent), "d")
        assert found == ["default/web-0"]
        assert complete("node", "show", "--config", str(at_controller), "") == ["crane-1"]
        for before in ((), ("0123456789",)):
            found = complete("token", "remove", "--config", str(at_controller), *before, "")
            assert found == ["5f2c9a10b7"]
        assert complete("node", "show", "--config", str(tmp_path / "none"), "") == []


def test_asking_for_names_loads_little() -> None:
    slow = ("typer", "limpet.cli.comm", "asyncio", "limpet.agent.settings", "limpet.cluster")
    script = (
        "import sys; sys.argv = ['limpet', '__complete', 'node', '/nowhere']\n"
        "from limpet.__main__ import main\n"
        "assert main() == 0\n"
        f"print([name for name in sys.modules if name.startswith({slow!r})])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
