"""KubeEdge's MetaServer as its source says it is (v1.20, edge/pkg/metamanager/metaserver), in front
of a real API server: `python -m tests.kube.edge.metaserver URL CA READY-FILE`, with `--certificate`
and `--key`, or `--token`, of whom it asks as, and `--copy`, a file of what it has kept: lists by
path.

What matters to a client: it listens on 127.0.0.1:10550, in clear; while the cloud is there it
passes requests on and keeps what is answered; while it is not, lists and objects are what it has
kept, and writes fail. A watch from whatever version begins with all that is kept, and has no
bookmarks. Kinds of custom resources are guessed from their plurals, and an empty list has no
version.

The real edgecore and cloudcore are no Go modules that can be built: their go.mod takes
github.com/kubeedge/beehive from a folder of its repository, and no proxy has that module.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

PORT = 10550
_AWAY_S = 2.0


class MetaServer:
    def __init__(
        self, upstream: str, session: aiohttp.ClientSession, copy: Mapping[str, dict[str, Any]]
    ) -> None:
        self._upstream = upstream
        self._session = session
        self._kept: dict[str, dict[str, dict[str, Any]]] = {}
        """Objects by the path of their list, and by name."""
        self._versions: dict[str, str] = {}
        for path, found in copy.items():
            self._keep(path, found)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            return await self._write(request)
        if "watch" in request.query:
            return await self._watch(request)
        try:
            status, found = await self._ask("GET", request.path, request.query)
        except (aiohttp.ClientError, TimeoutError):
            return self._from_disk(request.path)
        if status == web.HTTPOk.status_code:
            self._keep(request.path, found)
        return web.json_response(found, status=status)

    async def _ask(
        self, verb: str, path: str, query: Mapping[str, str], body: bytes | None = None
    ) -> tuple[int, dict[str, Any]]:
        async with self._session.request(
            verb,
            self._upstream + path,
            params=query,
            data=body,
            headers={"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=_AWAY_S),
        ) as answer:
            return answer.status, await answer.json()

    def _keep(self, path: str, found: dict[str, Any]) -> None:
        if "items" in found:
            self._kept[path] = {each["metadata"]["name"]: each for each in found["items"] or ()}
            self._versions[path] = found["metadata"]["resourceVersion"]
        else:
            folder, _, name = path.rpartition("/")
            self._kept.setdefault(folder, {})[name] = found

    def _from_disk(self, path: str) -> web.Response:
        folder, _, name = path.rpartition("/")
        if name in self._kept.get(folder, {}):
            return web.json_response(self._kept[folder][name])
        kept = list(self._kept.get(path, {}).values())
        kind = name.capitalize().removesuffix("s") + "List"
        metadata = {"resourceVersion": "1"} if kept else {}
        return web.json_response({"kind": kind, "metadata": metadata, "items": kept})

    async def _write(self, request: web.Request) -> web.Response:
        try:
            found = await self._ask(
                request.method, request.path, request.query, await request.read()
            )
        except (aiohttp.ClientError, TimeoutError):
            message = {"kind": "Status", "code": 500, "message": "connection lost"}
            return web.json_response(message, status=500)
        return web.json_response(found[1], status=found[0])

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        response = web.StreamResponse()
        await response.prepare(request)
        for each in list(self._kept.get(path, {}).values()):
            await response.write(_line("ADDED", each))
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await self._follow(path, response)
            await asyncio.sleep(0.2)

    async def _follow(self, path: str, response: web.StreamResponse) -> None:
        _, found = await self._ask("GET", path, {})
        self._keep(path, found)
        for each in list(self._kept[path].values()):
            await response.write(_line("MODIFIED", each))
        query = {"watch": "1", "resourceVersion": self._versions[path], "timeoutSeconds": "2"}
        timeout = aiohttp.ClientTimeout(sock_read=2 * _AWAY_S, connect=_AWAY_S)
        async with self._session.get(
            self._upstream + path, params=query, timeout=timeout
        ) as answer:
            async for line in answer.content:
                event = json.loads(line)
                name = event["object"]["metadata"].get("name", "")
                if event["type"] == "DELETED":
                    self._kept[path].pop(name, None)
                elif name:
                    self._kept[path][name] = event["object"]
                await response.write(line)


def _line(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


async def main(asked: argparse.Namespace) -> None:
    context = ssl.create_default_context(cafile=asked.ca)
    headers = {}
    if asked.certificate:
        context.load_cert_chain(asked.certificate, asked.key)
    if asked.token:
        headers["Authorization"] = f"Bearer {Path(asked.token).read_text().strip()}"
    copy = json.loads(Path(asked.copy).read_text()) if asked.copy else {}
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        application = web.Application()
        server = MetaServer(asked.upstream, session, copy)
        application.router.add_route("*", "/{path:.*}", server.answer)
        runner = web.AppRunner(application, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", PORT).start()
        Path(asked.ready).touch()
        await asyncio.Event().wait()


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("upstream", "ca", "ready"):
        parser.add_argument(name)
    for name in ("--certificate", "--key", "--token", "--copy"):
        parser.add_argument(name, default="")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(_asked()))
