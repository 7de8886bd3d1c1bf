"""`limpet token`: join tokens, each of which lets one node in."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from limpet.base.errors import LimpetError
from limpet.cli.commands.controller import UNITS_S, age
from limpet.cli.commands.node import parse_label
from limpet.cli.options import Format, Words, group
from limpet.cli.output import Output, say, show, show_table
from limpet.cli.reach import HERE, ReachOptions, ask, reaching
from limpet.cluster.api import token_id
from limpet.controller.admin.answers import TokenCreated, TokenLine, TokensListed, TokensRemoved

_WIDE = ("labels", "created_by", "uid")

token = group("Join tokens.")


@token.command("create")
@reaching
def token_create(
    ttl: Annotated[
        str,
        typer.Option("--ttl", help="How long the token lets a node in, such as 30m, 24h or 7d."),
    ] = "24h",
    role: Annotated[
        Words,
        typer.Option(
            "--role",
            help="Role of the node that joins: edge (the default), cloud or relay; can be "
            "repeated.",
        ),
    ] = None,
    community: Annotated[
        Words, typer.Option("--community", help="Community that the node is in; can be repeated.")
    ] = None,
    label: Annotated[
        Words, typer.Option("--label", help="Label of the node, as KEY=VALUE; can be repeated.")
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            "--name", help="Name under which alone the node may join; without it, any that is free."
        ),
    ] = "",
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """A token that lets one node in, once."""
    answer = ask(
        reach,
        "token.create",
        TokenCreated,
        ttl_s=ttl_s(ttl),
        roles=role or ["edge"],
        communities=community or [],
        labels=dict(map(parse_label, label or [])),
        node_name=name,
    )
    show(answer, output, answer.token)
    if not output.is_document:
        whom = f"a node called {name}" if name else "one node"
        say(
            f"limpet: it lets {whom} in until {day(answer.expires_at_s)} (to take it back: "
            f"limpet token remove {token_id(answer.token)})"
        )


@token.command("list")
@reaching
def token_list(
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Show also tokens that let in nobody any more; they are kept for a day."
        ),
    ] = False,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """The tokens by which somebody may join, without what they are."""
    answer = ask(reach, "token.list", TokensListed, every=every)
    nothing = "there is no token" if every else "there is no token that lets anybody in"
    show_table(
        answer,
        output,
        list(map(_row, answer.tokens)),
        nothing=f"{nothing} (limpet token create)",
        wide=_WIDE,
    )


@token.command("remove")
@reaching
def token_remove(
    ids: Annotated[
        Words,
        typer.Argument(
            metavar="[ID]...",
            help="Id of a token as `limpet token list` shows it, or a whole token; can be "
            "repeated.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Remove all tokens that let anybody in.")
    ] = False,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """Take tokens back: they let in nobody any more."""
    if bool(ids) == every:
        raise typer.BadParameter("name tokens by their ids, or all of them by --all")
    # What is after the id is secret, and the log there tells what was asked.
    which = [token_id(each) for each in ids or ()]
    answer = ask(reach, "token.remove", TokensRemoved, ids=which, every=every)
    show(answer, output, *(f"removed {each}" for each in answer.removed))
    for each in answer.let_in:
        say(
            f"limpet: token {each.id} had let in {each.node} ({each.uid}), which stays "
            f"in; if it is not yours: limpet node remove {each.uid}"
        )
    for unknown in answer.unknown:
        say(f"limpet: token {unknown}: there is none of that id (limpet token list --all)")
    if every and not answer.removed:
        say("limpet: there was no token that lets anybody in")
    if answer.let_in or answer.unknown:
        raise typer.Exit(1)


def _row(found: TokenLine) -> dict[str, Any]:
    return {
        "id": found.id,
        "state": found.state,
        "roles": ",".join(found.roles),
        "communities": ",".join(found.communities),
        "labels": ",".join(f"{key}={value}" for key, value in found.labels.items()),
        "expires": day(found.expires_at_s),
        "created": age(found.created_at_s),
        "created_by": found.created_by,
        "node": found.node,
        "uid": found.uid,
    }


def ttl_s(text: str) -> int:
    """Seconds of `--ttl`. Raises: typer.BadParameter."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no time such as 30m, 24h or 7d", param_hint="--ttl")
    return int(found[1]) * UNITS_S[found[2]]


def day(at_s: float) -> str:
    """Until when a token counts. Raises: LimpetError."""
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError) as error:
        raise LimpetError(f"read token: {at_s} is no time") from error
