"""The controller's sockets: the API for nodes, the admin socket, what monitors look at."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web

from limpet.base.addresses import Listen, endpoint_text
from limpet.base.disk import cause
from limpet.base.errors import StorageError
from limpet.base.process.listeners import listen_on_socket, open_listener
from limpet.cluster.api import ADMIN_HEADER
from limpet.controller.admin.commands import Admin
from limpet.controller.api.server import Api
from limpet.controller.metrics import Metrics
from limpet.controller.registry.records import AuthorityRecord
from limpet.controller.settings import ControllerSettings
from limpet.controller.state.authority import server_context
from limpet.controller.state.cluster import Cluster

CheckRights = Callable[[str], Awaitable[str]]
"""Who holds a token, by name; raises RefusedError where they may not administer."""

_log = structlog.get_logger("admin")
_BACKLOG = 1024
_GOODBYE_S = 2.0
"""For requests that are under way at the end, and for clients that do not stop sending."""


async def serve(
    settings: ControllerSettings,
    cluster: Cluster,
    undo: contextlib.AsyncExitStack,
    check_rights: CheckRights | None = None,
    metrics: Metrics | None = None,
) -> list[str]:
    """Answers until `undo` is; returns the addresses of the API. Raises: StorageError.

    `check_rights`: of people who ask at the API; None: they ask at the admin socket alone.
    """
    metrics = metrics or Metrics()
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
    administer = partial(_administer, admin, check_rights) if check_rights is not None else None
    api = Api(cluster, authority.ca_certificate, metrics, settings.patience_s, administer)
    runner = await _runner(api.application(), settings, undo)
    undo.push_async_callback(api.stop_watches)
    context = server_context(authority)
    return [await _add_site(runner, at, context) for at in settings.listen]


async def serve_following(
    settings: ControllerSettings,
    authority: AuthorityRecord | None,
    api: web.Application,
    health: web.Application,
    undo: contextlib.AsyncExitStack,
) -> None:
    """As a controller that does not lead, until `undo` is. Raises: StorageError.

    `authority`: None while no cluster is made; then nobody has a certificate to ask with.
    """
    if settings.metrics_listen:
        runner = await _runner(health, settings, undo)
        for at in settings.metrics_listen:
            await _add_site(runner, at, None)
    if authority is not None:
        runner = await _runner(api, settings, undo)
        context = server_context(authority)
        for at in settings.listen:
            await _add_site(runner, at, context)


async def _administer(
    admin: Admin, check_rights: CheckRights, request: web.Request
) -> web.Response:
    """Raises: RefusedError, LimpetError."""
    verb = request.match_info["verb"]
    who = await check_rights(request.headers.get(ADMIN_HEADER, ""))
    _log.info("administered", verb=verb, by=who, peer=request.remote)
    return await admin.answer(verb, request)


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
