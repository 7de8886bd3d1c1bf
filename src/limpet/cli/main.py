"""The `limpet` command: a person's shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from limpet import __version__
from limpet.agent.settings import DEFAULT_PATH, load_settings
from limpet.base.errors import LimpetError
from limpet.cli.commands.cluster import network, pod, segment, token
from limpet.cli.commands.community import community
from limpet.cli.commands.controller import controller
from limpet.cli.commands.ipam import ipam
from limpet.cli.commands.join import join
from limpet.cli.commands.lab import lab
from limpet.cli.commands.node import node
from limpet.cli.commands.path import path, peer
from limpet.cli.commands.status import status
from limpet.cli.install.runtimes import DEFAULT_BIN_DIR, DEFAULT_CONF_DIR
from limpet.cli.install.service import DEFAULT_UNIT_DIR
from limpet.cli.options import Config, Format, Words, require_root
from limpet.cli.output import Output, put, say

app = typer.Typer(
    name="limpet",
    help="A container network for the edge: every pod keeps its address.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _name, _group in {
    "ipam": ipam,
    "lab": lab,
    "controller": controller,
    "token": token,
    "node": node,
    "community": community,
    "segment": segment,
    "network": network,
    "pod": pod,
    "peer": peer,
}.items():
    app.add_typer(_group, name=_name)
app.command()(path)
app.command()(join)

BinDir = Annotated[
    Path | None,
    typer.Option(
        "--cni-bin-dir",
        help=f"Where the runtime looks for CNI plugins (default: as it says, {DEFAULT_BIN_DIR}).",
    ),
]
ConfDir = Annotated[
    Path | None,
    typer.Option(
        "--cni-conf-dir",
        help="Where the runtime looks for CNI configurations "
        f"(default: as it says, {DEFAULT_CONF_DIR}).",
    ),
]


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: it worked. 1: it did not, or something is wrong. 2: bad usage."""
    command = typer.main.get_command(app)
    try:
        command.main(args=list(arguments), prog_name="limpet")
    except LimpetError as error:
        say(f"limpet: {error}")
        return 1
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    finally:
        _flush()
    return 0


def _flush() -> None:
    """A reader that has gone (`limpet ipam list | head`) is no error worth a traceback."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(asked: bool) -> None:
    if asked:
        put(f"limpet {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def agent(context: typer.Context) -> None:
    """Run the agent of this node; --config names its configuration."""
    from limpet.agent.main import main

    raise typer.Exit(main(context.args))


@app.command()
def install(
    segment: Annotated[
        Words,
        typer.Option(help="Address segment of this node's pods; one for each, IPv4 or IPv6."),
    ] = None,
    cluster_cidr: Annotated[
        Words,
        typer.Option(help="Prefix of all pods of the cluster; one for each."),
    ] = None,
    token: Annotated[
        str, typer.Option(help="Join the cluster whose `limpet token create` printed it.")
    ] = "",
    controller: Annotated[
        Words,
        typer.Option(metavar="HOST:PORT", help="Where its controller is; once for each."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of the node in the cluster (default: the host name).")
    ] = "",
    cni_bin_dir: BinDir = None,
    cni_conf_dir: ConfDir = None,
    config: Annotated[
        Path, typer.Option(help="The agent's configuration; written if it is not there.")
    ] = DEFAULT_PATH,
    unit_dir: Annotated[
        Path, typer.Option(help="Where the systemd unit is written.")
    ] = DEFAULT_UNIT_DIR,
    network_name: Annotated[
        str, typer.Option(help="Name of the network; that of an old one takes its addresses over.")
    ] = "limpet",
    allow_forward: Annotated[
        bool,
        typer.Option(
            "--allow-forward", help="Keep accept rules in FORWARD chains of others that drop."
        ),
    ] = False,
    no_cni: Annotated[
        bool,
        typer.Option(
            "--no-cni", help="Attach no pods: they are another network's here (gateway mode)."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Go on in spite of findings marked `error`.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only look; change nothing.")] = False,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Do not start the agent (for disk images).")
    ] = False,
    cni_only: Annotated[
        bool,
        typer.Option(
            "--cni-only",
            help="Put only the CNI binary and its configuration in place; the agent is started "
            "by something else (a DaemonSet).",
        ),
    ] = False,
) -> None:
    """Look at what is there, then install Limpet on this node."""
    from limpet.cli.doctor.findings import put_findings
    from limpet.cli.install.install import install as do_install
    from limpet.cli.install.joining import JoinOptions
    from limpet.cli.install.options import AskedSettings, InstallOptions, InstallPaths

    require_root("install")
    report = do_install(
        InstallOptions(
            AskedSettings(
                tuple(segment or ()),
                tuple(cluster_cidr or ()),
                allow_forward=allow_forward,
                cni=not no_cni,
            ),
            InstallPaths(
                cni_bin_dir and cni_bin_dir.absolute(),
                cni_conf_dir and cni_conf_dir.absolute(),
                config.absolute(),
                unit_dir.absolute(),
            ),
            JoinOptions(token, tuple(controller or ()), name),
            network_name,
            force=force,
            dry_run=dry_run,
            start=not no_start,
            cni_only=cni_only,
        )
    )
    put_findings(report.findings)
    for step in report.steps:
        put(step)
    if report.failure:
        raise LimpetError(f"install: {report.failure}")


@app.command()
def uninstall(
    config: Config = None,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge",
            help="Address records, the written configuration, and what makes it a node of its "
            "cluster go too.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Take the interfaces of attached pods away.")
    ] = False,
) -> None:
    """Take Limpet off this node and leave it as it was."""
    from limpet.cli.install.uninstall import put_removal
    from limpet.cli.install.uninstall import uninstall as do_uninstall

    require_root("uninstall")
    removal = do_uninstall(load_settings(config), purge=purge, force=force)
    put_removal("uninstall", removal, nothing="nothing of Limpet was here")


@app.command()
def doctor(
    config: Config = None,
    cni_bin_dir: BinDir = None,
    cni_conf_dir: ConfDir = None,
    output: Format = Output.TABLE,
) -> None:
    """Look for whatever may be wrong; exit code 1 when something is."""
    from limpet.cli.doctor.doctor import diagnose
    from limpet.cli.doctor.findings import errors, put_findings

    require_root("doctor")
    findings = diagnose(load_settings(config), cni_conf_dir, cni_bin_dir)
    put_findings(findings, output)
    if errors(findings):
        raise typer.Exit(1)


app.command()(status)
