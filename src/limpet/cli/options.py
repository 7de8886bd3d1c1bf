"""Options, and a check, that many commands share."""

from __future__ import annotations

import os
import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from limpet.base.bounds.strangers import JOIN_TOKEN
from limpet.base.configuration import AGENT_PATH, CONTROLLER_PATH
from limpet.base.errors import CommandLineError, LimpetError
from limpet.cli.output import Output
from limpet.cli.usage.commands import NounApp

Config = Annotated[
    Path | None,
    # Not `readable`: what keeps it from being read is said by who reads it.
    typer.Option(
        "--config", readable=False, help=f"The agent's configuration (default: {AGENT_PATH})."
    ),
]
ControllerConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        readable=False,
        help=f"The controller's configuration (default: {CONTROLLER_PATH}).",
    ),
]
Format = Annotated[
    Output,
    typer.Option(
        "--output",
        "-o",
        help="How the result is printed; `wide`: with the columns that `table` leaves out.",
    ),
]
TokenFile = Annotated[
    str,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File that the join token is read from, or `-` for standard input; unlike "
        "--token, `ps` does not show it.",
    ),
]
Words = list[str] | None
"""Values of an option that may be given several times."""


def group(words: str) -> typer.Typer:
    """Commands under one noun; `words` say what they are about."""
    return NounApp(help=words, no_args_is_help=True)


def given_token(command: str, token: str, file: str) -> str:
    """The token of `--token` or `--token-file`; empty: neither is given. Raises: LimpetError."""
    if not file:
        return token
    if token:
        raise CommandLineError(
            f"{command}: --token and --token-file exclude each other (leave --token out: "
            "`ps` shows it to everybody on this machine)"
        )
    if file == "-" and sys.stdin.isatty():
        return getpass("token: ")
    try:
        with open(0 if file == "-" else file, "rb", closefd=file != "-") as at:
            text = at.read(JOIN_TOKEN.most + 1)
        if len(text) > JOIN_TOKEN.most:
            raise ValueError(f"it has more than {JOIN_TOKEN.most:,} bytes")
        read = text.decode("ascii").strip()
        if not read:
            raise ValueError("it is empty")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        whence = "standard input" if file == "-" else file
        raise LimpetError(
            f"{command}: read the token in {whence}: {cause} (put there what `limpet token "
            "create` printed)"
        ) from error
    return read


def require_root(command: str) -> None:
    """Raises: LimpetError."""
    if os.geteuid() != 0:
        raise LimpetError(f"{command}: only root can do this (sudo limpet {command})")
