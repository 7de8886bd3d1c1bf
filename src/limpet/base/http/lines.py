"""Streams of lines, bounded in size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator


async def read_lines(
    chunks: AsyncIterator[bytes], *, most_bytes: int
) -> AsyncGenerator[list[bytes], None]:
    """Whole lines as they come, each time all that are there. Raises: ValueError in words."""
    rest = bytearray()  # a line may come byte by byte
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest += first
        if max((len(rest), *map(len, others))) > most_bytes:
            raise ValueError(f"a line of it has no end within {most_bytes} bytes")
        if others:
            lines = [bytes(rest), *others[:-1]]
            rest = bytearray(others[-1])
            yield lines
    if rest:
        raise ValueError("it stopped half way in a line")


async def read_whole(chunks: AsyncIterator[bytes], *, most_bytes: int) -> bytes:
    """All that comes. Raises: ValueError in words."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > most_bytes:
            raise ValueError("a refusal of it has no end")
        parts.append(chunk)
    return b"".join(parts)
