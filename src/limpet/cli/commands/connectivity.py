"""`limpet connectivity`: whether pods reach pods, nodes and what is outside, tried."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from limpet.cli.options import Format, Words, group
from limpet.cli.output import Output, put, put_document, put_encoded, put_table, say
from limpet.cli.reach import NAMESPACE, Context, Kubeconfig, Namespace

connectivity = group("Whether pods reach each other.")

_AGENT = Path("/run/limpet/agent.sock")
_TOLD = Path("/dev/termination-log")


@connectivity.command("test")
def connectivity_test(
    nodes: Annotated[
        Words,
        typer.Option(
            "--nodes", metavar="NAME,NAME", help="Nodes to try (default: all that are Ready)."
        ),
    ] = None,
    selector: Annotated[
        str,
        typer.Option(
            "--selector", help="Try the nodes with these labels, such as site=harbour,tier!=edge."
        ),
    ] = "",
    outside: Annotated[
        Words,
        typer.Option(
            "--outside",
            metavar="ADDRESS[:PORT]",
            help="Address to try from each node too, by a ping, or with a port by a "
            "connection; can be repeated.",
        ),
    ] = None,
    others: Annotated[
        int, typer.Option("--others", min=1, max=64, help="How many other nodes each node tries.")
    ] = 16,
    image: Annotated[
        str,
        typer.Option(
            "--image",
            help="Image of the test's pods (default: that of the agents' DaemonSet, which "
            "every node has).",
        ),
    ] = "",
    services: Annotated[
        bool,
        typer.Option(
            "--services",
            help="Try a Service too: by its address, by a node's port, by its name, and "
            "from a pod to itself.",
        ),
    ] = False,
    policies: Annotated[
        bool,
        typer.Option(
            "--policies",
            help="Try a network policy too: whether it lets in whom it should, and keeps "
            "out the others.",
        ),
    ] = False,
    start: Annotated[
        float, typer.Option("--start", min=1.0, help="How many seconds a pod may take to start.")
    ] = 120.0,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    namespace: Namespace = NAMESPACE,
    output: Format = Output.TABLE,
) -> None:
    """Let pods on nodes try to reach each other; exit code 1 when something is not reached."""
    from limpet.cli.connectivity.choice import Options
    from limpet.cli.connectivity.plan import outside_target
    from limpet.cli.connectivity.report import complaints, rows, summary
    from limpet.cli.connectivity.run import run
    from limpet.kubernetes.access.kubeconfig import find_access
    from limpet.kubernetes.client import Client

    names = [name for each in nodes or () for name in each.split(",") if name]
    options = Options(
        tuple(names),
        selector,
        image,
        tuple(map(outside_target, outside or ())),
        others,
        namespace,
        start,
        services,
        policies,
    )
    client = Client(find_access(kubeconfig, context=context))

    async def work() -> None:
        try:
            report = await run(client, options, say)
        finally:
            client.close()
            await asyncio.sleep(0)  # closed connections get their turn to end
        if output.is_document:
            put_document(report, output)
        else:
            if shown := rows(report):
                put_table(shown)
            for line in summary(report):
                put(line)
        for line in complaints(report):
            say(line)
        if not report.worked:
            raise typer.Exit(1)

    try:
        asyncio.run(work())
    except asyncio.CancelledError:  # SIGTERM
        raise typer.Exit(1) from None


@connectivity.command("pod")
def connectivity_pod(
    task: Annotated[
        str,
        typer.Option(
            "--task",
            help="What to try and report before ending; without it the pod answers others.",
        ),
    ] = "",
) -> None:
    """What runs in the pods of a test."""
    if not task:
        from limpet.base.process.lifetime import run as run_until_stopped
        from limpet.cli.connectivity.answerer import answer
        from limpet.cli.connectivity.tasks import ANSWER_PORT, DENIED_PORT

        run_until_stopped(partial(answer, ANSWER_PORT, DENIED_PORT))
        return
    from limpet.cli.connectivity.prober import probe
    from limpet.cli.connectivity.tasks import decode_task, encode_outcomes

    own = {
        6 if ":" in each else 4: each for each in os.environ.get("POD_IPS", "").split(",") if each
    }
    told = encode_outcomes(asyncio.run(probe(decode_task(task), own, _AGENT)))
    put_encoded(told)
    if _TOLD.exists():
        _TOLD.write_text(told, encoding="utf-8")
