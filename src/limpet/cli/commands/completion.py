"""`limpet completion`: what a shell reads to complete `limpet`."""

from __future__ import annotations

from typing import Annotated

import typer

from limpet.cli.completion.shells import Shell, completion_script
from limpet.cli.output import put_script


def completion(
    shell: Annotated[
        Shell, typer.Argument(metavar="SHELL", help="The shell to complete for: bash, zsh or fish.")
    ],
) -> None:
    """Print what makes a shell complete commands, options and names; packages install it."""
    # Here: it needs all commands, of which this is one.
    from limpet.cli.completion.commands import words_by_command
    from limpet.cli.main import app
    from limpet.cli.usage.tree import all_commands

    commands = all_commands(typer.main.get_command(app))
    put_script(completion_script(shell, words_by_command(commands)))
