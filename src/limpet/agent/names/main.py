"""`limpet dns serve`: the process that answers names, with the settings of the node's agent.

No agent imports this: the two share a configuration, a disk and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from limpet.agent.settings import load_settings
from limpet.base import faults
from limpet.base.errors import ConfigError, LimpetError
from limpet.base.process import allow_many_files, configure_log, share_one_heap
from limpet.dns.process import run


def main(arguments: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT. Exit code 0; 1 when it could not start; 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="limpet dns serve", description=__doc__)
    parser.add_argument("--config", type=Path, help="the agent's settings")
    config: Path | None = parser.parse_args(arguments).config
    os.umask(0o077)
    share_one_heap()
    try:
        asyncio.run(_run(config))
    except LimpetError as error:
        print(f"limpet dns: {error}", file=sys.stderr)  # noqa: T201 - before any log
        return 1
    return 0


async def _run(config: Path | None) -> None:
    settings = load_settings(config)
    if settings.dns.dns == "off":
        raise ConfigError('serve names: dns = "off" on this node (dns = "on" in its settings)')
    configure_log(settings.log_level)
    allow_many_files()
    asyncio.get_running_loop().set_exception_handler(faults.note_of_loop)
    await run(settings.dns, settings.folders.cluster_dir, settings.folders.run_dir)
