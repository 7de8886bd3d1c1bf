"""`limpet trace`."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from limpet.agent.settings import load_settings
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format, require_root
from limpet.cli.output import Output, say, show

_SEND_S, _WAIT_S = 3.0, 30.0


class TracedProtocol(StrEnum):
    TCP = "tcp"
    UDP = "udp"


@on_node
def trace(
    origin: Annotated[
        str, typer.Argument(metavar="POD|IP", help="The pod that sends: its name or its address.")
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="POD|IP", help="The pod or address that it sends to, on whatever node."
        ),
    ],
    port: Annotated[
        int,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Port that the packet goes to; 0 sends an echo request (ping).",
        ),
    ] = 0,
    protocol: Annotated[
        TracedProtocol, typer.Option("--protocol", case_sensitive=False, help="Protocol of --port.")
    ] = TracedProtocol.TCP,
    within: Annotated[
        float | None,
        typer.Option(
            "--within",
            metavar="SECONDS",
            min=0.1,
            max=600,
            help="How many seconds to follow the packet "
            f"(default: {_SEND_S:.0f}; {_WAIT_S:.0f} where the sender is on another node).",
        ),
    ] = None,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Send a real packet from a pod, and tell where on this node it stops and by which rule."""
    from limpet.cli.trace.run import follow, lines, look_up

    require_root("trace")
    settings = load_settings(config)
    question = look_up(settings, origin, target, protocol.value, port)
    if question.sender is None:
        say(
            f"limpet: {question.source} is a pod of another node: waiting for its packets (run the "
            "same there)"
        )
    within_s = within or (_WAIT_S if question.sender is None else _SEND_S)
    traced = follow(settings, question, within_s)
    show(asdict(traced), output, *lines(traced))
    if traced.arrived is not True:
        raise typer.Exit(1)
