"""What a site has of its own, as files below a bundle's folder. No secret is among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from limpet.base.errors import CommandLineError, StorageError
from limpet.cloud.https import parse_controller

SETTINGS, CONTROLLERS = "site/agent.toml", "site/controllers"
"""`install.sh` of a bundle reads them."""


def site_files(settings: Path | None, controllers: Sequence[str]) -> dict[str, bytes]:
    """By path. `controllers`: one line each. Raises: CommandLineError, LinkError, StorageError."""
    found: dict[str, bytes] = {}
    for each in controllers:
        if each.split() != [each]:
            raise CommandLineError(f"bundle: --controller {each!r} is no HOST:PORT")
        parse_controller(each)
    if controllers:
        found[CONTROLLERS] = "".join(f"{each}\n" for each in controllers).encode()
    if settings is not None:
        try:
            found[SETTINGS] = settings.read_bytes()
        except OSError as error:
            words = error.strerror or str(error)
            raise StorageError("read", str(settings), words) from error
    return found
