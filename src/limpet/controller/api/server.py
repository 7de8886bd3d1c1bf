"""The HTTPS API: who asks, what for, and what they are told. Bodies are as cluster/api.py says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web

from limpet.base.bounds import members, strangers
from limpet.base.bounds.bound import Bound
from limpet.base.errors import LimpetError, StorageError
from limpet.cluster.api import (
    HTTP_STATUS,
    MAX_BODY_BYTES,
    REVISION_HEADER,
    ApiError,
    Code,
    Done,
    HelloRequest,
    JoinRequest,
    PodAnswer,
    PodReport,
    PublishAnswer,
    PublishRequest,
    Refused,
    SegmentAnswer,
    SegmentRequest,
    ShowAnswer,
    ShowRequest,
    WatchKind,
    WatchLine,
    decode,
    encode,
    encode_line,
)
from limpet.cluster.documents import weight_of
from limpet.cluster.keys import SealError
from limpet.controller.api.connections import (
    connection_of,
    only_one_of_http_1,
    source_of_request,
    uid_of_connection,
)
from limpet.controller.api.feed import all_kinds, wanted_kinds
from limpet.controller.api.node_requests import NodeRequests
from limpet.controller.api.owned_connections import OwnedConnections
from limpet.controller.figures.metrics import Metrics
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.state.cluster import Cluster
from limpet.controller.store.interface import TooOldError
from limpet.paths.report import PathReport, PathReportAnswer

_log = structlog.get_logger("api")
_BY_STATUS = {404: Code.NOT_FOUND, 405: Code.NOT_FOUND, 413: Code.TOO_LARGE}
_UNREVISIONED = -1

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Administer = Callable[[web.Request], Awaitable[web.Response]]


class Api:
    """Requests in, answers out."""

    def __init__(
        self,
        cluster: Cluster,
        ca_certificate: str,
        metrics: Metrics,
        patience_s: float,
        administer: Administer | None = None,
    ) -> None:
        """`administer`: answers people; None: they are answered at the admin socket alone."""
        self._administer = administer
        self._cluster = cluster
        self._requests = NodeRequests(cluster)
        self._ca_certificate = ca_certificate
        self._metrics = metrics
        self._patience_s = patience_s
        self._watching: dict[str, asyncio.Task[None]] = {}
        self.connections = OwnedConnections(members.MEMBER_CONNECTIONS)

    def application(self) -> web.Application:
        application = web.Application(
            client_max_size=MAX_BODY_BYTES,
            middlewares=[only_one_of_http_1, self._answer_errors],
        )
        application.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/v1/ca", self._ca),
                web.post("/v1/join", self._join),
                web.post("/v1/joined", self._joined),
                web.post("/v1/hello", self._hello),
                web.post("/v1/show", self._show),
                web.put("/v1/documents", self._publish),
                web.post("/v1/segments", self._segments),
                web.get("/v1/pods", self._own_pods),
                web.post("/v1/pods", self._pods),
                web.post("/v1/paths", self._paths),
                web.get("/v1/watch", self._watch),
                web.post("/v1/admin/{verb}", self._administered),
            ]
        )
        return application

    async def stop_watches(self) -> None:
        tasks = list(self._watching.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Whatever goes wrong is told in words

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        code, uid = "ok", uid_of_connection(request.transport)
        try:
            # Whatever a member asks for, also what there is not.
            if uid is not None:
                self._requests.rates.requests.take(uid, time.monotonic())
            return await handler(request)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is ours
            refused = _refused(error)
            code = refused.code.value
            if uid is not None and refused.code is Code.TRY_AGAIN:
                await asyncio.sleep(1 / members.PUT_OFF_PER_S.most)
            told = _log.info if refused.after_s is None else _log.debug  # or it fills the log
            told(
                "refused",
                path=request.path,
                peer=request.remote,
                error=refused.error,
                by_others=True,
            )
            return web.Response(
                body=encode(refused),
                status=HTTP_STATUS[refused.code],
                content_type="application/json",
            )
        finally:
            resource = request.match_info.route.resource
            self._metrics.count(resource.canonical if resource else "other", code)

    async def _body(self, request: web.Request, kind: type[T], most: Bound | None = None) -> T:
        if most is not None:
            request = request.clone(client_max_size=most.most)
        patience_s = self._patience_s
        if most is strangers.JOIN_BODY:
            patience_s = min(patience_s, strangers.API_BODY_S.most)
        try:
            async with asyncio.timeout(patience_s):
                data = await request.read()
        except TimeoutError as error:
            raise RefusedError(
                Code.BAD_REQUEST, f"no whole body came within {patience_s:g} s"
            ) from error
        except web.HTTPRequestEntityTooLarge as error:
            at_most = MAX_BODY_BYTES if most is None else most.most
            raise RefusedError(
                Code.TOO_LARGE, f"read {kind.__name__}: it has more than {at_most:,} bytes"
            ) from error
        except (OSError, web.RequestPayloadError) as error:
            raise RefusedError(
                Code.BAD_REQUEST, f"the connection ended before the whole body had come: {error}"
            ) from error
        return decode(data, kind)

    # Anybody

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _ca(self, _request: web.Request) -> web.Response:
        return web.Response(text=self._ca_certificate, content_type="application/x-pem-file")

    async def _join(self, request: web.Request) -> web.Response:
        body = await self._body(request, JoinRequest, strangers.JOIN_BODY)
        answer = await self._requests.join(body, source_of_request(request))
        connection = connection_of(request)
        if connection is not None:
            connection.is_of_member()
        return _json(answer)

    # People

    async def _administered(self, request: web.Request) -> web.Response:
        if self._administer is None:
            raise RefusedError(
                Code.NOT_FOUND,
                "people ask this controller on its own machine (its store is not an API server, "
                "which could say who may)",
            )
        return await self._administer(request)

    # Nodes; how often is asked before a body is read

    def _member(self, request: web.Request) -> str:
        """Who asks, by its uid. Raises: RefusedError."""
        uid = _uid(request)
        if isinstance(request.transport, asyncio.WriteTransport):
            self.connections.note(uid, request.transport)
        return uid

    async def _joined(self, request: web.Request) -> web.Response:
        await self._requests.confirm(self._member(request))
        return _json(Done())

    async def _hello(self, request: web.Request) -> web.Response:
        uid = self._member(request)
        hello = await self._body(request, HelloRequest, members.SHOW_BODY)
        _check_count(len(hello.documents), members.HELLO_DOCUMENTS)
        self._requests.rates.shown.take(uid, time.monotonic(), weight_of(hello.documents))
        return _json(await self._requests.hello(uid, hello))

    async def _show(self, request: web.Request) -> web.Response:
        uid = self._member(request)
        documents = (await self._body(request, ShowRequest, members.SHOW_BODY)).documents
        _check_count(len(documents), members.SHOWN_DOCUMENTS)
        self._requests.rates.shown.take(uid, time.monotonic(), weight_of(documents))
        return _json(ShowAnswer(await self._requests.show(uid, documents)))

    async def _publish(self, request: web.Request) -> web.Response:
        uid = self._member(request)
        self._requests.rates.documents.take(uid, time.monotonic())
        sealed = (await self._body(request, PublishRequest, members.PUBLISH_BODY)).document
        return _json(PublishAnswer(await self._requests.publish(uid, _revision(request), sealed)))

    async def _segments(self, request: web.Request) -> web.Response:
        uid = self._member(request)
        wanted = await self._body(request, SegmentRequest, members.SMALL_BODY)
        _check_count(len(wanted.versions), members.SEGMENT_VERSIONS)
        sealed = await self._requests.request_segments(
            uid, _revision(request), wanted.generation, wanted.versions
        )
        return _json(SegmentAnswer(sealed))

    async def _own_pods(self, request: web.Request) -> web.Response:
        uid = self._member(request)
        page = request.query.get("page", "0")
        if not page.isascii() or not page.isdigit() or len(page) > 4:
            raise RefusedError(Code.BAD_REQUEST, f"page {page[:40]!r} of pods: it is no number")
        await self._requests.ask(uid, _UNREVISIONED, lambda tables: None)
        return _json(await self._cluster.reports.page(uid, int(page)))

    async def _pods(self, request: web.Request) -> web.Response:
        uid = self._member(request)
        self._requests.rates.reports.take(uid, time.monotonic())
        report = await self._body(request, PodReport, members.REPORT_BODY)
        return _json(PodAnswer(await self._requests.put_pods(uid, _revision(request), report)))

    async def _paths(self, request: web.Request) -> web.Response:
        uid = self._member(request)
        self._requests.rates.paths.take(uid, time.monotonic())
        report = await self._body(request, PathReport, members.PATHS_BODY)
        await self._requests.ask(uid, _revision(request), lambda tables: None)
        sequence = self._cluster.paths.put(uid, report, time.time())
        return _json(PathReportAnswer(sequence))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        uid = self._member(request)
        self._requests.rates.watches.take(uid, time.monotonic())
        name = await self._requests.ask(
            uid, _revision(request), lambda tables: tables.grants[uid].name
        )
        kinds = wanted_kinds(request.query.get("kinds"))
        chunks = self._cluster.feed.follow(request.query.get("since"), kinds)
        try:
            first = await anext(chunks)
        except TooOldError as error:
            raise RefusedError(Code.TOO_OLD, str(error)) from error
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        response.force_close()
        try:
            await response.prepare(request)
        except OSError as error:
            raise RefusedError(
                Code.BAD_REQUEST, f"the connection ended before its watch began: {error}"
            ) from error

        async def tell() -> None:
            async for words in self._cluster.feed.words.follow(name):
                await self._send(response, encode_line(WatchLine(WatchKind.DOCUMENT, told=words)))

        async def send() -> None:
            await self._send(response, first.lines)
            is_whole = kinds == all_kinds()
            teller = asyncio.create_task(tell()) if is_whole else None
            try:
                # The node may have been removed since it was asked, and a list names nobody.
                await self._requests.ask(uid, _UNREVISIONED, lambda tables: None)
                async for chunk in chunks:
                    if not is_whole and not self._cluster.is_member(uid):
                        await self._requests.ask(uid, _UNREVISIONED, lambda tables: None)
                    await self._send(response, chunk.lines)
                    if uid in chunk.names:
                        await self._requests.ask(uid, _UNREVISIONED, lambda tables: None)
            except TooOldError as error:
                await self._refuse(response, Refused(Code.TOO_OLD, str(error)))
            except RefusedError as error:
                await self._refuse(response, error.refused)
            finally:
                if teller is not None:
                    teller.cancel()

        # One watch for a node: its last connection may be dead without our knowing.
        before = self._watching.pop(uid, None)
        if before is not None:
            before.cancel()
        task = asyncio.create_task(send())
        self._watching[uid] = task
        self._cluster.paths.watches(uid, begun=True)
        self._metrics.watchers = len(self._watching)
        try:
            await asyncio.wait((task,))
            failure = None if task.cancelled() else task.exception()
            if failure is not None:
                why = str(failure) or type(failure).__name__
                _log.info("a watch ended", uid=uid, error=why, by_others=uid)
        finally:
            task.cancel()
            if self._watching.get(uid) is task:
                del self._watching[uid]
                self._cluster.paths.watches(uid, begun=False)
            self._metrics.watchers = len(self._watching)
        if request.transport is not None and (task.cancelled() or failure is not None):
            request.transport.abort()  # whoever reads must not take it for the end of all news
        return response

    async def _send(self, response: web.StreamResponse, lines: bytes) -> None:
        async with asyncio.timeout(self._patience_s):
            await response.write(lines)

    async def _refuse(self, response: web.StreamResponse, refused: Refused) -> None:
        await self._send(response, encode_line(WatchLine(WatchKind.REFUSED, refused=refused)))


def _json(message: msgspec.Struct) -> web.Response:
    return web.Response(body=encode(message), content_type="application/json")


def _uid(request: web.Request) -> str:
    """Who asks, as TLS has proven. Raises: RefusedError."""
    uid = uid_of_connection(request.transport)
    if uid is None:
        raise RefusedError(
            Code.NO_CERTIFICATE, f"{request.path} is for nodes: it needs the certificate of one"
        )
    return uid


def _check_count(count: int, most: Bound) -> None:
    """Raises: RefusedError."""
    if count > most.most:
        raise RefusedError(Code.TOO_LARGE, f"{count} {most.unit} at once: at most {most.most}")


def _revision(request: web.Request) -> int:
    """Raises: RefusedError."""
    text = request.headers.get(REVISION_HEADER, "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise RefusedError(
            Code.BAD_REQUEST, f"{REVISION_HEADER}: {text[:40]!r} is no revision of a snapshot"
        )
    return int(text)


def _refused(error: Exception) -> Refused:
    if isinstance(error, RefusedError):
        return error.refused
    if isinstance(error, ApiError | SealError):
        return Refused(Code.BAD_REQUEST, str(error))
    if isinstance(error, web.HTTPException):
        code = _BY_STATUS.get(error.status, Code.BAD_REQUEST)
        return Refused(code, error.text or error.reason)
    if isinstance(error, StorageError | LimpetError):
        _log.error("not done", error=str(error))
        return Refused(Code.TRY_AGAIN, f"the controller can't now: {error}")
    _log.error("failed", exc_info=error, by_others=True)
    return Refused(Code.TRY_AGAIN, "the controller failed; its log says why")
