"""`limpet community`: who of the edge may talk to whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from limpet.cli.commands.controller import Config, Format, ask
from limpet.cli.output import Output, put, put_json, put_table, say
from limpet.cluster.kinds.network import TunnelBackend

_COLUMNS = ("name", "selector", "tunnels", "nodes")
_MEMBER_COLUMNS = ("node", "by", "roles", "uid")

community = typer.Typer(
    help="Communities: who of the edge may talk to whom.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the community.")]
Backend = Annotated[
    TunnelBackend | None,
    typer.Option(
        "--tunnel-backend", help="Of the tunnels between its nodes, in place of the network's."
    ),
]
Nodes = Annotated[
    list[str] | None, typer.Argument(metavar="[NODE]...", help="Names or uids of nodes.")
]


@community.command("create")
def community_create(
    name: Name,
    nodes: Nodes = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector", help="Nodes with these labels, now and later: site=harbour,tier!=edge."
        ),
    ] = None,
    tunnel_backend: Backend = None,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Make a community of nodes, by their names, by a selector, or both."""
    answer = ask(
        config,
        "community.create",
        community=name,
        nodes=nodes or [],
        selector=selector,
        tunnel_backend=tunnel_backend and tunnel_backend.value,
    )
    _put_change(answer, output)


@community.command("add")
def community_add(
    name: Name,
    nodes: Nodes = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector", help="In place of the one that it has: site=harbour,tier!=edge."
        ),
    ] = None,
    tunnel_backend: Backend = None,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Put nodes into a community, let it choose by labels, or choose what makes its tunnels."""
    if not nodes and selector is None and tunnel_backend is None:
        raise typer.BadParameter("name nodes to add, a --selector, or a --tunnel-backend")
    answer = ask(
        config,
        "community.add",
        community=name,
        nodes=nodes or [],
        selector=selector,
        tunnel_backend=tunnel_backend and tunnel_backend.value,
    )
    _put_change(answer, output)


@community.command("remove")
def community_remove(
    name: Name,
    nodes: Nodes = None,
    selector: Annotated[
        bool, typer.Option("--selector", help="Choose nobody by labels any more.")
    ] = False,
    tunnel_backend: Annotated[
        bool, typer.Option("--tunnel-backend", help="The network's makes its tunnels again.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="The community itself.")] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Take nodes out of a community; with --all, remove the community."""
    if every:
        if nodes or selector or tunnel_backend:
            raise typer.BadParameter("all of it goes, so name nothing else", param_hint="--all")
        answer = ask(config, "community.dissolve", community=name)
        if output is Output.JSON:
            put_json(answer)
        else:
            put(f"community {name} removed; {answer['changed']} nodes were in it")
        return
    if not nodes and not selector and not tunnel_backend:
        raise typer.BadParameter("name nodes to take out, or --selector, --tunnel-backend or --all")
    answer = ask(
        config,
        "community.take-out",
        community=name,
        nodes=nodes or [],
        selector=selector,
        tunnel_backend=tunnel_backend,
    )
    _put_change(answer, output)


@community.command("list")
def community_list(config: Config = None, output: Format = Output.TABLE) -> None:
    """All communities, with how many nodes are in each."""
    found = ask(config, "community.list")["communities"]
    if output is Output.JSON:
        put_json({"communities": found})
    elif found:
        rows = [
            {**each, "tunnels": each["tunnel_backend"], "nodes": len(each["nodes"])}
            for each in found
        ]
        put_table(rows, _COLUMNS)
    else:
        say("there is no community (limpet network show tells what all nodes share)")


@community.command("show")
def community_show(name: Name, config: Config = None, output: Format = Output.TABLE) -> None:
    """Who is in a community, and why."""
    shown = ask(config, "community.show", community=name)
    if output is Output.JSON:
        put_json(shown)
        return
    put(f"name: {shown['name']}")
    put(f"selector: {shown['selector'] or '-'}")
    put(f"tunnel backend: {shown['tunnel_backend'] or '- (that of the network)'}")
    if shown["nodes"]:
        put_table([_member_row(each) for each in shown["nodes"]], _MEMBER_COLUMNS)
    else:
        say("no node is in it")


def _member_row(each: Mapping[str, Any]) -> dict[str, Any]:
    ways = [way for way in ("name", "selector") if each[f"by_{way}"]]
    return {
        **each,
        "node": each["name"],
        "by": " and ".join(ways),
        "roles": ",".join(each["roles"]),
    }


def _put_change(answer: Mapping[str, Any], output: Output) -> None:
    if output is Output.JSON:
        put_json(answer)
        return
    put(f"{answer['name']}: {_names(answer) or 'no node'}")
    if not answer["nodes"] and answer["selector"]:
        say(f"no node has labels such as {answer['selector']} yet (limpet node list shows all)")


def _names(shown: Mapping[str, Any]) -> str:
    return ",".join(each["name"] for each in shown["nodes"])
