"""What a controller answers that does not lead: ask another."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from limpet.cluster.api import HTTP_STATUS, Code, Refused, encode
from limpet.controller.api.connections import only_one_of_http_1
from limpet.controller.figures.metrics import FollowerMetrics
from limpet.controller.leader.elector import Elector


def follower_application(elector: Elector, ca_certificate: str) -> web.Application:
    """HTTPS API of a follower: the cluster's CA, and to every other question that another leads."""

    async def ca(_request: web.Request) -> web.Response:
        return web.Response(text=ca_certificate, content_type="application/x-pem-file")

    async def answer(_request: web.Request) -> web.Response:
        refused = Refused(
            Code.NOT_LEADER,
            f"this controller does not lead, {elector.leader or 'nobody yet'} does (ask the next)",
        )
        return web.Response(
            body=encode(refused),
            status=HTTP_STATUS[refused.code],
            content_type="application/json",
        )

    application = web.Application(middlewares=[only_one_of_http_1])
    application.router.add_get("/v1/ca", ca)
    application.router.add_route("*", "/{any:.*}", answer)
    return application


def health_application(elector: Elector, follows: Callable[[], bool]) -> web.Application:
    """`/healthz` and `/metrics` while this controller does not lead.

    `follows`: whether it answers nodes; until then it is not ready, and lives all the same.
    """
    figures = FollowerMetrics()

    async def healthz(_request: web.Request) -> web.Response:
        said = {"ok": follows(), "leads": False, "leader": elector.leader}
        return web.json_response(said, status=200 if said["ok"] else 503)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=figures.text(), content_type="text/plain", charset="utf-8")

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/metrics", metrics)])
    return application
