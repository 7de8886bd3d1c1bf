"""A process in a namespace that hands connections on to what listens there.

Its listeners belong to the machine's own namespace, where they were made: so programs outside reach
a server inside, and neither namespace gets a route or a device for it.

    python -m limpet.lab.kube.forward DESCRIPTOR=ADDRESS:PORT...
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from functools import partial

from limpet.base.addresses import parse_listen
from limpet.base.process.lifetime import allow_many_files, for_ever, notify_service_manager, run

_CHUNK_BYTES = 1 << 16


async def _forward(words: list[str]) -> None:
    allow_many_files()
    for word in words:
        descriptor, _, target = word.partition("=")
        listener = socket.socket(fileno=int(descriptor))
        await asyncio.start_server(partial(_serve, *parse_listen(target)), sock=listener)
    notify_service_manager("READY=1")
    await for_ever()


async def _serve(
    host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Both directions, each until its own end; a server that is not there is a reset."""
    try:
        inner_reader, inner_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.transport.abort()
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(reader, inner_writer))
            both.create_task(_copy(inner_reader, writer))
    except* OSError:
        for each in (writer, inner_writer):
            each.transport.abort()  # whoever is left hears of it by a reset
    else:
        for each in (writer, inner_writer):
            each.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


if __name__ == "__main__":
    run(partial(_forward, sys.argv[1:]))
