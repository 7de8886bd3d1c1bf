"""`limpet ui`: the page of this node, or beside a controller that of the whole cluster."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from limpet.agent.settings import load_settings
from limpet.base.addresses import Listen, parse_listen
from limpet.base.errors import ConfigError, LimpetError
from limpet.cli.commands.ui.tokens import token
from limpet.cli.options import Config, ControllerConfig, Words, group
from limpet.cli.output import put_at_once, say
from limpet.controller.settings import load_settings as load_controller_settings

_NODE_PORT, _CLOUD_PORT = 7474, 7480

ui = group("The page that shows the network.")
ui.info.no_args_is_help = False
ui.info.invoke_without_command = True
ui.add_typer(token, name="token")


@ui.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    controller: Annotated[
        bool,
        typer.Option("--controller", help="Of the whole cluster, beside the controller here."),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="ADDRESS:PORT",
            help=f"Where (default: 127.0.0.1:{_NODE_PORT}; --controller: {_CLOUD_PORT}).",
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open it in this desktop's browser.")
    ] = False,
    name: Annotated[
        Words,
        typer.Option("--name", help="A name that people call it by, beside its addresses."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", metavar="FILE", help="PEM, with its chain; with --key."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Of --certificate; PEM.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Configuration of the agent; of the controller with it."),
    ] = None,
) -> None:
    """Serve a page that shows the network, as long as this runs, and print a link that lets in
    once."""
    if context.invoked_subcommand is not None:
        return
    if (certificate is None) is not (key is None):
        raise ConfigError("limpet ui: --certificate and --key belong together")
    at = _listen(listen or f"127.0.0.1:{_CLOUD_PORT if controller else _NODE_PORT}")
    given = (certificate, key) if certificate is not None and key is not None else None
    if controller:
        _serve_controller(at, frozenset(name or ()), given, config, open_browser)
    else:
        _serve_node(at, config, open_browser)


def _serve_node(at: Listen, config: Config, open_browser: bool) -> None:
    from limpet.base.process.lifetime import run as run_process
    from limpet.base.process.log import configure_log
    from limpet.cli.commands.ui.findings import find
    from limpet.web.live.source import AgentSource
    from limpet.web.server import Serving, serve

    settings = load_settings(config)
    configure_log(settings.log_level)
    source = AgentSource(settings.folders.socket, partial(find, settings))
    run_process(partial(serve, source, Serving(at), partial(_tell, open_browser)))


def _serve_controller(
    at: Listen,
    names: frozenset[str],
    given: tuple[Path, Path] | None,
    config: ControllerConfig,
    open_browser: bool,
) -> None:
    from ipaddress import ip_address

    from limpet.base.process.lifetime import run as run_process
    from limpet.base.process.log import configure_log
    from limpet.web.access.certificate import fingerprint, own_certificate
    from limpet.web.access.tokens import CERTIFICATE_FOLDER, FILE_NAME, TokenFile
    from limpet.web.live.source import ControllerSource
    from limpet.web.server import Serving, serve

    settings = load_controller_settings(config)
    configure_log(settings.log_level)
    folder = settings.database.parent
    is_here = ip_address(at[0]).is_loopback
    if given is None and not is_here:
        given = own_certificate(folder / CERTIFICATE_FOLDER, {*names, at[0]})
        say(f"limpet: its own certificate; SHA-256 fingerprint {fingerprint(given[0])}")
    serving = Serving(at, names, given, TokenFile(folder / FILE_NAME).by_digest)
    source = ControllerSource(settings.socket)
    run_process(partial(serve, source, serving, partial(_tell, open_browser) if is_here else None))


def _tell(open_browser: bool, link: str) -> None:
    put_at_once(link)
    if not open_browser:
        return
    opener = shutil.which("xdg-open")
    if opener is None:
        say("limpet: this machine has no xdg-open: open the link yourself")
        return
    subprocess.Popen([opener, link], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _listen(text: str) -> Listen:
    try:
        return parse_listen(text)
    except ValueError as error:
        raise LimpetError(f"limpet ui --listen {text[:80]!r}: {error}") from error
