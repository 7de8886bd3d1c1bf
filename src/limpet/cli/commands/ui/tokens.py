"""`limpet ui token`: who may look at the page in the cloud, and act."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.cli.answers import PageToken, PageTokenMade, PageTokenRemoved, PageTokens
from limpet.cli.commands.token import day, ttl_s
from limpet.cli.commands.ui.cloud import token_book
from limpet.cli.options import ControllerConfig, Format, group
from limpet.cli.output import Output, say, show, show_table
from limpet.controller.settings import load_settings

if TYPE_CHECKING:  # it is loaded where it is used
    from limpet.web.access.tokens import TokenBook

token = group("Tokens that let people look at the page in the cloud.")
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the person whose token it is; the log shows it."),
]


@token.command("create")
def token_create(
    name: Name,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Let the token change things too: communities, labels, and removal of nodes.",
        ),
    ] = False,
    ttl: Annotated[
        str, typer.Option("--ttl", help="How long the token is valid, such as 12h or 30d.")
    ] = "30d",
    config: ControllerConfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Make a token; it is shown once, and kept as its hash."""
    from limpet.web.access.tokens import PREFIX

    secret = PREFIX + secrets.token_urlsafe(32)
    made = _file(config).create(name, secret, may_write=write, for_s=ttl_s(ttl))
    show(PageTokenMade(token=secret, expires_at_s=made.expires_at_s), output, secret)
    say(f"limpet: it {'may look and act' if write else 'may look'} until {day(made.expires_at_s)}")


@token.command("list")
def token_list(config: ControllerConfig = None, output: Format = Output.TABLE) -> None:
    """The tokens, without what they are."""
    found = [
        PageToken(
            name=each.name,
            may_write=each.may_write,
            created_at_s=each.created_at_s,
            expires_at_s=each.expires_at_s,
        )
        for each in _file(config).all()
    ]
    rows = [
        {
            "name": each.name,
            "may": "look and act" if each.may_write else "look",
            "expires": day(each.expires_at_s),
        }
        for each in found
    ]
    answer = PageTokens(tokens=found)
    show_table(answer, output, rows, nothing="there is no token (limpet ui token create)")


@token.command("remove")
def token_remove(
    name: Name, config: ControllerConfig = None, output: Format = Output.TABLE
) -> None:
    """Take a token back; whoever has signed in with it is out."""
    _file(config).remove(name)
    show(PageTokenRemoved(removed=name), output, f"removed {name}")


def _file(config: ControllerConfig) -> TokenBook:
    return token_book(load_settings(config))
