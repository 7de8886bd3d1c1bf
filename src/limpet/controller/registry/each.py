"""Changes that are written each by itself, so that one that fails is in no other's way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from limpet.cluster.api import Code
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.store.interface import Change, ConflictError, Store

_AT_ONCE = 64


async def write_each(store: Store, changes: Sequence[Change]) -> list[str | Exception]:
    """The version of each item after its change, or why it was not made."""
    outcomes: list[str | Exception] = []
    for start in range(0, len(changes), _AT_ONCE):
        writes = (_write(store, change) for change in changes[start : start + _AT_ONCE])
        outcomes += await asyncio.gather(*writes)
    return outcomes


async def _write(store: Store, change: Change) -> str | Exception:
    try:
        return (await store.write([change]))[0]
    except ConflictError as error:
        return RefusedError(Code.TRY_AGAIN, str(error))
    except Exception as error:  # noqa: BLE001 - it is the asker's
        return error
