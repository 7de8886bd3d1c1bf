"""The controller's sockets: the API for nodes, the admin socket, what monitors look at."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web

from limpet.base.acceptor.places import Source
from limpet.base.addresses import Listen, endpoint_text
from limpet.base.bounds.administrators import ADMIN_CONNECTIONS
from limpet.base.bounds.strangers import HEADERS
from limpet.base.disk import cause
from limpet.base.errors import StorageError
from limpet.base.process.listeners import listen_on_socket, open_listener
from limpet.cluster.api import ADMIN_HEADER
from limpet.controller.admin.commands import Admin
from limpet.controller.api.connections import (
    MONITORS,
    ApiServer,
    connection_of,
    only_one_of_http_1,
    source_of_request,
)
from limpet.controller.api.owned_connections import OwnedConnections
from limpet.controller.api.reflection import Reflection
from limpet.controller.api.server import Api
from limpet.controller.figures.metrics import Metrics
from limpet.controller.picture.listed import ListedServices
from limpet.controller.picture.silent_nodes import follow_silence
from limpet.controller.picture.timeline import CHANGING
from limpet.controller.registry.records import AuthorityRecord
from limpet.controller.settings import ControllerSettings
from limpet.controller.state.authority import server_context
from limpet.controller.state.cluster import Cluster

CheckRights = Callable[[str, Source], Awaitable[str]]
"""Who holds a token that came from there, by name; raises RefusedError where they may not
administer."""

_log = structlog.get_logger("admin")
_BACKLOG = 1024
_READ_BYTES = 16 << 10
"""Size of a body read before a handler wants it; beyond twice as much, no more is read."""
_GOODBYE_S = 2.0
"""For requests that are under way at the end, and for clients that do not stop sending."""


async def serve(
    settings: ControllerSettings,
    cluster: Cluster,
    undo: contextlib.AsyncExitStack,
    check_rights: CheckRights | None = None,
    metrics: Metrics | None = None,
    services: ListedServices | None = None,
) -> list[str]:
    """Answers until `undo` is; returns the addresses of the API. Raises: StorageError.

    `check_rights`: of people who ask at the API; None: they ask at the admin socket alone.
    `services`: of Kubernetes, for whoever looks at the cluster.
    """
    metrics = metrics or Metrics({"state": settings.state_dir})
    metrics.watch("store_trouble", lambda: bool(cluster.store_trouble))
    authority = await cluster.change(lambda tables: tables.authority)
    undo.callback(asyncio.create_task(follow_silence(cluster)).cancel)
    admin = Admin(cluster, metrics, settings.restore_margin, services)
    health = web.Application()
    health.add_routes(admin.health_routes())
    await serve_monitors(health, settings, undo)
    runner = await _runner(admin.application(), settings, undo)
    await _listen_on_socket(runner, settings.socket, undo)
    administer = None
    if check_rights is not None:
        of_people = OwnedConnections(ADMIN_CONNECTIONS)
        administer = partial(_administer, admin, check_rights, of_people)
    api = Api(cluster, authority.ca_certificate, metrics, settings.waits.patience_s, administer)
    runner = await _runner(api.application(), settings, undo)
    undo.push_async_callback(api.stop_watches)
    reflection = Reflection()
    undo.callback(reflection.close)
    await reflection.listen(settings.listen)
    return _listen(runner, authority, cluster.is_member, api.connections, settings, undo)


async def serve_following(
    settings: ControllerSettings,
    authority: AuthorityRecord,
    api: web.Application,
    undo: contextlib.AsyncExitStack,
) -> None:
    """As a controller that does not lead, until `undo` is. Raises: StorageError."""
    runner = await _runner(api, settings, undo)
    _listen(runner, authority, lambda _: True, None, settings, undo)


async def _administer(
    admin: Admin, check_rights: CheckRights, of_people: OwnedConnections, request: web.Request
) -> web.Response:
    """Raises: RefusedError, LimpetError."""
    verb = request.match_info["verb"]
    who = await check_rights(request.headers.get(ADMIN_HEADER, ""), source_of_request(request))
    # Who looks asks on and on; who changes something is to be found.
    tell = _log.info if verb in CHANGING else _log.debug
    tell("administered", verb=verb, by=who, peer=request.remote)
    connection = connection_of(request)
    if connection is not None:
        connection.free()
        connection.belongs_to(who, of_people)
    return await admin.answer(verb, request, who)


async def _runner(
    application: web.Application, settings: ControllerSettings, undo: contextlib.AsyncExitStack
) -> web.AppRunner:
    runner = web.AppRunner(
        application,
        access_log=None,
        shutdown_timeout=_GOODBYE_S,
        lingering_time=_GOODBYE_S,
        keepalive_timeout=settings.waits.idle_s,
        # Nobody packs a body, and what is packed may be anything's size.
        auto_decompress=False,
        max_headers=HEADERS.most,
        read_bufsize=_READ_BYTES,
    )
    await runner.setup()
    undo.push_async_callback(runner.cleanup)
    return runner


def _listen(
    runner: web.AppRunner,
    authority: AuthorityRecord,
    is_member: Callable[[str], bool],
    of_members: OwnedConnections | None,
    settings: ControllerSettings,
    undo: contextlib.AsyncExitStack,
) -> list[str]:
    """The addresses of the API, with their ports. Raises: StorageError."""
    assert runner.server is not None
    server = ApiServer(
        runner.server,
        server_context(authority),
        is_member,
        of_members,
        patience_s=settings.waits.idle_s,
    )
    undo.callback(server.stop)
    return [_add_listener(server, at) for at in settings.listen]


async def serve_monitors(
    health: web.Application, settings: ControllerSettings, undo: contextlib.AsyncExitStack
) -> None:
    """In clear, where anybody is to look, until `undo` is. Raises: StorageError."""
    if not settings.metrics_listen:
        return
    health.middlewares.append(only_one_of_http_1)
    runner = await _runner(health, settings, undo)
    assert runner.server is not None
    server = ApiServer(
        runner.server,
        None,
        lambda _: False,
        rooms=(MONITORS, MONITORS),
        patience_s=settings.waits.idle_s,
    )
    undo.callback(server.stop)
    for at in settings.metrics_listen:
        _add_listener(server, at)


def _add_listener(server: ApiServer, at: Listen) -> str:
    """Address and port. Raises: StorageError."""
    try:
        listener = open_listener(at)
        server.listen(listener)
    except OSError as error:
        raise StorageError(
            "listen on",
            endpoint_text(at),
            cause(error),
            hint="set `listen` in the controller's configuration",
        ) from error
    return endpoint_text((at[0], listener.getsockname()[1]))


async def _listen_on_socket(
    runner: web.AppRunner, path: Path, undo: contextlib.AsyncExitStack
) -> None:
    """Raises: StorageError."""
    await web.SockSite(runner, listen_on_socket(path, _BACKLOG), backlog=_BACKLOG).start()
    undo.callback(path.unlink, missing_ok=True)
