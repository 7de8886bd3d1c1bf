"""The page as an application of aiohttp: routes, templates, files, and the guard before them."""

from __future__ import annotations

import hashlib
import time
from functools import cache
from pathlib import Path

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from limpet.base.bounds.visitors import PAGE_BODY
from limpet.base.errors import LimpetError
from limpet.controller.api.connections import only_one_of_http_1
from limpet.web.access.guard import Guard, Handler, ServedAt
from limpet.web.access.sessions import Sessions
from limpet.web.actions import Actions
from limpet.web.live.feed import PictureFeed
from limpet.web.live.source import PictureSource
from limpet.web.pages import Pages

_HERE = Path(__file__).parent
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class WebPage:
    """What `limpet ui` serves. For one event loop."""

    def __init__(self, source: PictureSource, sessions: Sessions, place: ServedAt) -> None:
        self.feed = PictureFeed(source)
        self._guard = Guard(place, sessions, time.time)
        templates = _templates()
        self._pages = Pages(source, self.feed, self._guard, templates)
        self._actions = Actions(source, self.feed, self._guard, templates)
        self._templates = templates

    def application(self) -> web.Application:
        middlewares = [only_one_of_http_1, *self._guard.middlewares, self._in_words]
        application = web.Application(middlewares=middlewares, client_max_size=PAGE_BODY.most)
        application.add_routes([*self._pages.routes(), *self._actions.routes()])
        application.add_routes([web.get("/static/{name}", _static)])
        return application

    def stop(self) -> None:
        self._pages.stop()
        self.feed.stop()

    @web.middleware
    async def _in_words(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A page says why where there is nothing to show."""
        try:
            return await handler(request)
        except LimpetError as error:
            text = self._templates.get_template("trouble.html").render(
                error=str(error), is_part="HX-Request" in request.headers
            )
            return web.Response(text=text, content_type="text/html", status=503)


def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals["static"] = lambda name: f"/static/{name}?{_static_files()[name][1]}"
    return templates


@cache
def _static_files() -> dict[str, tuple[bytes, str]]:
    """By name: what is in it, and a short digest of that. Nothing else can be asked for."""
    paths = [each for each in (_HERE / "static").rglob("*") if each.suffix in _TYPES]
    return {
        path.name: (content, hashlib.sha256(content).hexdigest()[:12])
        for path in paths
        for content in [path.read_bytes()]
    }


async def _static(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    found = _static_files().get(name)
    if found is None:
        raise web.HTTPNotFound(text="there is no such file\n")
    content, digest = found
    headers = (
        {"Cache-Control": "max-age=31536000, immutable"} if request.query_string == digest else {}
    )
    return web.Response(
        body=content, content_type=_TYPES[Path(name).suffix], charset="utf-8", headers=headers
    )
