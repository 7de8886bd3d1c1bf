"""Probes of what controllers and API servers answer."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from pathlib import Path
from unittest.mock import patch

import h11
import msgspec

from limpet.base.bounds import servers
from limpet.base.errors import LimpetError
from limpet.base.http.connection import Connection, LinkError, _resolve, _retry_after_s
from limpet.cloud.enrollment import read_token
from limpet.cloud.join_requests import ReplacedPods
from limpet.cloud.link import ControllerLink
from limpet.cloud.requests import _wait_s
from limpet.cloud.second_road.api_server import ApiServerSource
from limpet.cloud.workloads.unread import UnreadObjects
from limpet.cluster.api import InterfaceAddresses, PodPage, WatchKind, WatchLine
from limpet.cluster.documents import Sealed
from limpet.cluster.replica import Outcome
from limpet.controller.node_objects.node import KubernetesNode
from limpet.controller.orchestrator.nodes import Nodes
from limpet.kubernetes.access.access import Access, AccessError, parse_server, plain_access
from limpet.kubernetes.access.credentials import Credentials, _pem
from limpet.kubernetes.access.kubeconfig import read_kubeconfig
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import refusal
from limpet.kubernetes.exec import _hear_all
from limpet.kubernetes.kinds.left_out import LeftOut
from limpet.kubernetes.kinds.objects import CONFIG_MAPS, Metadata, Status, StatusDetails, Viewed
from limpet.kubernetes.reflector_state import ObjectChanges
from limpet.kubernetes.watch_event import Unreadable
from tests.beds.member import member_without_disk
from tests.beds.rogue import STREAM, Authority, Serve, answer, chunk, says, serving
from tests.unit.base.bounds.probes import probe


def _is_understood(
    serve: Serve, work: Callable[[Client], Awaitable[object]], is_cache: bool = False
) -> bool:
    """What such a server says to a client."""

    async def run() -> bool:
        async with serving(serve, None) as at:
            with closing(
                Client(Access(parse_server(f"http://{at}"), "test", is_cache=is_cache))
            ) as client:
                try:
                    await work(client)
                except LinkError:
                    return False
                return True

    return asyncio.run(run())


def _filled(document: object, size: int) -> bytes:
    """As JSON, filled up with white space."""
    data = msgspec.json.encode(document)
    return data[:-1] + b" " * (size - len(data)) + data[-1:]


@probe(servers.HTTP_HEAD)
def _(amount: int) -> bool:
    head, end = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", b"\r\n\r\n"
    filled = b"Filled: " + b"x" * (amount - len(head) - len(b"Filled: ") - len(end))
    return _is_understood(says(head + filled + end + b"{}"), lambda client: client.ask("GET", "/"))


@probe(servers.HTTP_ANSWER)
def _(amount: int) -> bool:
    return _is_understood(says(answer(bytes(amount))), lambda client: client.ask("GET", "/"))


@probe(servers.CACHED_LIST)
def _(amount: int) -> bool:
    said = answer(_filled({"metadata": {"resourceVersion": "1"}, "items": []}, amount))
    return _is_understood(says(said), lambda client: client.list_page(CONFIG_MAPS), is_cache=True)


@probe(servers.WATCH_LINE)
def _(amount: int) -> bool:
    said = STREAM + chunk(b"x" * amount + b"\n") + b"0\r\n\r\n"

    async def watch(client: Client) -> None:
        lines = client.watch(CONFIG_MAPS, "1", for_s=60.0, silence_s=60.0)
        async with aclosing(lines):
            assert [len(each) async for part in lines for each in part] == [amount]

    return _is_understood(says(said), watch)


@probe(servers.FEED_LINE)
def _(amount: int) -> bool:
    line = _filled(WatchLine(WatchKind.BOOKMARK, version="1"), amount)

    async def run(folder: Path) -> bool:
        authority = Authority(folder / "authority")
        said = STREAM + chunk(line + b"\n") + b"0\r\n\r\n"
        async with serving(says(said), authority.server_context()) as at:
            link = ControllerLink(authority.identity(at))
            try:
                async with aclosing(link.watch(None, revision=1)) as lines:
                    return [len(part) async for part in lines] == [1]
            except LinkError:
                return False

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder)))


@probe(servers.EXEC_MESSAGE)
def _(amount: int) -> bool:
    """With the byte that says of which stream it is."""
    said = b"\x82\x7f" + amount.to_bytes(8) + b"\x01" + bytes(amount - 1) + b"\x82\x01\x03"
    heard: list[bytes] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()

    async def run() -> bool:
        async with serving(serve, None) as at:
            client = Client(Access(parse_server(f"http://{at}"), "test"))
            connection: Connection = await client._connect()
            try:
                await _hear_all(connection, "run", lambda _, data: heard.append(data), 60.0)
            except (ValueError, LinkError):
                return False
            finally:
                connection.close()
            return [len(each) for each in heard] == [amount - 1]

    return asyncio.run(run())


@probe(servers.RETRY_AFTER_S)
def _(amount: int) -> bool:
    """By either way of saying it."""
    headers = [("Retry-After", str(amount))]
    status = Status(code=429, details=StatusDetails(retry_after_seconds=amount))
    taken = {
        _retry_after_s(h11.Response(status_code=429, headers=headers)) == amount,
        refusal("list", CONFIG_MAPS, status).retry_after_s == amount,
    }
    assert len(taken) == 1
    return taken.pop()


@probe(servers.REFUSAL_WORDS)
def _(amount: int) -> bool:
    words = "x" * amount
    return words in str(refusal("list", CONFIG_MAPS, Status(code=400, message=words)))


@probe(servers.NAMED_ADDRESSES)
def _(amount: int) -> bool:
    addresses = [f"192.0.2.{number}" for number in range(amount)]

    def told(_host: object, port: int, **asked: int) -> list[tuple[object, ...]]:
        if asked.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "no number")
        return [(2, 1, 6, "", (each, port)) for each in addresses]

    with patch("socket.getaddrinfo", told):
        return asyncio.run(_resolve("many.example", 443)) == addresses


@probe(servers.REPLACED_PODS)
def _(amount: int) -> bool:
    pods = tuple(
        InterfaceAddresses("net", "n", "web", "eth0", ("10.0.0.1",)) for _ in range(amount)
    )
    return _is_taken(PodPage(1, 1, pods), 1)


@probe(servers.REPLACED_BYTES)
def _(amount: int) -> bool:
    return _is_taken(PodPage(1, 1, ()), amount)


def _is_taken(page: PodPage, size_bytes: int) -> bool:
    try:
        ReplacedPods("c").take(page, size_bytes)
    except LinkError:
        return False
    return True


@probe(servers.DELETED_NODES)
def _(amount: int) -> bool:
    """All of so many that were there, and were deleted one after the other."""
    nodes = Nodes(Client(plain_access("http://127.0.0.1:1")))

    async def hear() -> None:
        for number in range(amount):
            node = KubernetesNode(metadata=Metadata(name=f"n{number}", uid=f"u{number}"))
            await nodes._hear(ObjectChanges(put=[node]))
            await nodes._hear(ObjectChanges(gone=[("", node.metadata.name)]))

    asyncio.run(hear())
    return len(nodes.deleted) == amount


@probe(servers.UNREAD_CAUSE)
def _(amount: int) -> bool:
    unread, cause = UnreadObjects(), "x" * amount
    changes: ObjectChanges[Viewed] = ObjectChanges(unreadable=[Unreadable("web", cause)])
    unread.hear("Service", changes)
    return unread.cause("Service", ("", "web")) == f"cannot be read: {cause}"


@probe(servers.LEFT_OUT_VALUE)
def _(amount: int) -> bool:
    out, value = LeftOut(), "x" * amount
    out.note("ports[0].name", value, "is none")
    return out.words == (f"ports[0].name {value!r}: is none",)


def _is_read(content: bytes, read: Callable[[Path], object]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        path.write_bytes(content)
        try:
            read(path)
        except (LimpetError, ValueError):
            return False
        return True


@probe(servers.API_TOKEN)
def _(amount: int) -> bool:
    server, content = parse_server("https://192.0.2.1:6443"), b"x" * amount
    taken = {
        _is_read(content, lambda at: Credentials(Access(server, "t", token_file=at)).headers()),
        _is_read(content, read_token),
    }
    assert len(taken) == 1
    return taken.pop()


@probe(servers.API_CERTIFICATES)
def _(amount: int) -> bool:
    return _is_read(b"\n" * amount, _pem)


@probe(servers.KUBECONFIG)
def _(amount: int) -> bool:
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": "https://192.0.2.1:6443"}}],
        "users": [{"name": "it", "user": {"token": "x"}}],
    }
    content = json.dumps(document).encode().ljust(amount)
    try:
        return _is_read(content, lambda path: read_kubeconfig([path]))
    except AccessError:
        return False


@probe(servers.CONTROLLER_WAIT_S)
def _(amount: int) -> bool:
    return _wait_s(float(amount)) == amount


def _source() -> ApiServerSource:
    """Of a node that hears no API server yet."""
    own = member_without_disk()
    return ApiServerSource(own, lambda: plain_access("http://127.0.0.1:9"), random=lambda: 0.5)


@probe(servers.EARLY_DOCUMENTS)
def _(amount: int) -> bool:
    source = _source()
    for number in range(amount):
        sealed = Sealed("presence", b"{}", b"")
        source._judge(("presence", f"n{number}"), sealed, Outcome.BAD)
    return len(source._untaken.early) == amount


@probe(servers.UNUSABLE_OBJECTS)
def _(amount: int) -> bool:
    source = _source()
    for number in range(amount):
        source._note("grant", f"n{number}", "nobody has signed it")
    return len(source._unusable) == amount
