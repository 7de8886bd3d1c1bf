"""Real shells complete `limpet`, and real programs for manual pages find nothing to complain of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from limpet.cli.completion.commands import words_by_command
from limpet.cli.completion.shells import Shell, completion_script
from limpet.cli.main import app
from limpet.cli.usage.manual import manual_pages
from limpet.cli.usage.tree import all_commands

COMMANDS = list(all_commands(typer.main.get_command(app)))
_PATIENCE_S = 60
_ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
typeset line
say() { zpty -w shell "$1"; }
say 'PS1=; unsetopt zle_bracketed_paste; autoload -U compinit; compinit -D -u'
say "LISTMAX=1000; zstyle ':completion:*' list-colors ''; source $1; print be''gin"
while [[ $line != *begin* ]]; do zpty -r shell line; done
zpty -w -n shell "$2"$'\t'
line=""
while [[ $line != *"$3"* ]]; do zpty -r shell part '*'; line+=$part; done
print -r -- "$line"
"""
_CASES = [
    ("limpet nod", ["node"]),
    ("limpet node l", ["list", "label"]),
    ("limpet node list --al", ["--all"]),
    ("limpet status --output ", ["table", "wide", "json", "yaml"]),
    ("limpet path --port 80 --protocol ", ["tcp", "udp", "sctp"]),
    ("limpet lab up two", ["two-sites"]),
    ("limpet lab fault re", ["reboot"]),
]


def _write(folder: Path, shell: Shell) -> tuple[Path, dict[str, str]]:
    """The script, and an environment in which `limpet` is this one."""
    script = folder / "limpet-completion"
    script.write_text(completion_script(shell, words_by_command(COMMANDS)))
    limpet = folder / "limpet"
    limpet.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m limpet "$@"\n')
    limpet.chmod(0o755)
    return script, {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}


@pytest.mark.parametrize(("typed", "expected"), _CASES)
def test_fish_completes(tmp_path: Path, typed: str, expected: list[str]) -> None:
    script, environment = _write(tmp_path, Shell.FISH)
    words = f"source {script}; complete -C '{typed}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", words],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stderr == ""
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} == set(expected)


@pytest.mark.parametrize(("typed", "expected"), _CASES)
def test_zsh_completes(tmp_path: Path, typed: str, expected: list[str]) -> None:
    script, environment = _write(tmp_path, Shell.ZSH)
    rest = expected[-1] if len(expected) == 1 else expected[0]
    done = subprocess.run(
        ["zsh", "-f", "-c", _ZSH, "zsh", str(script), typed, rest],
        capture_output=True,
        text=True,
        check=True,
        env={**environment, "TERM": "dumb"},
        timeout=_PATIENCE_S,
    )
    assert rest in done.stdout


@pytest.mark.parametrize("name", manual_pages(COMMANDS, "1.2.3"))
def test_a_manual_page_is_shown_without_a_warning(tmp_path: Path, name: str) -> None:
    page = tmp_path / name
    page.write_text(manual_pages(COMMANDS, "1.2.3")[name])
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80"}
    command = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page)]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert done.stderr == b""
    # A date would make each build another one, so there is none: mandoc warns of that alone.
    told = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in told.stdout.splitlines() if "missing date" not in line] == []
