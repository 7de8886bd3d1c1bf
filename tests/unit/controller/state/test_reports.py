"""Reports of pods: what of them is taken, and what of a record a change writes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from limpet.base.bounds import members
from limpet.base.errors import StorageError
from limpet.cluster.api import Code, InterfaceAddresses, PodReport
from limpet.cluster.reported_pods import PodKey, pod_key
from limpet.controller.registry.records import REPORT, REPORT_PART, PartMark, ReportRecord
from limpet.controller.registry.refusal import RefusedError
from limpet.controller.state import report_parts
from limpet.controller.state.reports import NodeReports
from limpet.controller.store.interface import Change, StorePut
from limpet.controller.store.sqlite import SqliteStore
from tests.effort import examples

T = TypeVar("T")


def pod(number: int, *addresses: str, name: str = "") -> InterfaceAddresses:
    return InterfaceAddresses("limpet", "default", name or f"pod-{number}", "eth0", addresses)


def pods(count: int) -> list[InterfaceAddresses]:
    return [
        pod(n, f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", f"fd00::1:{n + 1:x}") for n in range(count)
    ]


def run(folder: Path, body: Callable[[SqliteStore, NodeReports], Awaitable[None]]) -> None:
    async def with_store() -> None:
        store = SqliteStore(folder / "c.db")
        try:
            await body(store, NodeReports(store))
        finally:
            await store.close()

    asyncio.run(with_store())


async def put(
    reports: NodeReports, sequence: int, told: Sequence[InterfaceAddresses], base: int | None = None
) -> int:
    """The size of what was written."""
    sizes: list[int] = []
    report = PodReport(sequence, tuple(told), base)
    await reports.put("a", report, 0.0, sizes.append)
    return sum(sizes)


async def refusal(work: Awaitable[Any]) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await work
    return caught.value


async def known(reports: NodeReports) -> list[InterfaceAddresses]:
    report = await reports.get("a")
    return list(report.pods) if report is not None else []


async def overwrite(store: SqliteStore, kind: str, name: str, value: bytes) -> None:
    """As somebody does by hand."""
    item = await store.get(kind, name)
    assert item is not None
    await store.write([StorePut(kind, name, value, item.version)])


STEPS = st.lists(
    st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=40)),
    max_size=8,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_parts_hold_what_one_record_of_all_would(
    steps: list[tuple[bool, list[tuple[int, bool]]]],
) -> None:
    """Dealt out to many small parts, which are made more and fewer on the way."""
    good = (report_parts._GOOD, report_parts._MOST, report_parts._LEAST)
    report_parts._GOOD, report_parts._MOST, report_parts._LEAST = 4, 8, 1
    try:
        numbers = itertools.count(1)
        record: ReportRecord | None = None
        parts: dict[int, tuple[InterfaceAddresses, ...]] = {0: ()}
        wanted: dict[PodKey, InterfaceAddresses] = {}
        for sequence, (is_all, told) in enumerate(steps):
            changed = [pod(n, "10.0.0.1") if there else pod(n) for n, there in told]
            base = None if is_all or record is None else record.sequence
            if base is None:
                wanted = {}
            for each in changed:
                wanted.pop(pod_key(each), None)
                if each.addresses:
                    wanted[pod_key(each)] = each
            report = PodReport(sequence, tuple(changed), base)
            touched = {n: parts[n] for n in report_parts.touched_parts(record, report)}
            merged = report_parts.merge_report(record, touched, report, 0.0, lambda: next(numbers))
            record = merged.record
            parts |= {n: each.pods for n, each in merged.parts.items()} | {0: record.pods}
            for gone in merged.gone:
                parts.pop(gone, None)
            found = {pod_key(each): each for held in parts.values() for each in held}
            assert found == wanted
            assert [mark.pods for mark in record.parts] == [
                len(parts[n]) for n in range(len(record.parts))
            ]
            assert sum(mark.pods for mark in record.parts) == len(wanted)
    finally:
        report_parts._GOOD, report_parts._MOST, report_parts._LEAST = good


def test_a_change_of_one_pod_of_thousands_writes_little_of_the_record(tmp_path: Path) -> None:
    async def body(store: SqliteStore, reports: NodeReports) -> None:
        everything = pods(4_000)
        whole = 0
        for start in range(0, 4_000, 1_000):
            base = start if start else None
            whole += await put(reports, start + 1_000, everything[start : start + 1_000], base)
        one = await put(reports, 4_001, [pod(1, "10.9.9.9")], 4_000)
        assert one < whole / 20
        # Also by what is in the store: the record and one part, of all of them.
        written = [
            len(item.value)
            for kind in (REPORT, REPORT_PART)
            for item in (await store.listing(kind)).items
        ]
        assert max(written) * 2 < sum(written) / 10
        assert {pod_key(each): each for each in await known(reports)} == {
            pod_key(each): each for each in [*everything, pod(1, "10.9.9.9")]
        }

    run(tmp_path, body)


@pytest.mark.parametrize(
    "address",
    [
        "fe80::1%" + "x" * 60_000,
        "fe80::1%eth0",
        "10.0.0.1 ",
        "010.0.0.1",
        "x" * 1_000,
        "::ffff:10.0.0.1%\x1b[2J",
        "10.0.0.0/8",
        "",
    ],
)
def test_what_is_no_address_is_refused_in_few_words(tmp_path: Path, address: str) -> None:
    async def body(store: SqliteStore, reports: NodeReports) -> None:
        refused = await refusal(put(reports, 1, [pod(1, "10.0.0.2"), pod(2, address)]))
        assert refused.refused.code is Code.BAD_REQUEST
        assert len(str(refused)) < 400
        assert await known(reports) == []

    run(tmp_path, body)


def test_an_address_is_kept_as_it_is_written_shortest_and_once(tmp_path: Path) -> None:
    async def body(store: SqliteStore, reports: NodeReports) -> None:
        await put(reports, 1, [pod(1, "FD00:0:0:0::0001", "fd00::1", "10.0.0.2")])
        assert await known(reports) == [pod(1, "fd00::1", "10.0.0.2")]

    run(tmp_path, body)


@pytest.mark.parametrize(
    "name", ["n" * 254, "two\nlines", "clear\x1b[2J", "turned\u202eround", "nul\0"]
)
def test_a_name_that_is_too_long_or_cannot_be_printed_is_refused(tmp_path: Path, name: str) -> None:
    async def body(store: SqliteStore, reports: NodeReports) -> None:
        refused = await refusal(put(reports, 1, [pod(1, "10.0.0.2", name=name)]))
        assert refused.refused.code is Code.BAD_REQUEST

    run(tmp_path, body)


def test_a_record_has_a_bound_in_bytes_however_many_reports_it_is_made_by(tmp_path: Path) -> None:
    def large(number: int) -> InterfaceAddresses:
        ends = tuple(f"2001:db8:aaaa:bbbb:cccc:dddd:{number:x}:{end:x}" for end in range(16))
        return InterfaceAddresses("n" * 250, "s" * 250, f"{number:0250}", "e" * 15, ends)

    async def body(store: SqliteStore, reports: NodeReports) -> None:
        sequence, refused = 0, None
        while refused is None:
            told = [large(sequence * 100 + n) for n in range(100)]
            try:
                await put(reports, sequence, told, sequence - 1 if sequence else None)
                sequence += 1
            except RefusedError as error:
                refused = error.refused.code
        assert refused is Code.TOO_LARGE
        size = sum(len(item.value) for item in (await store.listing(REPORT_PART)).items)
        assert size < members.REPORTED_BYTES.most * 1.1
        # What was taken before is there, and a change that fits counts.
        count = len(await known(reports))
        assert count >= 400
        await put(reports, sequence, [pod(1, "10.0.0.2")], sequence - 1)
        assert len(await known(reports)) == count + 1

    run(tmp_path, body)


class Stopping(SqliteStore):
    """Stops amid a write as the store of Kubernetes may: a part of the changes is made."""

    made: int | None = None

    async def write(self, changes: Sequence[Change]) -> list[str]:
        if self.made is None:
            return await super().write(changes)
        await super().write(changes[: self.made])
        raise StorageError("write", "the store", "it has stopped")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_store_that_stops_amid_a_report_asks_for_all_of_it_again(
    tmp_path: Path, is_restarted: bool
) -> None:
    """Or what the report that never was had said would be believed for ever."""

    async def body() -> None:
        store = Stopping(tmp_path / "c.db")
        reports = NodeReports(store)
        everything = pods(300)
        await put(reports, 1, everything)
        changed = next(each for each in everything if report_parts.part_of(pod_key(each), 8) == 3)
        store.made = 1
        with pytest.raises(StorageError):
            await put(reports, 2, [replace(changed, addresses=())], 1)
        store.made = None
        if is_restarted:
            reports = NodeReports(store)
        assert await reports.sequence("a") == 1
        # The next report says nothing of that pod: for the node it was there all the time.
        refused = await refusal(put(reports, 3, [pod(900, "10.0.0.2")], 1))
        assert refused.refused.code is Code.STALE
        await put(reports, 4, [*everything, pod(900, "10.0.0.2")])
        assert len(await known(reports)) == 301
        await store.close()

    asyncio.run(body())


def test_a_record_of_before_there_were_parts_goes_on(tmp_path: Path) -> None:
    async def body(store: SqliteStore, reports: NodeReports) -> None:
        before = {"sequence": 4, "at_s": 1.0, "pods": pods(300)}
        await store.write([StorePut(REPORT, "a", msgspec.json.encode(before))])
        await put(reports, 5, [pod(900, "10.0.0.2")], 4)
        assert len(await known(reports)) == 301
        assert await reports.pages("a") > 1

    run(tmp_path, body)


@pytest.mark.parametrize("is_with_time", [False, True])
def test_a_record_that_cannot_be_decoded_is_asked_for_again(
    tmp_path: Path, is_with_time: bool
) -> None:
    """Edited by hand, or of a later version: its node was kept out, and `limpet node list` failed
    for everybody."""
    damaged = b'{"sequence": "seven", "at_s": 7.0}' if is_with_time else b"{}x"

    async def body(store: SqliteStore, reports: NodeReports) -> None:
        await put(reports, 1, pods(1_000))
        assert await reports.pages("a") > 1
        await overwrite(store, REPORT, "a", damaged)
        reports = NodeReports(store)  # another process
        with capture_logs() as lines:
            assert await reports.sequence("a") == -1
            assert await reports.times(["a"]) == ({"a": 7.0} if is_with_time else {})
            assert await reports.get("a") is None
            assert await reports.pages("a") == 0
        assert [line["uid"] for line in lines] == ["a"]
        assert await reports.has("a")
        stale = await refusal(put(reports, 2, [pod(900, "10.0.0.2")], 1))
        assert stale.refused.code is Code.STALE
        await put(reports, 2, pods(3))
        assert len(await known(reports)) == 3
        assert await reports.sequence("a") == 2
        assert (await store.listing(REPORT_PART)).items == ()  # also those of the damaged one

    run(tmp_path, body)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_record_that_cannot_be_decoded_goes_with_its_node(
    tmp_path: Path, is_replaced: bool
) -> None:
    async def body(store: SqliteStore, reports: NodeReports) -> None:
        await put(reports, 1, pods(1_000))
        await overwrite(store, REPORT, "a", b"{}x")
        await (reports.hand_over("a", "b") if is_replaced else reports.drop("a"))
        assert (await store.listing(REPORT)).items == ()
        assert (await store.listing(REPORT_PART)).items == ()

    run(tmp_path, body)


def test_a_part_that_cannot_be_decoded_is_asked_for_again(tmp_path: Path) -> None:
    async def body(store: SqliteStore, reports: NodeReports) -> None:
        await put(reports, 1, pods(1_000))
        part = next(iter((await store.listing(REPORT_PART)).items))
        await overwrite(store, REPORT_PART, part.name, b"{}x")
        found = await known(reports)
        assert 0 < len(found) < 1_000
        stale = await refusal(put(reports, 2, [replace(found[0], addresses=())], 1))
        assert stale.refused.code is Code.STALE
        await put(reports, 2, pods(1_000))
        assert len(await known(reports)) == 1_000

    run(tmp_path, body)


def test_what_a_controller_of_before_has_left_out_is_asked_for_again(tmp_path: Path) -> None:
    """It acknowledged pods that are gone as if they were there, and those never change again."""

    async def body(store: SqliteStore, reports: NodeReports) -> None:
        before = {"sequence": 4, "at_s": 1.0, "pods": pods(3), "parts": [PartMark(3, 300)]}
        await store.write([StorePut(REPORT, "a", msgspec.json.encode(before))])
        assert await reports.sequence("a") == -1
        assert await reports.has("a")
        await put(reports, 5, [pod(900, "10.0.0.2")], 4)
        assert await reports.sequence("a") == -1
        await put(reports, 6, pods(3))
        assert await reports.sequence("a") == 6
        await put(reports, 7, [pod(900, "10.0.0.2")], 6)
        assert await reports.sequence("a") == 7

    run(tmp_path, body)


def test_when_nodes_have_reported_is_read_once_of_each_and_with_turns_for_others(
    tmp_path: Path,
) -> None:
    """A person asks with each `limpet node list`, and a member may have a mebibyte in its record:
    those of all were read at once, each time."""
    uids = [f"node-{number}" for number in range(12)]

    async def body(store: SqliteStore, _: NodeReports) -> None:
        record = msgspec.json.encode(
            {"sequence": 1, "at_s": 7.0, "pods": (), "fill": "x" * (1 << 20)}
        )
        for uid in uids:
            await store.write([StorePut(REPORT, uid, record)])
        reports, turns = NodeReports(store), 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        other = asyncio.create_task(take_turns())
        first, most_bytes = await memory_of(reports.times([*uids, "silent"]))
        other.cancel()
        assert first == dict.fromkeys(uids, 7.0)
        assert turns >= len(uids)
        assert most_bytes < 5 << 20
        again, most_bytes = await memory_of(reports.times([*uids, "silent"]))
        assert again == first
        assert most_bytes < 1 << 16
        # What happens afterwards is known without reading.
        await reports.put("silent", PodReport(1, (), None), 8.0, lambda _: None)
        await reports.drop(uids[0])
        await reports.hand_over(uids[1], "new")
        now = dict.fromkeys([*uids[2:], "new"], 7.0) | {"silent": 8.0}
        assert await reports.times([*uids, "silent", "new"]) == now

    run(tmp_path, body)


async def memory_of(work: Awaitable[T]) -> tuple[T, int]:
    """What it returns, and the most that it took of memory meanwhile."""
    tracemalloc.start()
    try:
        return await work, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_a_replaced_machine_reported_is_told_page_by_page(tmp_path: Path) -> None:
    async def body(store: SqliteStore, reports: NodeReports) -> None:
        await put(reports, 7, pods(1_000))
        await reports.hand_over("a", "b")
        found = [
            each
            for number in range(await reports.pages("b"))
            for each in (await reports.page("b", number)).pods
        ]
        assert {pod_key(each): each for each in found} == {pod_key(e): e for e in pods(1_000)}
        assert await reports.get("a") is None
        assert [
            item.name for item in (await store.listing(REPORT_PART)).items if "a." in item.name
        ] == []
        assert await reports.sequence("b") == -1
        await reports.drop("b")
        assert (await store.listing(REPORT_PART)).items == ()

    run(tmp_path, body)


class Teller:
    """A node: it tells what changed since the last report that was acknowledged, or all."""

    def __init__(self) -> None:
        self.now: dict[PodKey, InterfaceAddresses] = {}
        self._had: dict[PodKey, InterfaceAddresses] = {}
        self._base: int | None = None
        self._sequence = 0

    async def tell(self, reports: NodeReports) -> None:
        """Raises: StorageError, and then it was not acknowledged."""
        while True:
            had = self._had if self._base is not None else {}
            gone = [replace(had[key], addresses=()) for key in had.keys() - self.now]
            changed = [each for key, each in self.now.items() if had.get(key) != each]
            self._sequence += 1
            try:
                await put(reports, self._sequence, [*gone, *changed], self._base)
            except RefusedError as error:
                if error.refused.code is not Code.STALE or self._base is None:
                    raise
                self._base = None
            else:
                self._base, self._had = self._sequence, dict(self.now)
                return


LIVES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=25),
        st.none() | st.integers(0, 6),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25, deadline=None)
@given(LIVES)
def test_what_was_acknowledged_is_what_the_node_has_wherever_the_store_stopped(
    tmp_path_factory: pytest.TempPathFactory,
    lives: list[tuple[list[tuple[int, int]], int | None, bool]],
) -> None:
    async def body() -> None:
        store = Stopping(tmp_path_factory.mktemp("life") / "c.db")
        reports, node = NodeReports(store), Teller()
        for changes, made, is_restarted in lives:
            for number, kind in changes:
                each = pod(number, "10.0.0.1", f"10.0.1.{kind}")
                if kind:
                    node.now[pod_key(each)] = each
                else:
                    node.now.pop(pod_key(each), None)
            store.made = made
            if made is not None:
                with contextlib.suppress(StorageError):
                    await node.tell(reports)
            store.made = None
            if is_restarted:
                reports = NodeReports(store)
                continue  # without a word: what happens next comes on top
            await node.tell(reports)
            assert {pod_key(each): each for each in await known(reports)} == node.now
        await node.tell(reports)
        assert {pod_key(each): each for each in await known(reports)} == node.now
        await store.close()

    good = (report_parts._GOOD, report_parts._MOST, report_parts._LEAST)
    report_parts._GOOD, report_parts._MOST, report_parts._LEAST = 3, 6, 1
    try:
        asyncio.run(body())
    finally:
        report_parts._GOOD, report_parts._MOST, report_parts._LEAST = good
