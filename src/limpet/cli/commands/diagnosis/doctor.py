"""`limpet doctor`."""

from __future__ import annotations

import typer

from limpet.agent.settings import load_settings
from limpet.cli.commands.install import BinDir, ConfDir
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format, require_root
from limpet.cli.output import Output, show


@on_node
def doctor(
    config: Config = None,
    cni_bin_dir: BinDir = None,
    cni_conf_dir: ConfDir = None,
    output: Format = Output.TABLE,
) -> None:
    """Look for whatever may be wrong, the worst first; exit code 1 when something is."""
    from limpet.cli.doctor.doctor import diagnose
    from limpet.cli.doctor.findings import by_harm, errors, grouped

    require_root("doctor")
    findings = by_harm(diagnose(load_settings(config), cni_conf_dir, cni_bin_dir))
    answer = {"findings": [each.document() for each in findings]}
    show(answer, output, *grouped(findings))
    if errors(findings):
        raise typer.Exit(1)
