"""What every store promises, of the SQLite file."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from limpet.controller.store.interface import Item, Store, StorePut
from limpet.controller.store.sqlite import SqliteStore
from tests.beds.store_suite import (  # noqa: F401 - the suite
    KEPT_DELETIONS,
    OpenStore,
    test_a_change_that_does_not_fit_changes_nothing,
    test_a_store_is_as_a_dictionary_that_is_written_by_one_at_a_time,
    test_a_version_that_was_compacted_is_too_old_and_a_later_one_is_not,
    test_a_version_that_was_never_told_is_too_old,
    test_a_watch_from_a_listing_misses_nothing_and_repeats_nothing,
    test_a_watch_goes_on_after_the_store_was_opened_anew,
    test_a_watcher_hears_of_what_is_written_while_it_waits,
    test_from_a_mark_all_is_told_also_of_kinds_that_have_no_item,
    test_of_many_that_count_up_by_compare_and_swap_none_is_lost,
    test_of_many_that_create_at_once_one_wins,
    test_what_no_store_can_hold_is_refused_and_what_comes_after_it_is_written,
    test_what_was_written_is_read_also_by_the_next_process,
    with_store,
)


@asynccontextmanager
async def open_sqlite(folder: Path) -> AsyncIterator[Store]:
    store = SqliteStore(folder / "store.db", kept_deletions=KEPT_DELETIONS)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def open_store() -> OpenStore:
    return open_sqlite


@pytest.fixture
def examples() -> int:
    return 25


def test_a_watch_from_long_ago_reads_nothing_of_what_it_is_not_to_tell(tmp_path: Path) -> None:
    """A node that was away asks so, and a member may as often as it likes: the reports of all nodes
    were read for each."""

    async def scenario() -> int:
        async with open_sqlite(tmp_path) as store:
            began = (await store.listing("grant")).version
            await store.write([StorePut("grant", "a", b"granted")])
            for number in range(12):  # more than is kept in memory
                await store.write([StorePut("report", str(number), bytes(1 << 20))])
            tracemalloc.start()
            told = await anext(store.watch(["grant"], began))
            most_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert isinstance(told, Item)
            assert told.value == b"granted"
        return most_bytes

    assert asyncio.run(scenario()) < 1 << 20
