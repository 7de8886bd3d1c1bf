"""What a node may ask of a controller, up to each bound and over it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import msgspec

from limpet.base.bounds import administrators, members
from limpet.base.bounds.bound import Bound
from limpet.cluster.api import (
    SERVER_NAME,
    Code,
    HelloRequest,
    InterfaceAddresses,
    SegmentRequest,
    ShowRequest,
    encode,
)
from tests.controller.machines import Controller, Node, Refusal, join_all
from tests.unit.cluster_values import grant, seal_grant
from tests.waiting import until


def node_does(controller: Controller, body: Callable[[Node], object]) -> None:
    async def run() -> None:
        (node,) = await join_all(controller, "a")
        async with node:
            await body(node)  # type: ignore[misc]

    asyncio.run(run())


async def is_too_large(node: Node, verb: str, path: str, body: bytes) -> bool:
    return await code_of(node, verb, path, body) is Code.TOO_LARGE


async def code_of(node: Node, verb: str, path: str, body: bytes) -> Code | None:
    """Code of the refusal; None: it is answered."""
    try:
        await node.fetch(verb, path, body)
    except Refusal as refusal:
        return refusal.code
    return None


async def is_put_off(node: Node, path: str) -> bool:
    return await code_of(node, "GET", path, b"") is Code.TRY_AGAIN


def test_whatever_a_node_asks_for_counts_also_what_there_is_not(controller: Controller) -> None:
    async def body(node: Node) -> None:
        for path in ("/healthz", "/v1/no-such-thing"):
            count = 0
            while not await is_put_off(node, path):
                count += 1
                assert count < 20 * members.REQUESTS_AT_ONCE.most

    node_does(controller, body)


def test_a_body_has_a_bound_by_what_it_is_for(controller: Controller) -> None:
    bodies: list[tuple[str, str, Bound]] = [
        ("POST", "/v1/pods", members.REPORT_BODY),
        ("POST", "/v1/paths", members.PATHS_BODY),
        ("POST", "/v1/show", members.SHOW_BODY),
        ("POST", "/v1/hello", members.SHOW_BODY),
        ("PUT", "/v1/documents", members.PUBLISH_BODY),
        ("POST", "/v1/segments", members.SMALL_BODY),
    ]

    async def body(node: Node) -> None:
        for verb, path, bound in bodies:
            # What is read, and is then found to be nothing.
            assert not await is_too_large(node, verb, path, b" " * bound.most), path
            assert await is_too_large(node, verb, path, b" " * (bound.most + 1)), path

    node_does(controller, body)


def test_what_is_counted_in_a_request_has_a_bound(controller: Controller) -> None:
    async def body(node: Node) -> None:
        def shown(count: int) -> msgspec.Struct:
            return ShowRequest((node.sealed,) * count)

        def hello(count: int) -> msgspec.Struct:
            return HelloRequest(node.revision, (node.sealed,) * count)

        def segments(count: int) -> msgspec.Struct:
            return SegmentRequest(0, (4,) * count)

        asked: list[tuple[str, Bound, Callable[[int], msgspec.Struct]]] = [
            ("/v1/show", members.SHOWN_DOCUMENTS, shown),
            ("/v1/hello", members.HELLO_DOCUMENTS, hello),
            ("/v1/segments", members.SEGMENT_VERSIONS, segments),
        ]
        for path, bound, request in asked:
            await node.fetch("POST", path, encode(request(bound.most)))
            assert await is_too_large(node, "POST", path, encode(request(bound.most + 1))), path

    node_does(controller, body)


def test_large_documents_in_a_hello_count_as_many_that_are_shown(controller: Controller) -> None:
    """They are read before it is known who has signed them: eight of them took half a second, and
    a node may ask a thousand times at once."""

    async def body(node: Node) -> None:
        segments = tuple(map(ip_network, (f"10.{n >> 8}.{n & 255}.0/24" for n in range(3_600))))
        count = members.HELLO_DOCUMENTS.most
        forged = seal_grant(grant(9, segments=segments), node.key)
        heavy = count * (len(forged.body) // 1024 + 1)
        hello = encode(HelloRequest(node.revision, (forged,) * count))
        taken, began_s = 0, time.monotonic()
        while await code_of(node, "POST", "/v1/hello", hello) is not Code.TRY_AGAIN:
            taken += 1
            later = (time.monotonic() - began_s) * members.SHOWN_PER_MINUTE.most / 60
            assert taken * heavy <= members.SHOWN_AT_ONCE.most + later + heavy

    node_does(controller, body)


def test_who_asks_on_although_it_is_put_off_waits_for_each_answer(controller: Controller) -> None:
    async def body(node: Node) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not await is_put_off(node, "/healthz"):
            began_s = loop.time()
        assert loop.time() - began_s >= 0.9 / members.PUT_OFF_PER_S.most

    node_does(controller, body)


def test_a_node_has_a_few_connections_and_the_oldest_goes(controller: Controller) -> None:
    async def body(node: Node) -> None:
        assert node.joined is not None
        context = node.context(node.joined.ca, node.joined.certificate)

        async def ask() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", controller.port, ssl=context, server_hostname=SERVER_NAME
            )
            writer.write(b"GET /v1/pods HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.readline()
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
            return reader, writer

        def is_open(reader: asyncio.StreamReader) -> bool:
            return not reader.at_eof() and reader.exception() is None

        opened = [await ask() for _ in range(members.MEMBER_CONNECTIONS.most)]
        assert all(is_open(reader) for reader, _ in opened)
        opened.append(await ask())
        await until(lambda: not is_open(opened[0][0]))
        assert all(is_open(reader) for reader, _ in opened[1:])
        for _, writer in opened:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    node_does(controller, body)


def test_pods_of_nodes_that_report_all_they_may_are_listed_page_by_page(
    controller: Controller,
) -> None:
    """And the command shows all of them: a cluster of a thousand such nodes has a gigabyte."""
    addresses = tuple(f"2001:db8:aaaa:bbbb:cccc:dddd:eeee:{end:x}" for end in range(16))

    async def body() -> None:
        hostile = await join_all(controller, *(f"node-{number}" for number in range(5)))
        for node in hostile:
            pods, base = 0, None
            with contextlib.suppress(Refusal):
                for number in range(1, 20):
                    some = [
                        InterfaceAddresses("n" * 250, "s", f"{pods + each:0250}", "e", addresses)
                        for each in range(180)
                    ]
                    base = await node.report(number, some, base)
                    pods += len(some)
            assert pods > 500
            await node.close()

    asyncio.run(body())
    pages: list[dict[str, Any]] = []
    after = ""
    while not pages or after:
        pages.append(controller.ask("pod.list", **({"after": after} if after else {})))
        after = pages[-1].get("after", "")
        assert len(msgspec.json.encode(pages[-1])) < administrators.LISTED_PODS.most + 200
    assert [len(page["nodes"]) > 0 for page in pages] == [True] * len(pages)
    assert len(pages) > 1
    names = [node["node"] for page in pages for node in page["nodes"]]
    assert names == [f"node-{number}" for number in range(5)]
    shown = controller.command("pod", "list", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    listed = msgspec.json.decode(shown.stdout)
    assert listed.keys() == {"pods", "nodes"}
    assert listed["pods"] == [pod for page in pages for pod in page["pods"]]
    only = controller.ask("pod.list", node="node-3")
    assert {pod["node"] for pod in only["pods"]} == {"node-3"}
    assert "after" not in only
