"""What could not be written once is written later, whatever was in the way."""

from __future__ import annotations

import asyncio

import pytest

from limpet.base.errors import LimpetError
from limpet.cloud.workloads.keeping import Keeping
from tests.waiting import until


@pytest.mark.parametrize("error", [LimpetError("the disk is full"), RuntimeError("no new thread")])
def test_after_any_error_what_has_changed_is_written_all_the_same(error: Exception) -> None:
    causes = [error]
    written: list[str] = []
    troubles: list[str] = []

    async def write() -> int:
        if causes:
            raise causes.pop()
        troubles.append(keeping.trouble)
        written.append("all")
        return 1

    keeping = Keeping("Services", write, gather_s=0.0)

    async def scenario() -> None:
        task = asyncio.create_task(keeping.run())
        keeping.note()
        await until(lambda: bool(written))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert str(error) in troubles[0]
    assert keeping.trouble == ""


def test_at_the_end_an_error_is_told_and_ends_nothing() -> None:
    async def write() -> int:
        raise MemoryError

    keeping = Keeping("Services", write)
    keeping.note()
    asyncio.run(keeping.finish())
    assert "MemoryError" in keeping.trouble
