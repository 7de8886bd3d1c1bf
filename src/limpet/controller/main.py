"""The controller: start, signals, exit."""

from __future__ import annotations

import argparse
import asyncio
import asyncio.sslproto
import contextlib
import logging
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from limpet.base.addresses import Listen, endpoint_text
from limpet.base.disk import cause
from limpet.base.errors import ConfigError, KernelError, LimpetError, StorageError
from limpet.base.process import (
    allow_many_files,
    configure_log,
    listen_on_socket,
    notify_service_manager,
    open_listener,
    until_stopped,
)
from limpet.controller.admin.commands import Admin
from limpet.controller.api.server import Api
from limpet.controller.backup import check_no_restore_was_cut_off, only_controller
from limpet.controller.metrics import Metrics
from limpet.controller.reach import reach_problem, read_links
from limpet.controller.settings import DEFAULT_PATH, ControllerSettings, load_settings
from limpet.controller.state.authority import server_context
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.sqlite import SqliteStore

_log = structlog.get_logger("controller")
_BACKLOG = 1024
_TLS_BUFFER_BYTES = 32 << 10
_GOODBYE_S = 2.0
"""For requests that are under way at the end, and for clients that do not stop sending."""


def main(arguments: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT. Exit code 0; 1 when it could not start; 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="limpet controller", description=__doc__)
    parser.add_argument("--config", type=Path, help=f"settings (default: {DEFAULT_PATH})")
    options = parser.parse_args(arguments)
    try:
        settings = load_settings(options.config)
        configure_log(settings.log_level)
        # What strangers send is no matter for tracebacks; what fails of ours is logged there.
        for name in ("aiohttp", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        asyncio.run(_run(settings))
    except LimpetError as error:
        print(f"limpet controller: {error}", file=sys.stderr)  # noqa: T201 - before any log
        return 1
    return 0


async def _run(settings: ControllerSettings) -> None:
    started_s = time.monotonic()
    allow_many_files()
    asyncio.get_running_loop().set_exception_handler(_note)
    # Every TLS connection has a buffer of this size, 256 KiB by default: half a gigabyte for two
    # thousand watchers. A TLS record has at most 16.
    asyncio.sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES
    with only_controller(settings):
        check_no_restore_was_cut_off(settings)
        _check_reach(settings)
        async with contextlib.AsyncExitStack() as undo:
            store = SqliteStore(settings.database)
            undo.push_async_callback(store.close)
            cluster = Cluster(store, settings)
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
            await until_stopped()
            _log.info("stopping")


def _check_reach(settings: ControllerSettings) -> None:
    """Raises: ConfigError while no cluster is made; later it is told."""
    try:
        problem = reach_problem(settings, read_links())
    except KernelError as error:
        _log.warning("not checked whether nodes can reach it", error=str(error))
        return
    if problem and not settings.database.exists():
        raise ConfigError(f"make cluster {settings.network.cluster}: {problem}")
    if problem:
        _log.warning("some nodes can't reach it", why=problem)


async def serve(
    settings: ControllerSettings, cluster: Cluster, undo: contextlib.AsyncExitStack
) -> list[str]:
    """Answers until `undo` is; returns the addresses of the API. Raises: StorageError."""
    metrics = Metrics()
    authority = await cluster.change(lambda tables: tables.authority)
    admin = Admin(cluster, metrics, settings.restore_margin)
    if settings.metrics_listen:
        health = web.Application()
        health.add_routes(admin.health_routes())
        runner = await _runner(health, settings, undo)
        for at in settings.metrics_listen:
            await _add_site(runner, at, None)
    runner = await _runner(admin.application(), settings, undo)
    await _listen_on_socket(runner, settings.socket, undo)
    api = Api(cluster, authority.ca_certificate, metrics, settings.patience_s)
    runner = await _runner(api.application(), settings, undo)
    undo.push_async_callback(api.stop_watches)
    context = server_context(authority)
    return [await _add_site(runner, at, context) for at in settings.listen]


async def _runner(
    application: web.Application, settings: ControllerSettings, undo: contextlib.AsyncExitStack
) -> web.AppRunner:
    runner = web.AppRunner(
        application,
        access_log=None,
        shutdown_timeout=_GOODBYE_S,
        lingering_time=_GOODBYE_S,
        keepalive_timeout=settings.idle_s,
    )
    await runner.setup()
    undo.push_async_callback(runner.cleanup)
    return runner


async def _add_site(runner: web.AppRunner, at: Listen, context: ssl.SSLContext | None) -> str:
    """Address and port. Raises: StorageError."""
    try:
        listener = open_listener(at)
    except OSError as error:
        raise StorageError(
            "listen on",
            endpoint_text(at),
            cause(error),
            hint="set `listen` in the controller's configuration",
        ) from error
    await web.SockSite(runner, listener, ssl_context=context, backlog=_BACKLOG).start()
    return endpoint_text((at[0], listener.getsockname()[1]))


async def _listen_on_socket(
    runner: web.AppRunner, path: Path, undo: contextlib.AsyncExitStack
) -> None:
    """Raises: StorageError."""
    await web.SockSite(runner, listen_on_socket(path, _BACKLOG), backlog=_BACKLOG).start()
    undo.callback(path.unlink, missing_ok=True)


def _note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handshakes that fail, connections that end in the midst: strangers' doing, one line each."""
    error = context.get("exception")
    if isinstance(error, OSError):
        _log.debug("a connection failed", error=str(error))
    else:
        _log.error("failed", what=context.get("message"), exc_info=error)
