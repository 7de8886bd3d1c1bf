"""What the controller hears of its store's objects, where something between it and the API server
garbles a line: it lists anew and goes on, and nobody waits for it for ever."""

from __future__ import annotations

import asyncio

import pytest

from limpet.controller.registry.records import TOKEN
from limpet.controller.store.kubernetes.follower import Follower, ItemSource
from limpet.controller.store.kubernetes.rows import row_of
from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.client import Client
from tests.beds.rogue import STREAM, answer, chunk, serving, take_request
from tests.waiting import PATIENCE_S

EMPTY = b'{"metadata": {"resourceVersion": "%d"}, "items": []}'


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "ADDED", "object": null}',
        b"<html>502 Bad Gateway</html>",
        b'{"type": "ADDED", "object": {"metadata": {"name": "x", "resourceVersion": ""}}}',
        b'{"type": "ADDED", "object": {"metadata": {"name": "x", "resourceVersion": "9z"}}}',
        b"\xff",
    ],
)
def test_a_line_that_is_no_event_ends_the_watch_and_not_the_hearing(line: bytes) -> None:
    lists = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal lists
        while True:
            if b"watch=" not in await take_request(reader):
                lists += 1
                writer.write(answer(EMPTY % (9 + lists)))
            else:
                writer.write(STREAM + (chunk(line + b"\n") if lists == 1 else b""))
            await writer.drain()

    async def run() -> int:
        async with serving(serve, None) as at:
            client = Client(Access(parse_server(f"http://{at}"), "test"))
            follower = Follower(ItemSource(client, TOKEN, row_of(TOKEN), "limpet"), 100)
            try:
                while await asyncio.wait_for(follower.ready(), PATIENCE_S) < 11:
                    await asyncio.wait((follower.changed,), timeout=PATIENCE_S)
                return lists
            finally:
                await follower.close()
                client.close()

    assert asyncio.run(run()) == 2
