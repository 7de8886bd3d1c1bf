"""`limpet doctor`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limpet.agent.settings import Settings, load_settings
from limpet.base.errors import LimpetError
from limpet.cli.commands.setup.install import BinDir, ConfDir
from limpet.cli.on_node import on_node
from limpet.cli.options import Config, Format, require_root
from limpet.cli.output import Output, say, show

if TYPE_CHECKING:  # loaded when doctor runs, and by no other command
    from limpet.cli.doctor.findings import Finding


@on_node
def doctor(
    config: Config = None,
    cni_bin_dir: BinDir = None,
    cni_conf_dir: ConfDir = None,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Mend what is safe to mend, after saying what will be done."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before mending; needs --fix.")
    ] = False,
    output: Format = Output.TABLE,
) -> None:
    """Look for whatever may be wrong, the worst first; exit code 1 when something is."""
    from limpet.cli.answers import FindingLine, Found
    from limpet.cli.doctor.doctor import diagnose
    from limpet.cli.doctor.findings import by_harm, errors, grouped

    require_root("doctor")
    settings = load_settings(config)
    findings = by_harm(diagnose(settings, cni_conf_dir, cni_bin_dir))
    if fix and _mend(findings, settings, (cni_conf_dir, cni_bin_dir), yes=yes):
        findings = by_harm(diagnose(settings, cni_conf_dir, cni_bin_dir))
    answer = Found(findings=[FindingLine.of(each) for each in findings])
    show(answer, output, *grouped(findings))
    if errors(findings):
        raise typer.Exit(1)


def _mend(
    findings: Sequence[Finding],
    settings: Settings,
    folders: tuple[Path | None, Path | None],
    *,
    yes: bool,
) -> bool:
    """Whether anything was done. Raises: LimpetError where nobody can be asked."""
    from limpet.cli.doctor.installed.installation import find_installed
    from limpet.cli.doctor.mends import mends

    target = find_installed(settings, *folders)
    found = list(mends({each.id for each in findings}, target))
    if not found:
        say("limpet doctor: there is nothing that --fix mends; see what each finding says")
        return False
    for each in found:
        say(f"limpet doctor: to mend {each.id}: {each.what}")
    if not yes:
        if not sys.stdin.isatty():
            raise LimpetError(
                "limpet doctor: nothing was done, since nobody can be asked here (--fix --yes "
                "does it)"
            )
        if not typer.confirm("Do that?", err=True):
            return False
    for each in found:
        try:
            each.apply()
        except LimpetError as error:
            say(f"limpet doctor: {each.id} is not mended: {error}")
    return True
