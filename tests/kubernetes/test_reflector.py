"""Servers that hang, end at once or say anything cost a reflector time and words, and no object."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.client import Client
from limpet.kubernetes.kinds.objects import ConfigMap, Resource
from limpet.kubernetes.reflector import Reflector
from limpet.kubernetes.reflector_state import ObjectChanges
from tests.beds.rogue import STREAM, answer, chunk, serving, take_request
from tests.waiting import until

THINGS = Resource("Thing", "things", ConfigMap, "limpet.dev", "v1alpha1")


class Server:
    """Answers lists with what it has, and each watch with the next of `watches`, then nothing."""

    def __init__(self, *watches: bytes, items: tuple[object, ...] = ()) -> None:
        self.watches = list(watches)
        self.items = items
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            target = (await take_request(reader)).split(b" ")[1].decode()
            self.asked.append(target)
            if "watch=1" not in target:
                listed = {"metadata": {"resourceVersion": "10"}, "items": self.items}
                writer.write(answer(json.dumps(listed).encode()))
                await writer.drain()
                continue
            writer.write(STREAM + (self.watches.pop(0) if self.watches else b""))
            await writer.drain()
            await reader.read()  # until the other goes

    @property
    def watched_from(self) -> list[str]:
        return [each.split("&")[2] for each in self.asked if "watch=1" in each]


class Follower:
    def __init__(self, client: Client, *, silence_s: float = 30.0) -> None:
        self.has: dict[str, str] = {}
        self.lists = 0
        self.troubles = 0
        self.reflector = Reflector(
            client, THINGS, self._hear, mirror=True, random=lambda: 0.0, silence_s=silence_s
        )

    async def _hear(self, changes: ObjectChanges[ConfigMap]) -> None:
        if self.troubles:
            self.troubles -= 1
            raise RuntimeError("it has not taken them")
        self.lists += changes.listed
        for _, name in changes.gone:
            del self.has[name]
        for item in changes.put:
            self.has[item.metadata.name] = item.metadata.resource_version


def follow(
    server: Server, work: Callable[[Follower], Awaitable[None]], *, silence_s: float = 30.0
) -> None:
    async def run() -> None:
        async with serving(server.serve, None) as at:
            client = Client(Access(parse_server(f"http://{at}"), "test"))
            follower = Follower(client, silence_s=silence_s)
            task = asyncio.create_task(follower.reflector.run())
            try:
                await work(follower)
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                client.close()
                await asyncio.sleep(0)

    asyncio.run(run())


def thing(name: str, version: int, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, **more}


def line(kind: str, item: object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def test_after_garbage_it_goes_on_from_the_newest_version_and_says_what_it_was() -> None:
    server = Server(
        chunk(line("ADDED", thing("a", 11)) + b"<html>\n"), chunk(line("ADDED", thing("b", 12)))
    )

    async def work(follower: Follower) -> None:
        await until(lambda: "no event" in follower.reflector.follow_state.error)
        assert "cache of another version" in follower.reflector.follow_state.error
        await until(lambda: follower.has == {"a": "11", "b": "12"})
        assert follower.reflector.follow_state.connected
        assert follower.reflector.follow_state.error == ""

    follow(server, work)
    assert server.watched_from == ["resourceVersion=10", "resourceVersion=11"]


def test_a_line_without_an_end_and_a_stream_that_breaks_off_are_garbage_too() -> None:
    server = Server(
        chunk(b"x" * (5 << 20)),
        chunk(line("ADDED", thing("a", 11)) + b'{"type":') + chunk(b""),
        chunk(line("ADDED", thing("b", 12))),
    )

    async def work(follower: Follower) -> None:
        await until(lambda: "has no end" in follower.reflector.follow_state.error)
        await until(lambda: "half way in a line" in follower.reflector.follow_state.error)
        await until(lambda: follower.has == {"a": "11", "b": "12"})

    follow(server, work)


def test_a_silent_watch_is_begun_anew_and_the_version_is_asked_for_first() -> None:
    server = Server()

    async def work(_follower: Follower) -> None:
        await until(lambda: len(server.watched_from) == 2)

    follow(server, work, silence_s=0.2)
    lists = [each for each in server.asked if "watch=1" not in each]
    assert "resourceVersionMatch=NotOlderThan" in lists[1]


def test_a_version_that_is_too_old_makes_it_list_and_what_is_missing_is_gone() -> None:
    refused = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    server = Server(chunk(line("ADDED", thing("a", 11)) + line("ERROR", refused)))

    async def work(follower: Follower) -> None:
        await until(lambda: follower.lists == 2)
        assert follower.has == {}
        assert follower.reflector.follow_state.connected

    follow(server, work)


def test_who_has_not_taken_what_was_told_is_told_all_of_it_again() -> None:
    server = Server(items=(thing("a", 5), thing("b", 6)))

    async def work(follower: Follower) -> None:
        follower.troubles = 1
        await until(lambda: follower.has == {"a": "5", "b": "6"})

    follow(server, work)


def test_an_object_that_cannot_be_read_costs_itself_alone() -> None:
    server = Server(chunk(line("ADDED", thing("bad", 11, data=7)) + line("ADDED", thing("c", 12))))

    async def work(follower: Follower) -> None:
        await until(lambda: follower.has == {"c": "12"})

    follow(server, work)
