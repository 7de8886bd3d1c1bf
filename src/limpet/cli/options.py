"""Options, and a check, that many commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from limpet.agent.settings import DEFAULT_PATH
from limpet.base.configuration import CONTROLLER_PATH
from limpet.base.errors import LimpetError
from limpet.cli.output import Output

Config = Annotated[
    Path | None,
    typer.Option("--config", help=f"The agent's configuration (default: {DEFAULT_PATH})."),
]
ControllerConfig = Annotated[
    Path | None,
    typer.Option("--config", help=f"The controller's configuration (default: {CONTROLLER_PATH})."),
]
Format = Annotated[Output, typer.Option("--output", help="How the result is printed.")]
Words = list[str] | None
"""Of an option that may be given several times."""


def group(words: str) -> typer.Typer:
    """Commands under one noun; `words` say what they are about."""
    return typer.Typer(help=words, no_args_is_help=True, rich_markup_mode=None)


def require_root(command: str) -> None:
    """Raises: LimpetError."""
    if os.geteuid() != 0:
        raise LimpetError(f"limpet {command}: only root can do this (sudo limpet {command})")
