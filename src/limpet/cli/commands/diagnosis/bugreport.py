"""`limpet bugreport`."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict

from limpet.agent.client import agent_pid
from limpet.agent.settings import load_settings
from limpet.base.configuration import AGENT_PATH
from limpet.base.errors import LimpetError
from limpet.cli.options import Config, Format
from limpet.cli.output import Output, say, show_table


def bugreport(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="File that the archive is written to (default: "
            "limpet-bugreport-HOST-TIME.tar.gz in this folder).",
        ),
    ] = None,
    config: Config = None,
    output: Format = Output.TABLE,
) -> None:
    """Put all that whoever mends this node asks for into one archive, without secrets."""
    from limpet.cli.answers import Reported, ReportPiece
    from limpet.cli.bugreport.archive import write_report
    from limpet.cli.bugreport.pieces import pieces
    from limpet.cli.bugreport.secrets import known_secrets
    from limpet.cli.install.runtimes import find_runtimes, folders_in_use

    settings = load_settings(config)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = file or Path(f"limpet-bugreport-{socket.gethostname()}-{stamp}.tar.gz")
    try:
        pid = agent_pid(settings.folders.socket) or None
    except LimpetError:
        pid = None
    secrets = known_secrets(settings, [] if pid is None else [pid])
    read = config or Path(os.environ.get("LIMPET_CONFIG") or AGENT_PATH)
    conf_dir, _ = folders_in_use(find_runtimes())
    entries = write_report(path, pieces(settings, read, conf_dir, pid), secrets)
    contents = [
        ReportPiece(file=each.name, bytes=each.size_bytes, note=each.note) for each in entries
    ]
    answer = Reported(archive=str(path.absolute()), contents=contents)
    rows = [asdict(each) for each in contents]
    show_table(answer, output, rows, nothing="nothing could be gathered")
    say(
        f"limpet bugreport: {path} has all that; secrets are left out, names and addresses of "
        "nodes and pods are in it: look through it before you give it away"
    )
    if os.geteuid() != 0:
        say("limpet bugreport: as root it has more")
