"""The `limpet` command: a person's shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from limpet import __version__
from limpet.base.errors import CommandLineError, LimpetError
from limpet.cli.options import Config
from limpet.cli.output import put, say, tame_stderr
from limpet.cli.usage.commands import Command, Noun
from limpet.cli.usage.groups import GROUPS

_COMMANDS = {
    "status": "status:status",
    "path": "path:path",
    "ping": "diagnosis.ping:ping",
    "netcheck": "diagnosis.netcheck:netcheck",
    "peer": "path:peer",
    "policy": "serving.policy:policy",
    "ipam": "ipam:ipam",
    "service": "serving.service:service",
    "events": "diagnosis.events:events",
    "doctor": "diagnosis.doctor:doctor",
    "help": "diagnosis.help:help",
    "trace": "diagnosis.trace:trace",
    "bugreport": "diagnosis.bugreport:bugreport",
    "install": "setup.install:install",
    "uninstall": "setup.install:uninstall",
    "join": "setup.join:join",
    "node": "node:node",
    "community": "community:community",
    "segment": "cluster:segment",
    "network": "cluster:network",
    "dns": "dns:dns",
    "pod": "cluster:pod",
    "token": "token:token",
    "controller": "controller:controller",
    "connectivity": "connectivity:connectivity",
    "lab": "lab:lab",
    "bundle": "setup.bundle:bundle",
    "completion": "completion:completion",
    "ui": "ui.ui:ui",
}
"""A command, or a noun with several: where it is, as MODULE:OBJECT of `limpet.cli.commands`."""


class _Table(Mapping[str, Any]):
    """The commands of the table. Each is imported when it is asked for: all of them take longer to
    load than most of them run."""

    def __init__(self, further: Mapping[str, Any]) -> None:
        self._further = further

    def __iter__(self) -> Iterator[str]:
        return iter((*_COMMANDS, *self._further))

    def __len__(self) -> int:
        return len(_COMMANDS) + len(self._further)

    def __getitem__(self, name: str) -> Any:
        if name not in _COMMANDS:
            return self._further[name]
        module, _, variable = _COMMANDS[name].partition(":")
        found = getattr(import_module(f"limpet.cli.commands.{module}"), variable)
        if isinstance(found, typer.Typer):
            return typer.main.get_group(found)
        alone = typer.Typer(
            rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
        )
        alone.command(name, cls=Command)(found)
        return typer.main.get_command(alone)


class _Commands(Noun):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Table(self.commands)  # type: ignore[assignment]  # nothing is added later

    def headings(self, ctx: Any) -> Sequence[tuple[str, Sequence[str]]]:
        return [*GROUPS.items()]


app = typer.Typer(
    name="limpet",
    cls=_Commands,
    help="A container network for the edge: every pod keeps its address.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: it worked. 1: it did not, or something is wrong. 2: bad usage."""
    # Folders that a command makes are nobody else's to write, however lax the shell is.
    os.umask(os.umask(0o077) | 0o022)
    command = typer.main.get_command(app)
    with tame_stderr():
        try:
            command.main(args=list(arguments), prog_name="limpet")
        except LimpetError as error:
            say(f"limpet: {error}")
            return 2 if isinstance(error, CommandLineError) else 1
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 0
        finally:
            _flush()
    return 0


def _flush() -> None:
    """A reader that has gone (`limpet ipam list | head`) is no error worth a traceback."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(asked: bool) -> None:
    if asked:
        put(f"limpet {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command(cls=Command)
def agent(config: Config = None) -> None:
    """Run the agent of this node, until it is told to stop."""
    from limpet.agent.main import main

    raise typer.Exit(main([] if config is None else ["--config", str(config)]))
