"""What nodes are told of a store at an API server, which tells what happens kind by kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import UUID

from limpet.cluster.api import WatchKind, WatchLine, decode
from limpet.cluster.documents import Document
from limpet.cluster.kinds import GRANT, NETWORK
from limpet.cluster.seal import seal
from limpet.controller.api.feed import Chunk, DocumentFeed
from limpet.controller.store.kubernetes.store import KubernetesStore
from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.resources import document_object
from tests.beds.rogue import STREAM, answer, chunk, serving, take_request
from tests.unit.cluster_values import CLUSTER_KEY, grant, network
from tests.waiting import PATIENCE_S


class Server:
    """Has nothing at its version 100; each kind's watch says its change once that may be heard."""

    def __init__(self, **changes: tuple[int, dict[str, Any]]) -> None:
        """Versions and objects, by the plural of the kind."""
        self._changes = changes
        self.may_be_heard = {plural: asyncio.Event() for plural in changes}

    @property
    def _version(self) -> int:
        said = [self._changes[each][0] for each, may in self.may_be_heard.items() if may.is_set()]
        return max(said, default=100)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked = (await take_request(reader)).split(b"\r\n")[0].decode()
            if "watch=" not in asked:
                body = {"metadata": {"resourceVersion": str(self._version)}, "items": []}
                writer.write(answer(json.dumps(body).encode()))
                await writer.drain()
                continue
            writer.write(STREAM)
            for plural, (version, changed) in self._changes.items():
                if f"/{plural}?" in asked and f"resourceVersion={version}" not in asked:
                    await self.may_be_heard[plural].wait()
                    metadata = {
                        **changed["metadata"],
                        "generation": 1,
                        "resourceVersion": str(version),
                        "uid": str(UUID(int=version)),
                    }
                    event = {"type": "ADDED", "object": {**changed, "metadata": metadata}}
                    writer.write(chunk(json.dumps(event).encode() + b"\n"))
            await writer.drain()


@asynccontextmanager
async def store_at(server: Server) -> AsyncIterator[KubernetesStore]:
    async with serving(server.serve, None) as at:
        client = Client(Access(parse_server(f"http://{at}"), "test"))
        store = KubernetesStore(client, "limpet")
        try:
            yield store
        finally:
            await store.close()
            client.close()


async def some_lines(chunks: AsyncIterator[Chunk]) -> list[WatchLine]:
    """Of the next chunk that has any."""
    async for each in chunks:
        if each.lines:
            return [decode(line, WatchLine) for line in each.lines.splitlines()]
    raise AssertionError("the watch ended")


def test_who_is_cut_off_between_two_lines_hears_what_came_late_of_another_kind() -> None:
    later: Document = seal(NETWORK, network(2), CLUSTER_KEY)
    earlier: Document = seal(GRANT, grant(1, tombstone=True), CLUSTER_KEY)

    async def body() -> None:
        server = Server(
            clusternetworks=(110, document_object(later, "default")),
            nodegrants=(105, document_object(earlier, "node-1", "node-1")),
        )
        async with store_at(server) as store, asyncio.timeout(PATIENCE_S):
            feed = DocumentFeed(store)
            async with aclosing(feed.follow(None)) as chunks:
                (bookmark,) = await some_lines(chunks)
                assert bookmark.kind is WatchKind.BOOKMARK
                server.may_be_heard["clusternetworks"].set()
                told, *_ = await some_lines(chunks)
            assert told.document == later.sealed
            # The rest was lost on the way, and the watch goes on as an agent has it do.
            server.may_be_heard["nodegrants"].set()
            async with aclosing(feed.follow(told.version or bookmark.version)) as chunks:
                heard = {line.document for line in await some_lines(chunks)}
                while earlier.sealed not in heard:
                    heard |= {line.document for line in await some_lines(chunks)}

    asyncio.run(body())
