"""Of what controllers, API servers and other servers answer."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import msgspec

from limpet.base.bounds import servers, strangers, tenants
from limpet.base.bounds.words import LABEL
from limpet.base.errors import LimpetError
from limpet.base.http.connection import LinkError
from limpet.cloud.link import ControllerLink, ControllerRefusedError
from limpet.cluster.api import Code, Refused
from limpet.dns import wire
from limpet.dns.names import Found, Record
from limpet.dns.resolver import _Looked
from limpet.kubernetes import client as client_module
from limpet.kubernetes.access.access import Access, parse_server
from limpet.kubernetes.client import Client
from limpet.kubernetes.errors import StatusError
from limpet.kubernetes.kinds.objects import CONFIG_MAPS, Status
from limpet.kubernetes.kinds.policies import PODS
from limpet.kubernetes.watch_event import Unreadable, read_item
from tests.beds.rogue import STREAM, Authority, Serve, answer, chunk, says, serving
from tests.unit.base.bounds.probes import probe


def _with_client(serve: Serve, work: Callable[[Client], Awaitable[bool]]) -> bool:
    async def run() -> bool:
        async with serving(serve, None) as at:
            with closing(Client(Access(parse_server(f"http://{at}"), "test"))) as client:
                return await work(client)

    return asyncio.run(run())


def _filled(document: msgspec.Struct, size: int) -> bytes:
    """As JSON, filled up with white space."""
    data = msgspec.json.encode(document)
    return data[:-1] + b" " * (size - len(data)) + data[-1:]


@probe(tenants.LIST_PAGES)
def _pages(amount: int) -> bool:
    """By HTTP; three pages stand for as many as there may be."""
    most = replace(tenants.LIST_PAGES, most=3)
    count = amount - tenants.LIST_PAGES.most + most.most
    page = {"metadata": {"resourceVersion": "1", "continue": "more"}, "items": []}

    async def read(client: Client) -> bool:
        taken = 0
        try:
            async with aclosing(client.pages(CONFIG_MAPS)) as pages:
                while taken < count:
                    await anext(pages)
                    taken += 1
        except LinkError:
            raise
        except LimpetError:
            return False
        return True

    with patch.object(client_module, "LIST_PAGES", most):
        return _with_client(says(answer(msgspec.json.encode(page))), read)


@probe(servers.WATCH_LINE)
def _refusal_of_a_watch(amount: int) -> bool:
    said = answer(_filled(Status(code=500, message="no"), amount), "500 No")

    async def watch(client: Client) -> bool:
        try:
            async with aclosing(
                client.watch(CONFIG_MAPS, "1", for_s=60.0, silence_s=60.0)
            ) as lines:
                await anext(lines)
        except StatusError:
            return True
        except LinkError:
            return False
        raise AssertionError("it is no refusal")

    return _with_client(says(said), watch)


@probe(servers.FEED_LINE)
def _refusal_of_a_feed(amount: int) -> bool:
    said = answer(_filled(Refused(Code.TOO_OLD, "no"), amount), "410 Gone")

    async def run(folder: Path) -> bool:
        authority = Authority(folder / "authority")
        async with serving(says(said), authority.server_context()) as at:
            link = ControllerLink(authority.identity(at))
            try:
                async with aclosing(link.watch(None, revision=1)) as lines:
                    await anext(lines)
            except ControllerRefusedError:
                return True
            except LinkError:
                return False
        raise AssertionError("it is no refusal")

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder)))


@probe(servers.HTTP_HEAD, above=servers.HTTP_HEAD.most + (80 << 10))
def _trailer(amount: int) -> bool:
    """What comes behind the body is like a head. Of one that is longer than what is read at a time
    a part is there for itself, wherever it was cut."""
    said = STREAM + chunk(b"{}") + b"0\r\n"

    async def ask(client: Client) -> bool:
        try:
            await client.ask("GET", "/")
        except LinkError:
            return False
        return True

    trailer = b"Filled: " + b"x" * (amount - len(b"Filled: \r\n\r\n")) + b"\r\n\r\n"
    return _with_client(says(said + trailer), ask)


@probe(strangers.DNS_FOUND_RECORDS)
def _records_of_one_name(amount: int) -> bool:
    looked, key = _Looked(), ((b"web",), wire.A)
    looked.put(key, Found(wire.NOERROR, (Record((), wire.A, "10.1.0.1"),) * amount))
    return key in looked.found


@probe(LABEL)
def _name_of_a_port(amount: int) -> bool:
    spec = {"containers": [{"ports": [{"name": "x" * amount}]}]}
    raw = msgspec.Raw(msgspec.json.encode({"metadata": {"name": "x"}, "spec": spec}))
    return not isinstance(read_item(raw, PODS), Unreadable)
