"""A program that holds connections open to keep others out, as many as it is told, and opens those
anew that were ended:

    python -m tests.beds.traffic.hostile_connections PORT SOURCES KIND=COUNT …

`silent` says nothing; `hello` sends the first byte of a TLS handshake; `head` is through the
handshake and sends half of a request's head, `body` a head and half of the body. They come from
SOURCES addresses of 127.1.0.0/16 to 127.0.0.1. It says `up` when each has been tried once.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
import subprocess
import sys
from collections.abc import Iterator

_AGAIN_S = 1.0
_HEAD = b"POST /v1/join HTTP/1.1\r\nHost: x\r\n"
_BODY = _HEAD + b"Content-Length: 16000\r\n\r\n" + b'{"token": "'.ljust(15000, b"x")


@contextlib.contextmanager
def hostile_connections(port: int, *, sources: int, **counts: int) -> Iterator[None]:
    """Within, all of them have been opened; those that are ended come again after a second."""
    words = [f"{kind}={count}" for kind, count in counts.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(port), str(sources), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield
    finally:
        process.kill()
        process.communicate()


async def _hold(kind: str, number: int, port: int, sources: int) -> None:
    source = f"127.1.{number % sources >> 8}.{number % sources & 255}"
    reader = writer = None
    try:
        context = _context() if kind in ("head", "body") else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=(source, 0), ssl=context
        )
        if kind != "silent":
            writer.write({"hello": b"\x16", "head": _HEAD, "body": _BODY}[kind])
        await reader.read()
    except (OSError, EOFError):
        pass
    finally:
        if writer is not None:
            writer.transport.abort()


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _main(port: int, sources: int, counts: dict[str, int]) -> None:
    tried = asyncio.Semaphore(0)
    at_once = asyncio.Semaphore(200)

    async def again_and_again(kind: str, number: int) -> None:
        async with at_once:
            holding = asyncio.create_task(_hold(kind, number, port, sources))
            await asyncio.wait((holding,), timeout=0.05)
        tried.release()
        while True:
            await holding
            await asyncio.sleep(_AGAIN_S)
            holding = asyncio.create_task(_hold(kind, number, port, sources))

    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    tasks = [
        asyncio.create_task(again_and_again(kind, number)) for number, kind in enumerate(kinds)
    ]
    for _ in tasks:
        await tried.acquire()
    sys.stdout.write("up\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until it is killed


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _counts = {
        kind: int(count) for kind, _, count in (word.partition("=") for word in sys.argv[3:])
    }
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), _counts))
