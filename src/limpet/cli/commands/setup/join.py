"""`limpet join`: this node gets into a cluster."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Annotated

import typer

from limpet.agent.client import call
from limpet.agent.settings import Settings, load_settings
from limpet.base.errors import AgentUnavailable, CommandLineError
from limpet.cli.answers import ControllersMoved, JoinedCluster
from limpet.cli.install.files import Manifest
from limpet.cli.install.units.service import UNIT, has_unit, systemctl, systemd_runs
from limpet.cli.options import Config, Format, TokenFile, given_token, require_root
from limpet.cli.output import Output, counted, say, show


def join(
    controller: Annotated[
        list[str],
        typer.Option(
            metavar="HOST:PORT", help="Address of a controller of the cluster; can be repeated."
        ),
    ],
    token: Annotated[
        str,
        typer.Option(
            help="Join token that `limpet token create` printed; `ps` shows it meanwhile."
        ),
    ] = "",
    token_file: TokenFile = "",
    name: Annotated[
        str | None, typer.Option(help="Name of the node in the cluster (default: the host name).")
    ] = None,
    as_new: Annotated[
        bool,
        typer.Option(
            "--new-identity",
            help="Join as a new node with a new key; the old identity is kept aside.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Go on although pod addresses overlap those of the LAN, or, without a token, "
            "although no controller answers there.",
        ),
    ] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Get this node into a cluster, with a token from its controller.

    Without a token, a node that has joined asks its cluster's controllers there from now on.
    """
    from limpet.cli.install.joining import join_cluster
    from limpet.cloud.join_requests import JoinOrder

    require_root("join")
    given = given_token("join", token, token_file)
    settings = load_settings(config)
    if not given:
        if as_new or name:
            raise CommandLineError(
                "join: --name and --new-identity need a token (--token-file FILE)"
            )
        _move(settings, controller, output, force=force)
        return
    order = JoinOrder(
        given,
        tuple(dict.fromkeys(controller)),
        name or socket.gethostname(),
        as_new=as_new,
        force=force,
    )
    joined = join_cluster(settings, order)
    segments = list(map(str, joined.segments))
    lines = [
        f"{joined.name} ({joined.uid}) has joined {joined.cluster}",
        f"segments: {' '.join(segments) or 'none'}",
    ]
    if joined.kept_pods:
        pods = counted(joined.kept_pods, "pod")
        lines.append(f"addresses are kept for {pods} of the machine that it replaces")
    answer = JoinedCluster(
        name=joined.name,
        uid=joined.uid,
        cluster=joined.cluster,
        segments=segments,
        kept_pods=joined.kept_pods,
    )
    show(answer, output, *lines)
    say(f"limpet: {_restart_agent(settings)}")


def _move(settings: Settings, controllers: Sequence[str], output: Output, *, force: bool) -> None:
    """Raises: LimpetError."""
    from limpet.cloud.moving import move

    moved = move(settings.folders, controllers, force=force)
    answer = ControllersMoved(
        name=moved.name,
        cluster=moved.cluster,
        controllers=[*moved.controllers],
        before=[*moved.before],
        unreached=[*moved.unreached],
    )
    asked, before = ", ".join(moved.controllers), ", ".join(moved.before)
    show(answer, output, f"{moved.name} asks its controller at {asked} now (before: {before})")
    for each in moved.unreached:
        say(f"limpet: {each}")
    try:
        call(settings.folders.socket, "controllers.read")
    except AgentUnavailable:
        say("limpet: no agent runs; it asks there once it is started")
    else:
        say("limpet: the agent asks there now (limpet status says whether it is connected)")


def _restart_agent(settings: Settings) -> str:
    """It knows of the cluster once it starts anew; returns what was done, or is to be done."""
    manifest = Manifest.load(settings.folders.state_dir)
    if has_unit(manifest, "unit", UNIT) and systemd_runs():
        with contextlib.suppress(AgentUnavailable):
            call(settings.folders.socket, "status")
            systemctl("try-restart", UNIT)
            return "the agent was restarted (pods did not notice)"
    return (
        f"(re)start the agent now: systemctl restart {UNIT.removesuffix('.service')} "
        "(where it is not installed: limpet install)"
    )
