"""A controller under HTTP that no client speaks: of strangers, and of a member."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl

from tests.controller.conftest import controller, make_controller
from tests.controller.machines import Controller, Node
from tests.fuzz.live.bed import Thrower, lives_on

__all__ = ["controller", "make_controller"]

_PATHS = (
    *("/v1/join", "/v1/hello", "/v1/show", "/v1/documents", "/v1/segments", "/v1/pods"),
    *("/v1/watch?since=x", "/v1/admin/status", "/healthz", "/v1/ca", "/v1/../x", "/%00"),
)


def request(data: bytes, chance: random.Random) -> bytes:
    """Mostly a whole one, with a body of the controller's own kind."""
    if chance.random() < 0.2:
        return data
    verb = chance.choice(("POST", "POST", "PUT", "GET", "HEAD", "TRACE"))
    length = len(data) if chance.random() < 0.9 else chance.choice((-1, 0, 10**20, 1 << 31))
    head = [
        f"{verb} {chance.choice(_PATHS)} HTTP/1.1",
        "Host: controller.limpet",
        f"Content-Length: {length}",
        f"Limpet-Revision: {chance.choice(('1', '-1', '9' * 30, 'x', '1' * 5000))}",
        "Content-Type: application/json",
    ]
    if chance.random() < 0.1:
        head.append("Transfer-Encoding: chunked")
    return "\r\n".join((*head, "", "")).encode() + data


async def throw(
    at: Controller, context: ssl.SSLContext | None, inputs: list[bytes], chance: random.Random
) -> None:
    for data in inputs:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1",
                    at.port,
                    ssl=context,
                    server_hostname="controller.limpet" if context is not None else None,
                )
                try:
                    writer.write(request(data, chance))
                    if writer.can_write_eof():
                        writer.write_eof()
                    async with asyncio.timeout(0.1 if chance.random() < 0.9 else 1):
                        await reader.read(1 << 16)
                finally:
                    writer.transport.abort()


def test_requests_of_all_kinds_end_no_controller_and_keep_no_memory(
    controller: Controller, chance: random.Random
) -> None:
    thrower = Thrower(chance)
    names = ("request-to-the-controller", "answer-of-the-controller", "http-answer", "document")

    async def main() -> None:
        async with Node(controller.url, "edge-1") as honest, Node(controller.url, "bad") as member:
            await honest.join(controller.token())
            joined = await member.join(controller.token())
            stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
            contexts = (None, stranger, member.context(joined.ca, joined.certificate))
            with lives_on(lambda: controller.pid):
                inputs = thrower.inputs(*names)
                while batch := [each for _, each in zip(range(24), inputs, strict=False)]:
                    bodies = [each.partition(b"\n")[2] for each in batch]
                    await asyncio.gather(
                        *(
                            throw(controller, context, bodies[at::3], chance)
                            for at, context in enumerate(contexts)
                        )
                    )
                await honest.hello()
                await honest.publish()

    asyncio.run(main())

    assert thrower.count > 20
    log = controller.log.read_text(errors="replace")
    assert "Traceback" not in log
    assert "internal" not in log
