"""The pages: each looks at the latest picture and is whole by itself; htmx takes parts of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web
from jinja2 import Environment

from limpet import __version__
from limpet.base.bounds.visitors import PAGE_QUERY, PAGE_STREAMS, PAGE_UNTAKEN_S
from limpet.base.errors import LimpetError
from limpet.web import views
from limpet.web.access.guard import Guard
from limpet.web.access.sessions import BrowserSession
from limpet.web.access.turns import OwnTurns
from limpet.web.live import words
from limpet.web.live.feed import PictureFeed, SeenPicture
from limpet.web.live.map_rows import changes
from limpet.web.live.source import PictureSource

PLACES = {
    "map": "Map",
    "nodes": "Nodes",
    "pairs": "Pairs",
    "segments": "Segments",
    "communities": "Communities",
    "relays": "Relays",
    "services": "Services",
    "policies": "Policies",
    "findings": "Findings",
    "timeline": "Timeline",
}
_FINDINGS_S = 30.0
"""Between two looks of doctor: it asks the whole machine."""
_KEEPALIVE_S = 15.0
_STREAM_WRITES_S = 0.1
"""At least between two writes to a browser, so that a storm of changes is one."""
_EVENTS = 200

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages:
    """For one event loop."""

    def __init__(
        self, source: PictureSource, feed: PictureFeed, guard: Guard, templates: Environment
    ) -> None:
        self._source = source
        self._feed = feed
        self._guard = guard
        self._templates = templates
        self._questions = OwnTurns(source.rest_s)
        self._found: tuple[Any, ...] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._found_at_s = -_FINDINGS_S
        self._ending = asyncio.Event()

    def routes(self) -> list[web.RouteDef]:
        lists = [
            web.get(f"/{name}", self._list(name))
            for name in PLACES
            if name not in ("map", "timeline", "findings")
        ]
        return [
            web.get("/", self._map),
            *lists,
            web.get("/findings", self._findings),
            web.get("/timeline", self._timeline),
            web.get("/nodes/{uid}", self._node),
            web.get("/pairs/{one}/{other}", self._pair),
            web.get("/sites/{site}", self._site),
            web.get("/map.json", self._map_rows),
            web.get("/live", self._live),
            web.get("/enter", self._enter),
        ]

    def stop(self) -> None:
        """Streams end."""
        self._ending.set()

    # Pages

    async def _map(self, request: web.Request) -> web.Response:
        return await self._show(request, "map", "map.html")

    def _list(self, name: str) -> Answer:
        async def answer(request: web.Request) -> web.Response:
            return await self._show(request, name, f"{name}.html")

        return answer

    async def _findings(self, request: web.Request) -> web.Response:
        await self._look_for_findings()
        if self._finding is not None:
            await asyncio.shield(self._finding)  # others wait for it, too
        return await self._show(request, "findings", "findings.html")

    async def _timeline(self, request: web.Request) -> web.Response:
        seen = await self._feed.now()
        view = views.PictureView(seen.picture)
        node = view.uid_of(request.query.get("node", "")) or ""
        async with self._questions.turn(self._session(request).owner):
            timeline = await self._source.events(
                before=_number(request.query.get("before")),
                # By its name: what people did, and what became of a node, has no other.
                node=view.name(node) if node else "",
                limit=_EVENTS,
            )
        return await self._show(request, "timeline", "timeline.html", timeline=timeline, node=node)

    async def _node(self, request: web.Request) -> web.Response:
        seen = await self._feed.now()
        view = views.PictureView(seen.picture)
        uid = view.uid_of(request.match_info["uid"])
        if uid is None:
            raise web.HTTPNotFound(text="no node of this name or uid is known here\n")
        self._feed.shown((uid,))
        return await self._show(request, "nodes", "node.html", node=view.nodes[uid])

    async def _site(self, request: web.Request) -> web.Response:
        site = request.match_info["site"]
        site = "" if site == "-" else site
        return await self._show(request, "nodes", "site.html", site=site)

    async def _pair(self, request: web.Request) -> web.Response:
        seen = await self._feed.now()
        view = views.PictureView(seen.picture)
        ends = [view.uid_of(request.match_info[each]) for each in ("one", "other")]
        one, other = ends
        if one is None or other is None or one == other:
            raise web.HTTPNotFound(text="no two nodes of these names or uids are known here\n")
        self._feed.shown((one, other))
        async with self._questions.turn(self._session(request).owner):
            detail = await self._source.pair(min(one, other), max(one, other))
        return await self._show(request, "pairs", "pair.html", detail=detail)

    async def _enter(self, request: web.Request) -> web.Response:
        text = self._templates.get_template("enter.html").render(version=__version__)
        return web.Response(text=text, content_type="text/html")

    async def _show(
        self, request: web.Request, place: str, template: str, **further: Any
    ) -> web.Response:
        seen = await self._feed.now()
        await self._look_for_findings()
        session = self._session(request)
        query = {
            key: value[: PAGE_QUERY.most] for key, value in request.query.items() if len(key) < 32
        }
        async with self._guard.turns.turn(session.owner):
            text = self._templates.get_template(template).render(
                view=views.PictureView(seen.picture, self._found),
                picture=seen.picture,
                trouble=seen.trouble,
                places=PLACES,
                place=place,
                query=query,
                number=_number(query.get("page")) or 1,
                session=session,
                can_act=session.may_write and self._source.can_act,
                version=__version__,
                is_part="HX-Request" in request.headers,
                words=words,
                views=views,
                ago=lambda at_s: words.ago(at_s, seen.picture.as_of_s),
                **further,
            )
        return web.Response(text=text, content_type="text/html", headers={"Vary": "HX-Request"})

    def _session(self, request: web.Request) -> BrowserSession:
        session = self._guard.session_of(request)
        if session is None:
            raise web.HTTPSeeOther("/enter")  # it has ended while something was asked for
        return session

    async def _look_for_findings(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._found_at_s < _FINDINGS_S:
            return
        self._found_at_s = now_s
        self._finding = asyncio.create_task(self._look())

    async def _look(self) -> None:
        try:
            self._found = await self._source.findings()
        except LimpetError:
            self._found = None  # the page says by itself that nobody answers
        except BaseException:
            self._found_at_s = -_FINDINGS_S  # nothing was found, so the next asks again
            raise

    # What a browser draws by itself

    async def _map_rows(self, request: web.Request) -> web.Response:
        session = self._guard.session_of(request)
        assert session is not None  # the guard has let it in
        seen = await self._feed.now()
        async with self._guard.turns.turn(session.owner):
            response = _json(seen.rows.document(seen.picture))
        if request.secure:  # from afar: a tenth of some megabytes
            response.enable_compression()
        return response

    async def _live(self, request: web.Request) -> web.StreamResponse:
        session = self._guard.session_of(request)
        assert session is not None  # the guard has let it in
        if session.streams >= PAGE_STREAMS.most:
            raise web.HTTPTooManyRequests(text="this session has too many pages open\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self._guard.seal(response)
        session.streams += 1
        try:
            seen = await self._feed.now()
            await response.prepare(request)
            version = seen.picture.version
            is_older = request.query.get("version") not in (None, version)
            asked_for = {"reload": True} if is_older else {}
            await write_in_time(response, _event({"version": version, **asked_for, **_now(seen)}))
            await self._stream(request, response, seen, session)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # it would be waited for until all is taken
        except ConnectionError:
            pass
        finally:
            session.streams -= 1
        return response

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        seen: SeenPicture,
        session: BrowserSession,
    ) -> None:
        ending = asyncio.create_task(self._ending.wait())
        following = asyncio.create_task(self._feed.after(seen))
        try:
            while not ending.done():
                await asyncio.wait(
                    (ending, following), timeout=_KEEPALIVE_S, return_when="FIRST_COMPLETED"
                )
                if self._guard.session_of(request) is None:
                    return  # its token was removed, or it has left
                if not following.done():
                    await write_in_time(response, b": still here\n\n")
                    continue
                after = following.result()
                async with self._guard.turns.turn(session.owner):
                    changed = changes(seen.rows, after.rows, seen.picture.version, after.picture)
                    event = _event({**changed, **_now(after)})
                seen = after
                await write_in_time(response, event)
                await asyncio.sleep(_STREAM_WRITES_S)
                following = asyncio.create_task(self._feed.after(seen))
        finally:
            ending.cancel()
            following.cancel()


def _now(seen: SeenPicture) -> dict[str, str]:
    """What every event says, for whoever has missed those before."""
    return {"trouble": seen.trouble, "cloud": views.cut_off(seen.picture)}


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


async def write_in_time(response: web.StreamResponse, event: bytes) -> None:
    """Raises: TimeoutError once the browser takes nothing, for which a picture is held."""
    async with asyncio.timeout(PAGE_UNTAKEN_S.most):
        await response.write(event)


def _json(document: Mapping[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None
