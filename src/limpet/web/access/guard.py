"""What every request goes through before a page is made: its size, its host, who sent it."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import web

from limpet.base.bounds.visitors import PAGE_CONNECTIONS, PAGE_CONNECTIONS_OF_ONE
from limpet.controller.api.connections import connection_of
from limpet.controller.api.owned_connections import OwnedConnections
from limpet.web.access import checks
from limpet.web.access.sessions import BrowserSession, LoginRefused, Sessions
from limpet.web.access.turns import OwnTurns

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ENTER = "/enter"
"""Whoever is in may enter as another: no form of the session before is asked for."""
_OPEN = (_ENTER, "/static/")
_READING = ("GET", "HEAD")
_log = structlog.get_logger("page")


@dataclass(frozen=True, slots=True)
class ServedAt:
    """Where the page is served."""

    names: frozenset[str] = frozenset()
    """It is called by, beside its addresses."""
    only_loopback: bool = True
    tls: bool = False
    port: int = 0

    @property
    def cookie(self) -> str:
        """Browsers keep one with this prefix to this very origin; in clear they refuse it. Ports of
        one address share their cookies, so there it has the port's number."""
        return "__Host-limpet" if self.tls else f"limpet-{self.port}"


class Guard:
    """Middlewares of one application."""

    def __init__(self, place: ServedAt, sessions: Sessions, now_s: Callable[[], float]) -> None:
        self._place = place
        self._sessions = sessions
        self._now_s = now_s
        self._connections = OwnedConnections(PAGE_CONNECTIONS)
        self._of_tokens = OwnedConnections(PAGE_CONNECTIONS_OF_ONE)
        self.turns = OwnTurns()

    @property
    def middlewares(self) -> list[Any]:
        return [self._seal, self._check, self._know]

    # In this order

    @web.middleware
    async def _seal(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Whatever is answered has the headers."""
        try:
            response = await handler(request)
        except web.HTTPException as error:
            self.seal(error)
            raise
        if not response.prepared:
            self.seal(response)
        return response

    def seal(self, response: web.StreamResponse) -> None:
        response.headers.update(checks.HEADERS)
        if self._place.tls:
            response.headers.update(checks.TLS_HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts: Collection[str] = request.headers.getall("Host", ())
        if len(hosts) != 1:
            raise web.HTTPBadRequest(text="a request names one host\n")
        host = next(iter(hosts))
        place = self._place
        problem = checks.host_problem(host, place.names, only_loopback=place.only_loopback)
        if problem:
            raise web.HTTPMisdirectedRequest(text=problem + "\n")
        if request.method not in (*_READING, "POST"):
            raise web.HTTPMethodNotAllowed(request.method, (*_READING, "POST"))
        if request.method == "POST":
            # aiohttp looks for a form's first part in all that comes, with no end and no pause, and
            # takes any codec that Python has.
            charset = (request.charset or "utf-8").lower()
            if request.content_type == "multipart/form-data" or charset != "utf-8":
                raise web.HTTPUnsupportedMediaType(text="forms are taken as a browser sends them\n")
            origin = request.headers.get("Origin")
            site = request.headers.get("Sec-Fetch-Site")
            if problem := checks.origin_problem(host, origin, site, tls=place.tls):
                _log.warning(
                    "refused", path=request.path, why=problem, peer=request.remote, by_others=True
                )
                raise web.HTTPForbidden(text=problem + "\n")
        return await handler(request)

    @web.middleware
    async def _know(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        session = self.session_of(request)
        if session is None:
            if not request.path.startswith(_OPEN):
                return self._ask_to_enter(request)
            return await handler(request)
        connection = connection_of(request)
        if connection is not None:
            connection.free()
            connection.belongs_to(session.proof, self._connections)
            connection.belongs_to(session.owner, self._of_tokens)
        if request.method == "POST" and request.path != _ENTER:
            await self._check_proof(request, session)
        return await handler(request)

    def _ask_to_enter(self, request: web.Request) -> web.Response:
        if "HX-Request" in request.headers:
            return web.Response(status=401, headers={"HX-Redirect": "/enter"})
        if request.method in _READING and "text/html" in request.headers.get("Accept", ""):
            raise web.HTTPSeeOther("/enter")
        raise web.HTTPUnauthorized(text="sign in at /enter\n")

    async def _check_proof(self, request: web.Request, session: BrowserSession) -> None:
        form = await request.post()
        proof = request.headers.get("X-Limpet-Proof") or str(form.get("proof", ""))
        if not hmac.compare_digest(proof.encode(), session.proof.encode()):
            raise web.HTTPForbidden(text="the form is not of this session: load the page again\n")

    def session_of(self, request: web.Request) -> BrowserSession | None:
        """None: who asks has not signed in, or has left."""
        return self._sessions.find(request.cookies.get(self._place.cookie, ""), self._now_s())

    # Signing in and out

    async def enter(self, request: web.Request) -> web.Response:
        """A secret from a one-time link or a token, for a cookie."""
        form = await request.post()
        secret = str(form.get("secret", "")).strip()
        entered = self._sessions.enter(secret, request.remote or "", self._now_s())
        if isinstance(entered, LoginRefused):
            _log.warning(
                "sign-in refused", peer=request.remote, too_many=entered.too_many, by_others=True
            )
            if entered.too_many:
                raise web.HTTPTooManyRequests(
                    headers={"Retry-After": "60"},
                    text="too many wrong ones came from your address: again in a minute\n",
                )
            raise web.HTTPForbidden(
                text="nobody gets in by this: the link was used already, or the token is wrong, "
                "expired or removed\n"
            )
        cookie, session = entered
        self._sessions.leave(request.cookies.get(self._place.cookie, ""))
        _log.info("signed in", by=session.who or "link", peer=request.remote)
        response = web.HTTPSeeOther("/")
        response.set_cookie(
            self._place.cookie,
            cookie,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._place.tls or request.headers.get("Origin", "").startswith("https:"),
        )
        raise response

    async def leave(self, request: web.Request) -> web.Response:
        self._sessions.leave(request.cookies.get(self._place.cookie, ""))
        response = web.HTTPSeeOther("/enter")
        response.del_cookie(self._place.cookie, path="/", secure=self._place.tls, httponly=True)
        raise response
