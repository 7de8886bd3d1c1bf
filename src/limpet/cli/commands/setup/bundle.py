"""`limpet bundle`: one file with all that a site without internet needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limpet.agent.settings import load_settings
from limpet.base.errors import CommandLineError
from limpet.cli.options import Format, Words
from limpet.cli.output import Output, counted, say, show


def bundle(
    released: Annotated[
        Path,
        typer.Argument(
            metavar="RELEASED", help="File with the bundle of a release, as it was fetched."
        ),
    ],
    site: Annotated[
        Path,
        typer.Argument(metavar="SITE", help="File that the site's bundle is written to, SITE.tar."),
    ],
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Configuration of the agents of that site (default: Limpet's defaults).",
        ),
    ] = None,
    controller: Annotated[
        Words,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of a controller that the site's nodes join; can be repeated.",
        ),
    ] = None,
    output: Format = Output.TABLE,
) -> None:
    """Check a release's bundle, and make one for a site, with its settings, for machines without
    internet."""
    from limpet.cli.answers import Bundled
    from limpet.cli.bundle.site_bundle import write_site_bundle
    from limpet.cli.bundle.site_files import site_files

    if settings is None and not controller:
        raise CommandLineError(
            "bundle: say what the site has of its own: --settings FILE, --controller "
            "HOST:PORT (the release's bundle alone needs no other: its install.sh checks it)"
        )
    if settings is not None:
        load_settings(settings)
    made = write_site_bundle(released, site, site_files(settings, controller or ()))
    answer = Bundled(
        bundle=str(made.path.absolute()),
        folder=made.folder,
        sha256=made.sha256,
        files=made.files,
        bytes=made.size_bytes,
    )
    show(answer, output, f"{made.sha256}  {made.path.name}")
    say(
        f"limpet bundle: {made.path} has {counted(made.files, 'file')}, each as it was made; on "
        f"the machine: tar -xf {made.path.name}, cd {made.folder}, ./install.sh"
        + (" TOKENFILE (limpet token create, one for each machine)" if controller else "")
    )
