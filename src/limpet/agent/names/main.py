"""`limpet dns serve`: the process that answers names, with the settings of the node's agent.

No agent imports this: the two share a configuration, a disk and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from limpet.agent.settings import load_settings
from limpet.base import faults
from limpet.base.addresses import Listen
from limpet.base.errors import ConfigError, LimpetError
from limpet.base.process.lifetime import allow_many_files, run
from limpet.base.process.log import complain, configure_log
from limpet.base.process.memory import share_one_heap
from limpet.dns.process import answer_names
from limpet.dns.status.answers import NamesStatus

_RETRY_S = 5.0
"""Until the process before this one has ended."""


def main(arguments: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT. Exit code 0; 1 when it could not start; 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="limpet dns serve", description=__doc__)
    parser.add_argument("--config", type=Path, help="the agent's settings")
    config: Path | None = parser.parse_args(arguments).config
    os.umask(0o077)
    share_one_heap()
    try:
        run(partial(_run, config))
    except LimpetError as error:
        complain(f"limpet dns: {error}")
        return 1
    return 0


async def _run(config: Path | None) -> None:
    settings = load_settings(config)
    if settings.dns.dns == "off":
        raise ConfigError('serve names: dns = "off" on this node (dns = "on" in its settings)')
    configure_log(settings.log_level)
    allow_many_files()
    asyncio.get_running_loop().set_exception_handler(faults.note_of_loop)
    folders, listen = settings.folders, settings.dns.metrics_listen
    await answer_names(
        settings.dns, folders.cluster_dir, folders.run_dir, partial(_metrics, listen)
    )


@asynccontextmanager
async def _metrics(
    listen: Sequence[Listen], status: Callable[[], NamesStatus]
) -> AsyncIterator[None]:
    """Figures are served, where they are to be. The port of a process that ends is there soon."""
    if not listen:
        yield
        return
    # Only here: it takes 3 MiB.
    from limpet.base.metrics.server import MetricsServer
    from limpet.dns.status.metrics import Metrics

    server = MetricsServer(
        listen, metrics=Metrics(status).text, reasons=partial(_reasons, status), retry_s=_RETRY_S
    )
    await server.start()
    try:
        yield
    finally:
        await server.stop()


def _reasons(status: Callable[[], NamesStatus]) -> list[str]:
    """Why names of the cluster are not answered; empty: they are."""
    return ["no Service was ever heard of"] if status().services is None else []
