"""What is asked for at one time: made in memory one after another, and answered when it is known
what of it was written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from limpet.cluster.documents import Key
from limpet.controller.registry.tables import Tables

Waiting = tuple[Callable[[Tables], Any], "asyncio.Future[Any]"]
"""What makes it, and who waits for that."""


@dataclass(frozen=True, slots=True)
class Made:
    """What was asked for, as far as it is in memory."""

    waiting: Waiting
    answer: Any
    keys: frozenset[Key]
    """Items that it put."""
    refusal: Exception | None = None
    """Why nothing of it is there, as far as what was put before it counts."""


def make_each(
    tables: Tables, batch: Sequence[Waiting], lost: Mapping[Key, Exception]
) -> list[Made]:
    """What waits for the commit. Who is refused by what is written is told at once, and so is who
    puts what is `lost`: it was not written, and why."""
    begin, all_made = tables.position, []
    for waiting in batch:
        make, done = waiting
        position = tables.position
        try:
            answer = make(tables)
        except Exception as error:  # noqa: BLE001 - it is the asker's
            tables.undo(position)
            if position == begin:
                fail(done, error)
            else:
                all_made.append(Made(waiting, None, frozenset(), error))
            continue
        keys = tables.put_since(position)
        if (why := _why_lost(tables, keys, lost)) is None:
            all_made.append(Made(waiting, answer, keys))
        else:
            tables.undo(position)
            fail(done, why)
    return all_made


def answer_each(
    tables: Tables, all_made: Sequence[Made], failed: Mapping[Key, Exception]
) -> list[Waiting]:
    """`failed`: what was not written of that which nodes write, too: those who asked for it hear of
    it, and nobody else; nor who removed the node, which is removed.

    Returns who is not answered: they put nothing, and may have seen what is not there.
    """
    unanswered, is_lost = [], False
    for each in all_made:
        _, done = each.waiting
        is_lost = is_lost or not each.keys.isdisjoint(failed)
        if (error := _why_lost(tables, each.keys, failed)) is not None:
            fail(done, error)
        elif is_lost and not each.keys:
            unanswered.append(each.waiting)
        elif each.refusal is not None:
            fail(done, each.refusal)
        elif not done.done():
            done.set_result(each.answer)
    return unanswered


def _why_lost(
    tables: Tables, keys: Collection[Key], failed: Mapping[Key, Exception]
) -> Exception | None:
    if not failed:
        return None
    lost = (key for key in keys if key in failed and not tables.is_under_removed(*key))
    return next((failed[key] for key in lost), None)


def fail(done: asyncio.Future[Any], error: Exception) -> None:
    """It is told, also where nobody waits any more."""
    if not done.done():
        done.set_exception(error)
        done.exception()
