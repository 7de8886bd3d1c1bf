"""`limpet ui` as a process: where it listens, its certificate, what it prints, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from limpet.base.addresses import Listen, endpoint_text
from limpet.base.bounds.strangers import HEADERS
from limpet.base.disk import cause
from limpet.base.errors import LimpetError
from limpet.base.process.lifetime import for_ever, notify_service_manager
from limpet.base.process.listeners import open_listener
from limpet.controller.api.connections import ApiServer
from limpet.web.access.certificate import Renewal, context_of
from limpet.web.access.guard import ServedAt
from limpet.web.access.sessions import PageToken, Sessions
from limpet.web.application import WebPage
from limpet.web.live.source import PictureSource

_IDLE_S = 75.0
_GOODBYE_S = 1.0
_NEW_LINK_S = 0.5
_log = structlog.get_logger("page")


@dataclass(frozen=True, slots=True)
class Serving:
    """Where and for whom."""

    listen: Listen
    names: frozenset[str] = frozenset()
    certificate: tuple[Path, Path] | None = None
    """And its key, PEM. None: in clear, and then on loopback alone."""
    tokens: Callable[[], Mapping[str, PageToken]] = dict
    follow: Callable[[], Coroutine[Any, Any, None]] | None = None
    """For ever: keeps the tokens as they are elsewhere."""
    renew: Callable[[], tuple[Path, Path]] | None = None
    """Certificate and key as they should be by now, where they are the page's own."""


@contextlib.asynccontextmanager
async def served(source: PictureSource, serving: Serving) -> AsyncIterator[tuple[str, Sessions]]:
    """The page's address, and who is in, while it is served. Raises: LimpetError."""
    host, port = serving.listen
    is_loopback = ip_address(host).is_loopback
    if serving.certificate is None and not is_loopback:
        raise LimpetError(
            f"serve the page at {endpoint_text(serving.listen)}: others could read along and sign "
            "in (a certificate is needed there, or an address of loopback)"
        )
    try:
        listener = open_listener((host, port))
    except OSError as error:
        raise LimpetError(
            f"serve the page at {endpoint_text(serving.listen)}: {cause(error)} (name another: "
            "--listen)"
        ) from error
    port = listener.getsockname()[1]
    context = context_of(*serving.certificate) if serving.certificate is not None else None
    place = ServedAt(serving.names, is_loopback, context is not None, port)
    sessions = Sessions(lambda: secrets.token_urlsafe(32), serving.tokens)
    page = WebPage(source, sessions, place)
    runner = web.AppRunner(
        page.application(),
        access_log=None,
        shutdown_timeout=_GOODBYE_S,
        keepalive_timeout=_IDLE_S,
        auto_decompress=False,
        handler_cancellation=True,  # a stream whose browser is gone ends at once
        max_headers=HEADERS.most,
    )
    await runner.setup()
    assert runner.server is not None
    server = ApiServer(runner.server, context, lambda _: False, patience_s=_IDLE_S)
    server.listen(listener)
    renewal = Renewal(context, serving.renew) if context and serving.renew else None
    if renewal is not None:
        renewal.look()
    following = asyncio.create_task(serving.follow()) if serving.follow is not None else None
    try:
        scheme = "https" if context is not None else "http"
        shown = f"[{host}]" if ":" in host else host
        yield f"{scheme}://{shown}:{port}", sessions
    finally:
        if following is not None:
            following.cancel()
        if renewal is not None:
            renewal.stop()
        server.stop()
        page.stop()
        await runner.cleanup()


async def serve(source: PictureSource, serving: Serving, say: Callable[[str], None] | None) -> None:
    """For ever. `say`: is told a link that lets in once, and after it was used the next; None:
    people sign in by tokens. Raises: LimpetError."""
    # What strangers send is no matter for tracebacks.
    for name in ("aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    async with served(source, serving) as (address, sessions):
        notify_service_manager("READY=1")
        _log.info("ready", address=address)
        if say is None:
            await for_ever()
        while say is not None:
            secret = sessions.new_link()
            say(f"{address}/enter#{secret}")
            while sessions.has_link:
                await asyncio.sleep(_NEW_LINK_S)
