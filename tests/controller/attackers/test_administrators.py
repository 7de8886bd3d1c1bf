"""What somebody may hold open who has the right to administer the cluster by an API server."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from limpet.base.bounds.administrators import ADMIN_BODY, ADMIN_CONNECTIONS
from limpet.cluster.api import ADMIN_HEADER
from tests.controller.machines import Controller, served_here
from tests.waiting import until


async def _named(token: str, source: bytes) -> str:
    """Everybody may, by the name that is the token."""
    return token


def test_an_account_has_a_few_connections_and_others_have_their_own(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    async def ask(who: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", controller.port, ssl=context)
        head = f"POST /v1/admin/node.list HTTP/1.1\r\nHost: x\r\n{ADMIN_HEADER}: {who}\r\n"
        writer.write(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
        answered = await reader.readuntil(b"\r\n\r\n")
        assert answered.startswith(b"HTTP/1.1 200"), answered
        await reader.readexactly(int(answered.lower().split(b"content-length: ")[1].split()[0]))
        return reader, writer

    async def scenario() -> None:
        async with served_here(controller, _named):
            other, other_writer = await ask("bob")
            opened = [await ask("ann") for _ in range(ADMIN_CONNECTIONS.most)]
            assert not any(reader.at_eof() for reader, _ in opened)
            opened.append(await ask("ann"))
            await until(lambda: opened[0][0].at_eof() or opened[0][0].exception() is not None)
            assert not any(reader.at_eof() for reader, _ in (*opened[1:], (other, None)))
            for writer in (other_writer, *(writer for _, writer in opened)):
                writer.transport.abort()

    asyncio.run(scenario())


def test_what_an_account_sends_has_a_bound(tmp_path: Path) -> None:
    """By the road of nodes, too."""
    controller = Controller(tmp_path)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    async def ask(size: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", controller.port, ssl=context)
        head = f"POST /v1/admin/node.list HTTP/1.1\r\nHost: x\r\n{ADMIN_HEADER}: ann\r\n"
        writer.write(f"{head}Content-Length: {size}\r\nConnection: close\r\n\r\n".encode())
        writer.write(b"{" + b" " * (size - 1))
        answer = await reader.read()
        writer.transport.abort()
        return answer

    async def scenario() -> None:
        async with served_here(controller, _named):
            words = f"more than {ADMIN_BODY.most:,} bytes".encode()
            assert words not in await ask(ADMIN_BODY.most)
            assert words in await ask(ADMIN_BODY.most + 1)

    asyncio.run(scenario())
