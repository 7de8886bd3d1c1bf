"""`limpet ui`: the page of this node, or that of the whole cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from limpet.agent.settings import load_settings
from limpet.base.addresses import Listen
from limpet.base.errors import CommandLineError
from limpet.cli.commands.ui.cloud import CLOUD_PORT as _CLOUD_PORT
from limpet.cli.commands.ui.cloud import Cloud, listen_at, serve_cloud, tell
from limpet.cli.commands.ui.tokens import token
from limpet.cli.options import Config, Words, group
from limpet.cli.reach import NAMESPACE, Context, Kubeconfig, Namespace, ReachOptions
from limpet.cli.usage.commands import check_options_stand_behind

_NODE_PORT = 7474

ui = group("The page that shows the network.")
ui.info.no_args_is_help = False
ui.info.invoke_without_command = True
ui.add_typer(token, name="token")


@ui.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    controller: Annotated[
        bool,
        typer.Option(
            "--controller",
            help="Show the whole cluster, as its controller knows it, and not this node alone.",
        ),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS:PORT",
            help=f"Address and port of the page (default: 127.0.0.1:{_NODE_PORT}; "
            f"--controller: {_CLOUD_PORT}, or the settings' page_listen).",
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in this desktop's browser.")
    ] = False,
    name: Annotated[
        Words,
        typer.Option(
            "--name",
            help="Host name that browsers may ask the page by, beside its addresses; can "
            "be repeated.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate",
            metavar="FILE",
            help="TLS certificate of the page with its chain, in PEM; needs --key.",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="Private key of --certificate, in PEM."),
    ] = None,
    tokens_only: Annotated[
        bool,
        typer.Option(
            "--tokens-only",
            help="Print no sign-in link, as a service should not; needs --controller.",
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="The agent's configuration, or with --controller the controller's."
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    of_kubeconfig: Context = "",
    namespace: Namespace = NAMESPACE,
) -> None:
    """Serve a page that shows the network, as long as this runs, and print a link that lets in
    once."""
    check_options_stand_behind(context)
    if context.invoked_subcommand is not None:
        return
    if (certificate is None) is not (key is None):
        raise CommandLineError("ui: --certificate and --key belong together")
    reach = ReachOptions(config, kubeconfig, of_kubeconfig, namespace)
    if reach.names_cluster or controller:
        given = (certificate, key) if certificate is not None and key is not None else None
        options = Cloud(listen, frozenset(name or ()), given, tokens_only, open_browser)
        serve_cloud(options, reach)
        return
    _serve_node(listen_at(listen or f"127.0.0.1:{_NODE_PORT}"), config, open_browser)


def _serve_node(at: Listen, config: Config, open_browser: bool) -> None:
    from limpet.base.process.lifetime import run as run_process
    from limpet.base.process.log import configure_log
    from limpet.cli.commands.ui.findings import find
    from limpet.web.live.source import AgentSource
    from limpet.web.server import Serving, serve

    settings = load_settings(config)
    configure_log(settings.log_level)
    source = AgentSource(settings.folders.socket, partial(find, settings))
    run_process(partial(serve, source, Serving(at), partial(tell, open_browser)))
