"""`limpet dns`: what this node answers to names, and from where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict

from limpet.agent.settings import load_settings
from limpet.cli.names import Kind, ask_names
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format, group
from limpet.cli.output import Output, counted, put, put_document, put_table
from limpet.dns.status.answers import NameAnswered, NamesStatus

dns = group("Names, as this node answers them.")


@dns.command("query")
@on_node
def dns_query(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name to ask for, whole, with its domain.")
    ],
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[TYPE]", help="Type of the record to ask for, such as A, AAAA, SRV or PTR."
        ),
    ] = "A",
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """What is answered to a name, and from which object; exit code 1 for an error."""
    answer = _ask(config, {"ask": "query", "name": name, "type": kind}, NameAnswered)
    if output.is_document:
        put_document(answer, output)
    else:
        for line in answer.records:
            put(line)
        put(f"{answer.code} for {answer.name} {answer.type}: {answer.because}")
    if answer.code != "NOERROR":
        raise typer.Exit(1)


@dns.command("status")
@on_node
def dns_status(config: Config = None, output: Format = Output.TABLE) -> None:
    """Whether names are answered on this node, by which upstreams, and how many so far."""
    answer = _ask(config, {"ask": "status"}, NamesStatus)
    if output.is_document:
        put_document(answer, output)
        return
    services = answer.services
    put(f"process: {answer.pid}, version {answer.version}")
    put(f"services: {'none was ever heard of' if services is None else services}")
    if answer.silent or answer.gone:
        dead = f"{counted(answer.silent, 'silent node')}, {counted(answer.gone, 'lost pod')}"
        put(f"left out: endpoints of {dead}")
    if answer.trouble:
        put(f"trouble: {answer.trouble}")
    put(", ".join(f"{count} {what}" for what, count in answer.questions.items()))
    if answer.upstreams:
        put_table([asdict(each) for each in answer.upstreams])
    else:
        put("no upstreams: names that are not the cluster's get SERVFAIL (dns_upstreams)")


@dns.command("serve")
def dns_serve(config: Config = None) -> None:
    """Answer names: the process that systemd, or the pod, runs."""
    from limpet.agent.names.main import main

    raise typer.Exit(main([] if config is None else ["--config", str(config)]))


@dns.command("ready")
def dns_ready(
    any_process: Annotated[
        bool,
        typer.Option(
            "--any", help="Be content with any process that answers, such as the one before."
        ),
    ] = False,
    socket: Annotated[
        Path,
        typer.Option(
            "--socket",
            help="Socket of the process that answers names: `dns.sock` in the agent's `run_dir`.",
        ),
    ] = Path("/run/limpet/dns.sock"),
) -> None:
    """Whether this pod's process is the one that answers names: for a kubelet's probes."""
    from limpet.dns.handover.ready import main

    raise typer.Exit(main([*(["--any"] if any_process else ()), "--socket", str(socket)]))


def _ask(config: Config, request: dict[str, str], kind: type[Kind]) -> Kind:
    return ask_names(load_settings(config).folders.run_dir, request, kind)
