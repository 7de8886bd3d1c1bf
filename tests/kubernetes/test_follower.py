"""What the controller hears of its store's objects, where something between it and the API server
garbles a line: it lists anew and goes on, and nobody waits for it for ever."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from limpet.base.bounds.members import PRESENCE_OBJECTS
from limpet.cluster.kinds import PRESENCE as PRESENCES
from limpet.cluster.seal import seal
from limpet.controller.registry.records import PRESENCE, TOKEN
from limpet.controller.store.kubernetes.follower import Follower, ItemSource
from limpet.controller.store.kubernetes.rows import row_of
from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.resources import document_object
from tests.beds.rogue import STREAM, answer, chunk, serving, take_request
from tests.unit.cluster_values import node_key, presence
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


def presence_of(node: str, number: int) -> dict[str, Any]:
    """An object as the account of the node may write it, with whatever key."""
    document = seal(PRESENCES, presence(number), node_key(number))
    body = document_object(document, f"{node}.{document.name}", node)
    metadata = {**body["metadata"], "uid": f"{node}-{number}", "resourceVersion": str(10 + number)}
    return {**body, "metadata": metadata}


def test_a_node_that_makes_presences_without_end_has_a_few_and_others_theirs() -> None:
    most = PRESENCE_OBJECTS.most
    listed = [presence_of("bad", number) for number in range(1, most + 2)]
    told = [presence_of("bad", most + 2), presence_of("good", most + 3)]
    gone: dict[str, Any] = {"type": "DELETED", "object": presence_of("bad", 1)}
    gone["object"]["metadata"]["resourceVersion"] = "90"
    after = presence_of("bad", 30)
    after["metadata"]["resourceVersion"] = "91"
    lines = [*({"type": "ADDED", "object": each} for each in told), gone]
    lines.append({"type": "ADDED", "object": after})

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            if b"watch=" not in await take_request(reader):
                body = {"metadata": {"resourceVersion": "20"}, "items": listed}
                writer.write(answer(json.dumps(body).encode()))
            else:
                writer.write(
                    STREAM + b"".join(chunk(json.dumps(x).encode() + b"\n") for x in lines)
                )
            await writer.drain()

    async def run() -> set[int]:
        async with serving(serve, None) as at:
            client = Client(Access(parse_server(f"http://{at}"), "test"))
            source = ItemSource(client, PRESENCE, row_of(PRESENCE), "limpet")
            follower = Follower(source, 100)
            try:
                while await asyncio.wait_for(follower.ready(), PATIENCE_S) < 91:
                    await asyncio.wait((follower.changed,), timeout=PATIENCE_S)
                numbers = (*range(1, most + 4), 30)
                names = {number: presence(number).uid for number in numbers}
                return {number for number, name in names.items() if follower.place(name)}
            finally:
                await follower.close()
                client.close()

    assert asyncio.run(run()) == {*range(2, most + 1), most + 3, 30}
