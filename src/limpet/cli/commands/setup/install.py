"""`limpet install` and `limpet uninstall`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.agent.settings import load_settings
from limpet.base.configuration import AGENT_PATH
from limpet.base.errors import LimpetError
from limpet.cli.install.runtimes import DEFAULT_BIN_DIR, DEFAULT_CONF_DIR
from limpet.cli.install.units.service import DEFAULT_UNIT_DIR
from limpet.cli.options import Config, Format, TokenFile, Words, given_token, require_root
from limpet.cli.output import Output, show

if TYPE_CHECKING:  # loaded only where something is installed
    from limpet.cli.install.report import InstallReport

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


def install(
    segment: Annotated[
        Words,
        typer.Option(
            help="Address segment of this node's pods, IPv4 or IPv6, for a node on its "
            "own; can be repeated."
        ),
    ] = None,
    cluster_cidr: Annotated[
        Words,
        typer.Option(
            help="Prefix that all pods of the cluster have addresses of; can be repeated."
        ),
    ] = None,
    token: Annotated[
        str,
        typer.Option(
            help="Join token that `limpet token create` printed: the node joins that "
            "cluster. `ps` shows it meanwhile."
        ),
    ] = "",
    token_file: TokenFile = "",
    controller: Annotated[
        Words,
        typer.Option(
            metavar="HOST:PORT", help="Address of a controller of the cluster; can be repeated."
        ),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of the node in the cluster (default: the host name).")
    ] = "",
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes",
            help="Make it a node of a Kubernetes cluster, whose agent hears the API server.",
        ),
    ] = False,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Kubeconfig by which the agent asks the API server, such as "
            "/etc/kubernetes/kubelet.conf.",
        ),
    ] = None,
    context: Annotated[
        str, typer.Option(help="Context of the kubeconfig (default: the current one).")
    ] = "",
    kubernetes_server: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Server that the agent asks in place of the kubeconfig's: a cache of the "
            "API server on this node.",
        ),
    ] = "",
    cni_bin_dir: BinDir = None,
    cni_conf_dir: ConfDir = None,
    config: Annotated[
        Path, typer.Option(help="The agent's configuration; it is written if it is not there.")
    ] = AGENT_PATH,
    unit_dir: Annotated[
        Path, typer.Option(help="Folder that the systemd unit is written to.")
    ] = DEFAULT_UNIT_DIR,
    network_name: Annotated[
        str | None,
        typer.Option(
            show_default="the one that is installed, or was, else limpet",
            help="Name of the network; by the name of one that was here before, its addresses are "
            "taken over.",
        ),
    ] = None,
    allow_forward: Annotated[
        bool,
        typer.Option(
            "--allow-forward",
            help="Keep rules that let pods' packets through in FORWARD chains of others "
            "that drop them.",
        ),
    ] = False,
    no_cni: Annotated[
        bool,
        typer.Option(
            "--no-cni", help="Attach no pods, since they are another network's here (gateway mode)."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Install in spite of findings marked `error`.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only look at what is there, and change nothing.")
    ] = False,
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
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh",
            help="Only bring what is installed here to this version, and start anew what runs: "
            "packages do this after an upgrade.",
        ),
    ] = False,
    take_over: Annotated[
        str,
        typer.Option(
            "--take-over",
            metavar="flannel",
            help="Take the node over from flannel: pods that run go on, what flannel has is put "
            "aside, and `limpet uninstall` gives it back.",
        ),
    ] = "",
    output: Format = Output.TABLE,
) -> None:
    """Look at what is there, then install Limpet on this node."""
    if refresh:
        _refresh(config, output)
        return
    from limpet.cli.install.install import install as do_install
    from limpet.cli.install.joining import JoinOptions
    from limpet.cli.install.kubernetes import kubernetes_options
    from limpet.cli.install.options import AskedSettings, InstallOptions, InstallPaths

    require_root("install")
    report = do_install(
        InstallOptions(
            AskedSettings(
                tuple(segment or ()),
                tuple(cluster_cidr or ()),
                allow_forward=allow_forward,
                cni=not no_cni,
                kubernetes=kubernetes_options(
                    kubeconfig, context, kubernetes_server, wanted=kubernetes
                ),
            ),
            InstallPaths(
                cni_bin_dir and cni_bin_dir.absolute(),
                cni_conf_dir and cni_conf_dir.absolute(),
                config.absolute(),
                unit_dir.absolute(),
            ),
            JoinOptions(given_token("install", token, token_file), tuple(controller or ()), name),
            network_name,
            force=force,
            dry_run=dry_run,
            start=not no_start,
            cni_only=cni_only,
            take_over=take_over,
        )
    )
    _tell(report, output)


def _refresh(config: Path, output: Output) -> None:
    from limpet.cli.install.refresh import refresh

    require_root("install")
    _tell(refresh(load_settings(config if config.exists() else None)), output)


def _tell(report: InstallReport, output: Output) -> None:
    """Raises: LimpetError where something failed."""
    from limpet.cli.answers import Installed

    answer = Installed(findings=report.findings, steps=report.steps, failure=report.failure)
    found = (line for each in report.findings for line in each.lines())
    show(answer, output, *found, *report.steps)
    if report.failure:
        raise LimpetError(f"install: {report.failure}")


def uninstall(
    config: Config = None,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge",
            help="Remove also address records, the written configuration, and what makes this "
            "machine a node of its cluster.",
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Uninstall although pods are attached, and take their interfaces away."
        ),
    ] = False,
    output: Format = Output.TABLE,
) -> None:
    """Take Limpet off this node and leave it as it was."""
    from limpet.cli.install.uninstall import put_removal
    from limpet.cli.install.uninstall import uninstall as do_uninstall

    require_root("uninstall")
    removal = do_uninstall(load_settings(config), purge=purge, force=force)
    put_removal("uninstall", removal, output, nothing="nothing of Limpet was here")
