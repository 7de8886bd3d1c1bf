"""What every store promises, as tests.

A module of tests that takes all of them in has a fixture `open_store` and one `examples`, which
says how many sequences of random changes are tried.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from limpet.base.errors import StorageError
from limpet.controller.store.interface import (
    Bookmark,
    Change,
    ConflictError,
    Delete,
    Deleted,
    Event,
    Item,
    Store,
    StorePut,
    TooOldError,
)
from tests.waiting import PATIENCE_S

OpenStore = Callable[[Path], AbstractAsyncContextManager[Store]]
KEPT_DELETIONS = 8
"""The store may forget what happened before these."""


@pytest.fixture
def with_store(open_store: OpenStore, tmp_path: Path) -> Callable[..., Any]:
    """Runs a test body with a store; called again, with the same one opened anew."""

    def run(body: Callable[[Store], Awaitable[Any]]) -> Any:
        async def opened() -> Any:
            async with open_store(tmp_path) as store:
                return await body(store)

        return asyncio.run(opened())

    return run


async def told(store: Store, since: str, kinds: tuple[str, ...] = ("a",)) -> list[Event]:
    """What a watch tells up to its first bookmark."""
    events = []
    async for event in store.watch(kinds, since):
        events.append(event)
        if isinstance(event, Bookmark):
            return events
    raise AssertionError("the watch ended")


def test_what_was_written_is_read_also_by_the_next_process(with_store: Callable[..., Any]) -> None:
    async def write(store: Store) -> None:
        (first,) = await store.write([StorePut("a", "x", b"1")])
        (second,) = await store.write([StorePut("a", "x", b"2", first)])
        assert await store.get("a", "x") == Item("a", "x", b"2", second)

    async def read(store: Store) -> None:
        item = await store.get("a", "x")
        assert item is not None
        assert item.value == b"2"
        assert await store.get("b", "x") is None

    with_store(write)
    with_store(read)


@pytest.mark.parametrize(
    "change",
    [
        StorePut("a", "there", b"2"),
        StorePut("a", "there", b"2", "another-1"),
        Delete("a", "there", "another-1"),
        StorePut("a", "absent", b"2", "another-1"),
        Delete("a", "absent", "another-1"),
    ],
)
def test_a_change_that_does_not_fit_changes_nothing(
    with_store: Callable[..., Any], change: Change
) -> None:
    async def body(store: Store) -> None:
        (version,) = await store.write([StorePut("a", "there", b"1")])
        with pytest.raises(ConflictError):
            await store.write([change])
        assert (await store.listing("a")).items == (Item("a", "there", b"1", version),)

    with_store(body)


def test_of_many_that_create_at_once_one_wins(with_store: Callable[..., Any]) -> None:
    async def body(store: Store) -> None:
        outcomes = await asyncio.gather(
            *(store.write([StorePut("a", "x", b"%d" % n)]) for n in range(50)),
            return_exceptions=True,
        )
        winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, list)]
        assert len(winners) == 1
        assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 49
        item = await store.get("a", "x")
        assert item is not None
        assert item.value == b"%d" % winners[0]

    with_store(body)


def test_of_many_that_count_up_by_compare_and_swap_none_is_lost(
    with_store: Callable[..., Any],
) -> None:
    async def body(store: Store) -> None:
        await store.write([StorePut("a", "x", b"0")])

        async def count_up() -> None:
            while True:
                item = await store.get("a", "x")
                assert item is not None
                try:
                    await store.write(
                        [StorePut("a", "x", b"%d" % (int(item.value) + 1), item.version)]
                    )
                except ConflictError:
                    continue
                return

        await asyncio.gather(*(count_up() for _ in range(20)))
        item = await store.get("a", "x")
        assert item is not None
        assert item.value == b"20"

    with_store(body)


def test_a_watch_from_a_listing_misses_nothing_and_repeats_nothing(
    with_store: Callable[..., Any],
) -> None:
    async def body(store: Store) -> None:
        await store.write([StorePut("a", "before", b"1")])
        listing = await store.listing("a")
        assert await told(store, listing.version) == [Bookmark(listing.version)]
        (version,) = await store.write([StorePut("a", "after", b"2")])
        (other,) = await store.write([StorePut("b", "other", b"3")])
        (gone,) = await store.write([Delete("a", "after", version)])

        events = await told(store, listing.version)

        assert events[-2:] == [Deleted("a", "after", gone), Bookmark(gone)]
        assert all(event.kind == "a" for event in events[:-1] if not isinstance(event, Bookmark))
        assert await told(store, other) == [Deleted("a", "after", gone), Bookmark(gone)]

    with_store(body)


def test_from_a_mark_all_is_told_also_of_kinds_that_have_no_item(
    with_store: Callable[..., Any],
) -> None:
    async def body(store: Store) -> None:
        kinds = ("a", "none", "b")
        mark = await store.mark(kinds)
        events = store.watch(kinds, mark)
        (version,) = await store.write([StorePut("a", "x", b"1")])
        (other,) = await store.write([StorePut("b", "y", b"2")])
        async with asyncio.timeout(PATIENCE_S):
            told = [await anext(events)]
            while len(told) < 3 or not isinstance(told[-1], Bookmark):
                told.append(await anext(events))
        items = [each for each in told if not isinstance(each, Bookmark)]
        assert items == [Item("a", "x", b"1", version), Item("b", "y", b"2", other)]
        await events.aclose()

    with_store(body)


def test_a_watcher_hears_of_what_is_written_while_it_waits(with_store: Callable[..., Any]) -> None:
    async def body(store: Store) -> None:
        events = store.watch(("a",), (await store.listing("a")).version)
        assert isinstance(await anext(events), Bookmark)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        (version,) = await store.write([StorePut("a", "x", b"1")])
        assert await waiting == Item("a", "x", b"1", version)

    with_store(body)


def test_a_watch_goes_on_after_the_store_was_opened_anew(with_store: Callable[..., Any]) -> None:
    async def write(store: Store) -> tuple[str, str]:
        (version,) = await store.write([StorePut("a", "x", b"1")])
        (later,) = await store.write([StorePut("a", "y", b"2")])
        return version, later

    version, later = with_store(write)
    events = with_store(lambda store: told(store, version))

    assert events == [Item("a", "y", b"2", later), Bookmark(later)]


def test_a_version_that_was_compacted_is_too_old_and_a_later_one_is_not(
    with_store: Callable[..., Any],
) -> None:
    async def body(store: Store) -> None:
        start = (await store.listing("a")).version
        for number in range(4 * KEPT_DELETIONS):
            (version,) = await store.write([StorePut("a", str(number), b"1")])
            (deleted,) = await store.write([Delete("a", str(number), version)])
        with pytest.raises(TooOldError):
            await told(store, start)
        assert await told(store, version) == [
            Deleted("a", str(number), deleted),
            Bookmark(deleted),
        ]

    with_store(body)


@pytest.mark.parametrize("since", ["", "nonsense", "abcd-1", "-", "999999999999999999999999"])
def test_a_version_that_was_never_told_is_too_old(
    with_store: Callable[..., Any], since: str
) -> None:
    async def body(store: Store) -> None:
        with pytest.raises(TooOldError):
            await told(store, since)

    with_store(body)


NAMES = st.sampled_from(["w", "x", "y", "z"])
VALUES = st.binary(max_size=3)


class _AgainstADictionary(RuleBasedStateMachine):
    """Groups of concurrent writes: what was answered is what a dictionary would hold after the
    same writes one by one, in the order of their versions; a watch tells the same."""

    open_store: OpenStore

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.context = type(self).open_store(Path(self.folder.name))
        self.store = self.run(self.context.__aenter__())
        self.model: dict[str, Item] = {}
        self.watched: dict[str, bytes] = {}
        self.position = self.run(self.store.listing("a")).version

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @rule(wanted=st.lists(st.tuples(NAMES, VALUES, st.sampled_from("crd")), min_size=1, max_size=6))
    def write_at_once(self, wanted: list[tuple[str, bytes, str]]) -> None:
        changes: list[Change] = []
        for name, value, what in wanted:
            version = self.model[name].version if name in self.model else "none-0"
            if what == "c":
                changes.append(StorePut("a", name, value))
            elif what == "r":
                changes.append(StorePut("a", name, value, version))
            else:
                changes.append(Delete("a", name, version))

        async def write() -> list[Any]:
            return await asyncio.gather(
                *(self.store.write([change]) for change in changes), return_exceptions=True
            )

        outcomes = self.run(write())
        done = [
            (int(outcome[0].rpartition("-")[2]), change, outcome[0])
            for change, outcome in zip(changes, outcomes, strict=True)
            if isinstance(outcome, list)
        ]
        assert all(isinstance(each, list | ConflictError) for each in outcomes)
        for _, change, version in sorted(done, key=lambda each: each[0]):
            known = self.model.get(change.name)
            if change.version is None:
                assert known is None
            else:
                assert known is not None
                assert known.version == change.version
            if isinstance(change, Delete):
                del self.model[change.name]
            else:
                self.model[change.name] = Item("a", change.name, change.value, version)

    @rule()
    def watch_on(self) -> None:
        try:
            events = self.run(told(self.store, self.position))
        except TooOldError:
            listing = self.run(self.store.listing("a"))
            self.watched = {item.name: item.value for item in listing.items}
            self.position = listing.version
        else:
            for event in events:
                if isinstance(event, Item):
                    self.watched[event.name] = event.value
                elif isinstance(event, Deleted):
                    self.watched.pop(event.name, None)
                self.position = event.version
        assert self.watched == {name: item.value for name, item in self.model.items()}

    @rule()
    def open_anew(self) -> None:
        self.run(self.context.__aexit__(None, None, None))
        self.context = type(self).open_store(Path(self.folder.name))
        self.store = self.run(self.context.__aenter__())

    @invariant()
    def the_listing_is_the_dictionary(self) -> None:
        if hasattr(self, "model"):
            listing = self.run(self.store.listing("a"))
            assert {item.name: item for item in listing.items} == self.model

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.context.__aexit__(None, None, None))
            self.runner.close()
            self.folder.cleanup()


def test_a_store_is_as_a_dictionary_that_is_written_by_one_at_a_time(
    open_store: OpenStore, examples: int
) -> None:
    machine = type("Machine", (_AgainstADictionary,), {"open_store": staticmethod(open_store)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_what_no_store_can_hold_is_refused_and_what_comes_after_it_is_written(
    with_store: Callable[..., Any],
) -> None:
    async def body(store: Store) -> None:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(StorageError):
                await store.write([StorePut("a", "\ud800", b"no text")])
            await store.write([StorePut("a", "x", b"1")])
            item = await store.get("a", "x")
            assert item is not None
            assert item.value == b"1"

    with_store(body)
