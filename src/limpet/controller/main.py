"""The controller: start, signals, exit."""

from __future__ import annotations

import argparse
import asyncio
import asyncio.sslproto
import contextlib
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from limpet.base.configuration import CONTROLLER_PATH
from limpet.base.errors import ConfigError, KernelError, LimpetError
from limpet.base.process.lifetime import allow_many_files, for_ever, notify_service_manager, run
from limpet.base.process.log import complain, configure_log
from limpet.controller.backup import check_no_restore_was_cut_off, only_controller
from limpet.controller.picture.timeline import ClusterTimeline
from limpet.controller.reach import reach_problem, read_links
from limpet.controller.serving import serve
from limpet.controller.settings import ControllerSettings, load_settings
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.sqlite import SqliteStore
from limpet.timeline.file import FOLDER

_log = structlog.get_logger("controller")
_TLS_BUFFER_BYTES = 32 << 10


def main(arguments: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT. Exit code 0; 1 when it could not start; 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="limpet controller", description=__doc__)
    parser.add_argument("--config", type=Path, help=f"settings (default: {CONTROLLER_PATH})")
    options = parser.parse_args(arguments)
    os.umask(0o077)  # whatever we were started with
    try:
        settings = load_settings(options.config)
        configure_log(settings.log_level)
        # What strangers send is no matter for tracebacks; what fails of ours is logged there.
        for name in ("aiohttp", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        run(partial(_run, settings))
    except LimpetError as error:
        complain(f"limpet controller: {error}")
        return 1
    return 0


async def _run(settings: ControllerSettings) -> None:
    started_s = time.monotonic()
    allow_many_files()
    asyncio.get_running_loop().set_exception_handler(_note)
    # Every TLS connection has a buffer of this size, 256 KiB by default: half a gigabyte for two
    # thousand watchers. A TLS record has at most 16.
    asyncio.sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES
    if settings.place.store == "kubernetes":
        # Local: a controller with a file of its own has no Kubernetes client in its memory.
        from limpet.controller.replica import run_replica

        _check_reach(settings, is_made=True)
        await run_replica(settings)
        return
    with only_controller(settings):
        check_no_restore_was_cut_off(settings)
        _check_reach(settings, is_made=settings.database.exists())
        async with contextlib.AsyncExitStack() as undo:
            store = SqliteStore(settings.database)
            undo.push_async_callback(store.close)
            timeline = ClusterTimeline(settings.state_dir / FOLDER)
            timeline.start()
            undo.push_async_callback(timeline.stop)
            cluster = Cluster(store, settings, timeline=timeline)
            await cluster.start()
            undo.push_async_callback(cluster.stop)
            listening = await serve(settings, cluster, undo)
            notify_service_manager("READY=1")
            _log.info(
                "ready",
                listen=",".join(listening),
                socket=str(settings.socket),
                took_s=f"{time.monotonic() - started_s:.3f}",
            )
            await for_ever()


def _check_reach(settings: ControllerSettings, *, is_made: bool) -> None:
    """Raises: ConfigError while no cluster is made; later it is told."""
    try:
        problem = reach_problem(settings, read_links())
    except KernelError as error:
        _log.warning("not checked whether nodes can reach it", error=str(error))
        return
    if problem and not is_made:
        raise ConfigError(f"make cluster {settings.network.cluster}: {problem}")
    if problem:
        _log.warning("some nodes can't reach it", why=problem)


def _note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handshakes that fail, connections that end in the midst: strangers' doing, one line each."""
    error = context.get("exception")
    if isinstance(error, OSError):
        _log.debug("a connection failed", error=str(error), by_others=True)
    else:
        _log.error("failed", what=context.get("message"), exc_info=error, by_others=True)
