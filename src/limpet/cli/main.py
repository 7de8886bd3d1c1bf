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
from limpet.cli.commands.cluster import add_commands
from limpet.cli.commands.join import add_join
from limpet.cli.commands.lab import lab
from limpet.cli.commands.path import add_commands as add_path_commands
from limpet.cli.install.runtimes import DEFAULT_BIN_DIR, DEFAULT_CONF_DIR
from limpet.cli.install.service import DEFAULT_UNIT_DIR
from limpet.cli.output import Output, put, say

app = typer.Typer(
    name="limpet",
    help="A container network for the edge: every pod keeps its address.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
ipam = typer.Typer(help="Pod addresses of this node.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(ipam, name="ipam")
app.add_typer(lab, name="lab")
add_commands(app)
add_path_commands(app)
add_join(app)

Config = Annotated[
    Path | None,
    typer.Option("--config", help=f"The agent's configuration (default: {DEFAULT_PATH})."),
]
Format = Annotated[Output, typer.Option("--output", help="How the result is printed.")]
Network = Annotated[
    str | None, typer.Option("--network", help="Only this network; by default all of them.")
]


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


def _require_root(command: str) -> None:
    if os.geteuid() != 0:
        raise LimpetError(f"limpet {command}: only root can do this (sudo limpet {command})")


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
        list[str] | None,
        typer.Option(help="Address segment of this node's pods; one for each, IPv4 or IPv6."),
    ] = None,
    cluster_cidr: Annotated[
        list[str] | None,
        typer.Option(help="Prefix of all pods of the cluster; one for each."),
    ] = None,
    token: Annotated[
        str, typer.Option(help="Join the cluster whose `limpet token create` printed it.")
    ] = "",
    controller: Annotated[
        list[str] | None,
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
) -> None:
    """Look at what is there, then install Limpet on this node."""
    from limpet.cli.doctor.findings import put_findings
    from limpet.cli.install.install import install as do_install
    from limpet.cli.install.joining import JoinOptions
    from limpet.cli.install.options import AskedSettings, InstallOptions, InstallPaths

    _require_root("install")
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
    from limpet.cli.install.uninstall import uninstall as do_uninstall

    _require_root("uninstall")
    removal = do_uninstall(load_settings(config), purge=purge, force=force)
    for step in removal.steps:
        put(step)
    if not removal.steps and not removal.failures:
        put("nothing of Limpet was here")
    for failure in removal.failures:
        say(f"limpet: uninstall: {failure}")
    if removal.failures:
        raise typer.Exit(1)


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

    _require_root("doctor")
    findings = diagnose(load_settings(config), cni_conf_dir, cni_bin_dir)
    put_findings(findings, output)
    if errors(findings):
        raise typer.Exit(1)


@app.command()
def status(config: Config = None, output: Format = Output.TABLE) -> None:
    """What the agent of this node does; exit code 1 when it is not ready."""
    from limpet.cli.commands.status import print_status

    raise typer.Exit(print_status(load_settings(config), output))


@ipam.command("list")
def ipam_list(
    network: Network = None, config: Config = None, output: Format = Output.TABLE
) -> None:
    """Addresses that are held, kept for absent pods, or resting."""
    from limpet.cli.commands.ipam import list_addresses

    list_addresses(load_settings(config), network, output)


@ipam.command("check")
def ipam_check(config: Config = None, output: Format = Output.TABLE) -> None:
    """Addresses that nothing uses any more, and damage; exit code 1 when there are any."""
    from limpet.cli.commands.ipam import check_addresses

    raise typer.Exit(check_addresses(load_settings(config), output))


@ipam.command("repair")
def ipam_repair(config: Config = None, output: Format = Output.TABLE) -> None:
    """Release what `check` finds; bindings of pods stay."""
    from limpet.cli.commands.ipam import repair_addresses

    repair_addresses(load_settings(config), output)


@ipam.command("release")
def ipam_release(
    what: Annotated[str, typer.Argument(help="An address, or a pod as NAMESPACE/NAME.")],
    network: Annotated[
        str | None,
        typer.Option("--network", help="Of this network; needed when there are several."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even while a container holds it.")
    ] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Keep an address for its pod no longer."""
    from limpet.cli.commands.ipam import release_address

    release_address(load_settings(config), what, network, output, force=force)
