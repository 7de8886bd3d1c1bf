"""`limpet community`: who of the edge may talk to whom."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from limpet.cli.options import Format, Words, group
from limpet.cli.output import Output, counted, put, put_document, put_table, say, show, show_table
from limpet.cli.reach import HERE, ReachOptions, ask, reaching
from limpet.cluster.kinds.network import TunnelBackend
from limpet.controller.admin.answers import (
    CommunitiesListed,
    CommunityChanged,
    CommunityDissolved,
    CommunityShown,
    Member,
)

community = group("Communities: who of the edge may talk to whom.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the community.")]
Backend = Annotated[
    TunnelBackend | None,
    typer.Option(
        "--tunnel-backend",
        help="What makes the tunnels between the community's nodes, in place of the "
        "network's setting.",
    ),
]
Nodes = Annotated[
    Words, typer.Argument(metavar="[NODE]...", help="Name or uid of a node; can be repeated.")
]


@community.command("create")
@reaching
def community_create(
    name: Name,
    nodes: Nodes = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector",
            help="Take in the nodes with these labels, now and later, such as "
            "site=harbour,tier!=edge.",
        ),
    ] = None,
    tunnel_backend: Backend = None,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """Make a community of nodes, by their names, by a selector, or both."""
    _change(reach, output, "create", name, nodes, selector, tunnel_backend)


@community.command("add")
@reaching
def community_add(
    name: Name,
    nodes: Nodes = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector",
            help="Labels of the nodes to take in, in place of the selector that there is, "
            "such as site=harbour,tier!=edge.",
        ),
    ] = None,
    tunnel_backend: Backend = None,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """Put nodes into a community, let it choose by labels, or choose what makes its tunnels."""
    if not nodes and selector is None and tunnel_backend is None:
        raise typer.BadParameter("name nodes to add, a --selector, or a --tunnel-backend")
    _change(reach, output, "add", name, nodes, selector, tunnel_backend)


@community.command("remove")
@reaching
def community_remove(
    name: Name,
    nodes: Nodes = None,
    selector: Annotated[
        bool,
        typer.Option(
            "--selector", help="Take the selector away: nodes are no longer taken in by labels."
        ),
    ] = False,
    tunnel_backend: Annotated[
        bool,
        typer.Option(
            "--tunnel-backend",
            help="Take the community's own backend away: the network's setting counts again.",
        ),
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Remove the community itself.")] = False,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """Take nodes out of a community; with --all, remove the community."""
    if not every:
        if not nodes and not selector and not tunnel_backend:
            words = "name nodes to take out, or --selector, --tunnel-backend or --all"
            raise typer.BadParameter(words)
        _change(reach, output, "take-out", name, nodes, selector, tunnel_backend)
        return
    if nodes or selector or tunnel_backend:
        raise typer.BadParameter("all of it goes, so name nothing else", param_hint="--all")
    answer = ask(reach, "community.dissolve", CommunityDissolved, community=name)
    show(answer, output, f"community {name} removed, with {counted(answer.changed, 'node')} in it")


def _change(
    reach: ReachOptions,
    output: Output,
    verb: str,
    name: str,
    nodes: Words,
    selector: str | bool | None,
    tunnel_backend: TunnelBackend | bool | None,
) -> None:
    """Asks for it, and says who is in the community then."""
    backend = tunnel_backend.value if isinstance(tunnel_backend, TunnelBackend) else tunnel_backend
    asked = {"nodes": nodes or [], "selector": selector, "tunnel_backend": backend}
    answer = ask(reach, f"community.{verb}", CommunityChanged, community=name, **asked)
    names = ",".join(each.name for each in answer.nodes)
    show(answer, output, f"{answer.name}: {names or 'no node'}")
    if not output.is_document and not names and answer.selector:
        say(f"no node has labels such as {answer.selector} yet (limpet node list shows all)")


@community.command("list")
@reaching
def community_list(reach: ReachOptions = HERE, output: Format = Output.TABLE) -> None:
    """All communities, with how many nodes are in each."""
    answer = ask(reach, "community.list", CommunitiesListed)
    rows = [
        {
            "name": each.name,
            "selector": each.selector,
            "tunnels": each.tunnel_backend,
            "nodes": len(each.nodes),
        }
        for each in answer.communities
    ]
    nothing = "there is no community (limpet network show tells what all nodes share)"
    show_table(answer, output, rows, nothing=nothing)


@community.command("show")
@reaching
def community_show(name: Name, reach: ReachOptions = HERE, output: Format = Output.TABLE) -> None:
    """Who is in a community, and why."""
    shown = ask(reach, "community.show", CommunityShown, community=name)
    if output.is_document:
        put_document(shown, output)
        return
    put(f"name: {shown.name}")
    put(f"selector: {shown.selector or '-'}")
    put(f"tunnel backend: {shown.tunnel_backend or '- (that of the network)'}")
    if shown.nodes:
        put_table([_member_row(each) for each in shown.nodes])
    else:
        say("no node is in it")


def _member_row(each: Member) -> dict[str, Any]:
    ways = (("name", each.by_name), ("selector", each.by_selector))
    return {
        "node": each.name,
        "by": " and ".join(way for way, is_by in ways if is_by),
        "roles": ",".join(each.roles),
        "uid": each.uid,
    }
