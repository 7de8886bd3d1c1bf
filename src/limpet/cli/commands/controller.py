"""`limpet controller`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from limpet.base.configuration import CONTROLLER_PATH
from limpet.cli.options import ControllerConfig as Config
from limpet.cli.options import Format, Words, require_root
from limpet.cli.output import Output, counted, put, put_document, say, show
from limpet.cli.reach import HERE, ReachOptions, ask, reaching
from limpet.cli.usage.commands import NounApp, check_options_stand_behind
from limpet.controller.admin.answers import KeyRotated, Recovery
from limpet.controller.settings import load_settings

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

controller = NounApp(
    help="The IP controller; without a command, run it.", invoke_without_command=True
)


def age(at_s: float | None) -> str:
    """When, by the controller's clock, and how long that is ago by this machine's."""
    if at_s is None:
        return ""
    at = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ago_s = max(0, int(time.time() - at_s))
    for unit, length_s in reversed(UNITS_S.items()):
        if ago_s >= length_s:
            return f"{at} ({ago_s // length_s}{unit} ago)"
    return f"{at} (now)"


# The commands


@controller.callback()
def _run(context: typer.Context, config: Config = None) -> None:
    check_options_stand_behind(context)
    if context.invoked_subcommand is None:
        from limpet.controller.main import main

        raise typer.Exit(main([] if config is None else ["--config", str(config)]))


@controller.command("backup")
def controller_backup(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="File that the back-up is written to; it must not exist yet."
        ),
    ],
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Copy the database, with all keys of the cluster, also while the controller runs."""
    from limpet.cli.answers import BackedUp
    from limpet.controller.backup import back_up

    back_up(load_settings(config), file)
    show(BackedUp(file=str(file)), output)
    say(f"limpet: {file} holds the keys of the cluster: keep it where nobody else can read it")


@controller.command("restore")
def controller_restore(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="File that `limpet controller backup` has written."),
    ],
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Put a back-up in the database's place; the controller must not run."""
    from limpet.cli.answers import Restored
    from limpet.controller.backup import restore

    settings = load_settings(config)
    former = restore(settings, file)
    database = str(settings.database)
    show(Restored(database=database, former=None if former is None else str(former)), output)
    if former is not None:
        say(f"limpet: what was there is kept as {former}")
    say(
        "limpet: start the controller (`limpet controller install` does, and has it come back "
        "after a reboot), then see `limpet controller recovery`"
    )


@controller.command("rotate-key")
@reaching
def controller_rotate_key(
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="End an open recovery, too: what this controller does not know by then does not "
            "count any more.",
        ),
    ] = False,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """Sign with a new cluster key from now on, and everything anew; the former key is revoked."""
    answer = ask(reach, "rotate-key", KeyRotated, force=force)
    show(
        answer,
        output,
        f"{counted(answer.signed_again, 'document')} signed with the new key, {answer.key}: "
        "nodes that have heard of it take nothing new that a former one has signed",
    )
    say(
        "limpet: make a back-up now: what is restored from one without the new key can sign nothing"
    )


@controller.command("recovery")
@reaching
def controller_recovery(
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Grant address space that was never used, before the recovery ends."
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="End the recovery now, and give free the addresses that are held back."
        ),
    ] = False,
    reach: ReachOptions = HERE,
    output: Format = Output.TABLE,
) -> None:
    """What a restored controller waits for; exit code 1 while it does."""
    answer = ask(reach, "recovery", Recovery, resume=resume, force=force)
    if output.is_document:
        put_document(answer, output)
    else:
        _put_recovery(answer)
    if answer.recovering:
        raise typer.Exit(1)


def _put_recovery(answer: Recovery) -> None:
    if not answer.recovering:
        put("no recovery: granting as ever")
    else:
        put(
            f"restored at revision {answer.restored_revision}, "
            f"{age(answer.began_at_s)}: "
            + ("granting unused space only" if answer.granting else "granting nothing")
        )
        for each in answer.waiting_for:
            put(f"waiting for {each.name} ({each.uid})")
        if not answer.granting:
            say("`limpet controller recovery --resume` grants space that was never used")
        if answer.needs_force:
            say("the margin did not fit into the pod CIDR: only --force ends this")
    if answer.freed:
        put(f"{counted(answer.freed, 'segment')} given free")
    if answer.held_back:
        put(f"{counted(answer.held_back, 'segment')} held back for nodes that we may not know")


@controller.command("install")
def controller_install(
    pod_cidr: Annotated[
        Words,
        typer.Option(
            "--pod-cidr",
            help="Address space of all pods; once for IPv4 and once for IPv6. It cannot be "
            "changed later.",
        ),
    ] = None,
    config: Annotated[
        Path,
        typer.Option(
            "--config", help="The controller's configuration; it is written if it is not there."
        ),
    ] = CONTROLLER_PATH,
    unit_dir: Annotated[
        Path, typer.Option("--unit-dir", help="Folder that the systemd unit is written to.")
    ] = Path("/etc/systemd/system"),
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Do not start the controller (for disk images).")
    ] = False,
    output: Format = Output.TABLE,
) -> None:
    """Make the controller a systemd service of this machine, and start it."""
    from limpet.cli.answers import Installed
    from limpet.cli.install.units.controller_service import ControllerInstall, install_controller

    require_root("controller install")
    options = ControllerInstall(
        tuple(pod_cidr or ()), config.absolute(), unit_dir.absolute(), start=not no_start
    )
    steps = install_controller(options)
    show(Installed(steps=steps), output, *steps)


@controller.command("uninstall")
def controller_uninstall(
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Remove the database with the cluster's keys too: there is no way back."
        ),
    ] = False,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Stop the controller and take its files off this machine."""
    from limpet.cli.install.uninstall import put_removal
    from limpet.cli.install.units.controller_service import uninstall_controller

    require_root("controller uninstall")
    removal = uninstall_controller(load_settings(config), purge=purge)
    nothing = "no controller was installed here"
    put_removal("controller uninstall", removal, output, nothing=nothing)
