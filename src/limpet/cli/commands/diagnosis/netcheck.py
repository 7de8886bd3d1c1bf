"""`limpet netcheck`: what gets out of this site, before a node of it joins."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated

import typer

from limpet.agent.client import ask
from limpet.agent.settings import Settings, load_settings
from limpet.agent.status.node import Status
from limpet.base.errors import LimpetError
from limpet.cli.options import Config, Format, Words
from limpet.cli.output import Output, put, put_document, put_table


def netcheck(
    controller: Annotated[
        Words,
        typer.Option(
            "--controller",
            metavar="HOST:PORT",
            help="Controller of the cluster that the machine is to join; can be repeated.",
        ),
    ] = None,
    relay: Annotated[
        Words,
        typer.Option(
            "--relay",
            metavar="HOST[:UDP][/TLS]",
            help="Relay of the cluster, with its ports (7471/443); can be repeated.",
        ),
    ] = None,
    port_mapping: Annotated[
        bool,
        typer.Option(
            "--port-mapping/--no-port-mapping",
            help="Ask the gateway for a port, and give the port back.",
        ),
    ] = True,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """What gets out of this machine, and as whom it is seen; nothing has to be installed. Exit
    code 1 when a node here could not work."""
    import structlog

    from limpet.cli.netcheck.check import check
    from limpet.cli.netcheck.report import observer_row
    from limpet.cli.netcheck.targets import NetcheckTarget, controller_target, relay_target

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    controllers, relays = list(controller or ()), list(relay or ())
    if not controllers and not relays:
        controllers, relays = _known(load_settings(config))
    targets: list[NetcheckTarget] = [controller_target(each) for each in controllers]
    targets += [relay_target(each) for each in relays]
    told = asyncio.run(check(targets, ask_gateway=port_mapping))
    if output.is_document:
        put_document(told, output)
    else:
        if told.observers:
            put_table([observer_row(each) for each in told.observers])
            put("")
        for finding in told.findings:
            for line in finding.lines():
                put(line)
    if not told.works:
        raise typer.Exit(1)


def _known(settings: Settings) -> tuple[list[str], list[str]]:
    """Controllers and relays of a node that has joined."""
    from limpet.cluster.identity import load_identity

    try:
        identity = load_identity(settings.folders.cluster_dir)
        found = ask(settings.folders.socket, "status", Status).cluster if identity else None
    except LimpetError:
        return [], []
    relays = found.nat_traversal.relays.relays if found is not None else []
    return list(identity.controllers) if identity is not None else [], [
        each.endpoint for each in relays if each.endpoint
    ]
