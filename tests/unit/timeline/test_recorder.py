"""A timeline goes on where it was, is asked while it grows, and outlives a disk that is full."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from limpet.base.errors import LimpetError
from limpet.picture.timeline import Clock, Happening
from limpet.timeline import recorder as recording
from limpet.timeline.answer import TimelineQuery, asked_of
from limpet.timeline.clock import Moment
from limpet.timeline.file import NEWER, read_all
from limpet.timeline.recorder import Recorder
from tests.unit.cluster.test_membership import on_a_loop
from tests.waiting import PATIENCE_S

WALL_S = 1_795_000_000.0


def steady(boot: str = "boot1", clock: Clock = Clock.KEPT) -> Callable[[], Moment]:
    seconds = itertools.count(1)

    def now() -> Moment:
        since_s = float(next(seconds))
        return Moment(boot, since_s, WALL_S + since_s, clock)

    return now


def happening(words: str, peer: str = "") -> Happening:
    return Happening(kind="path", words=words, node="n1", peer=peer, names=("edge-1", peer))


async def words(recorder: Recorder, **asked: object) -> list[str]:
    return [each.words for each in (await recorder.answer(TimelineQuery(**asked))).entries]  # type: ignore[arg-type]


@on_a_loop
async def test_an_entry_is_there_after_a_restart_and_numbers_go_on(tmp_path: Path) -> None:
    first = Recorder(tmp_path, steady())
    assert first.start() is None
    first.note(happening("one"), happening("two"))
    await first.stop()

    second = Recorder(tmp_path, steady("boot2"))
    last = second.start()
    second.note(happening("three"))
    await second.stop()

    assert last is not None
    assert last.happening.words == "two"
    assert [(each.sequence, each.happening.words) for each in read_all(tmp_path)] == [
        (1, "one"),
        (2, "two"),
        (3, "three"),
    ]


@on_a_loop
async def test_whoever_waits_hears_of_it_within_the_moment(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, steady())
    recorder.start()
    waits = asyncio.create_task(recorder.answer(TimelineQuery(after=0, wait_s=40.0)))
    await asyncio.sleep(0)
    recorder.note(happening("one"))

    async with asyncio.timeout(PATIENCE_S):
        found = await waits

    assert [each.words for each in found.entries] == ["one"]
    await recorder.stop()


@on_a_loop
async def test_nobody_waits_any_more_at_the_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, steady())
    recorder.start()
    question = TimelineQuery(after=0, wait_s=40.0)
    waits = asyncio.create_task(recorder.answer(question))
    await asyncio.sleep(0)
    recorder.end_waits()

    async with asyncio.timeout(PATIENCE_S / 2):
        assert (await waits).entries == ()
        assert (await recorder.answer(question)).entries == ()
    await recorder.stop()


@on_a_loop
async def test_whoever_waits_for_some_of_it_is_not_answered_with_nothing(tmp_path: Path) -> None:
    """Or whoever follows asks again without end."""
    recorder = Recorder(tmp_path, steady())
    recorder.start()
    recorder.note(happening("long ago", "p1"))
    await recorder.stop()
    questions = (
        TimelineQuery(after=0, about=("p2",), wait_s=40.0),
        TimelineQuery(after=0, since_s=WALL_S + 2.5, wait_s=40.0),
    )
    waiting = [asyncio.create_task(recorder.answer(each)) for each in questions]
    recorder.note(happening("of another", "p1"))
    while recorder.newest < 2:
        await asyncio.sleep(0.01)
    recorder.note(happening("meant", "p2"))

    async with asyncio.timeout(PATIENCE_S):
        found = [await each for each in waiting]

    assert [[entry.words for entry in each.entries] for each in found] == [["meant"], ["meant"]]
    await recorder.stop()


@on_a_loop
async def test_what_is_not_in_memory_any_more_is_read_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_IN_MEMORY", 4)
    recorder = Recorder(tmp_path, steady())
    recorder.start()
    recorder.note(*(happening(str(number), f"p{number}") for number in range(8)))
    await recorder.stop()

    assert await words(recorder, limit=3) == ["7", "6", "5"]
    assert await words(recorder, before=4, limit=2) == ["2", "1"]
    assert await words(recorder, after=6) == ["7", "6"]
    assert await words(recorder, about=("p2",)) == ["2"]
    assert await words(recorder, about=("edge-1", "p2")) == ["2"]
    assert await words(recorder, about=("n1", "stranger")) == []
    assert await words(recorder, since_s=WALL_S + 100) == []


@on_a_loop
async def test_a_disk_that_takes_nothing_is_said_and_what_waited_is_written_later(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "state"
    folder.write_text("in the way")
    recorder = Recorder(folder, steady())
    recorder.start()
    recorder.note(happening("one"))
    await recorder.stop()
    assert "write" in recorder.trouble
    assert await words(recorder) == ["one"]

    folder.unlink()
    recorder.note(happening("two"))
    await recorder.stop()

    assert recorder.trouble == ""
    assert [each.happening.words for each in read_all(folder)] == ["one", "two"]


@on_a_loop
async def test_a_file_of_a_later_limpet_is_left_alone(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, steady())
    recorder.start()
    recorder.note(happening("one"))
    await recorder.stop()
    from limpet.base.records.codec import encode_record

    newer = encode_record(b"LMTe", 99, 7, b"of another format")
    (tmp_path / NEWER).write_bytes(newer)

    recorder = Recorder(tmp_path, steady())
    recorder.start()
    recorder.note(happening("two"))
    await recorder.stop()

    assert "format 99" in recorder.trouble
    assert (tmp_path / NEWER).read_bytes() == newer
    assert await words(recorder) == ["two"]


@on_a_loop
async def test_a_clock_that_is_set_is_an_entry_of_its_own(tmp_path: Path) -> None:
    moments = iter(
        [
            Moment("boot1", 1.0, 100.0, Clock.FREE),
            Moment("boot1", 2.0, WALL_S, Clock.KEPT),
            Moment("boot1", 3.0, WALL_S + 1, Clock.KEPT),
        ]
    )
    recorder = Recorder(tmp_path, lambda: next(moments))
    recorder.start()
    for each in ("one", "two"):
        recorder.note(happening(each))
        await recorder.stop()

    entries = (await recorder.answer(TimelineQuery())).entries

    assert [each.kind for each in entries] == ["path", "clock", "path"]
    assert "set forward" in entries[1].words
    assert entries[2].clock is Clock.MENDED
    assert entries[2].at_s == WALL_S - 1


@on_a_loop
async def test_it_lies_on_the_disk_before_long_and_a_flood_is_few_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from limpet.base.disk import Disk

    syncs = []
    monkeypatch.setattr(Disk, "fdatasync", lambda self, fd: syncs.append(fd))
    monkeypatch.setattr(recording, "TOGETHER_S", 0.001)
    recorder = Recorder(tmp_path, steady())
    recorder.start()
    for number in range(40):
        recorder.note(happening(str(number), f"p{number}"))
        async with asyncio.timeout(PATIENCE_S):
            while recorder.newest <= number:
                await asyncio.sleep(0.001)
    async with asyncio.timeout(PATIENCE_S):
        while len(read_all(tmp_path)) < 40:
            await asyncio.sleep(0.01)
    assert syncs == []

    await recorder.stop()

    assert len(syncs) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"limit": 0}, "limit 0: from 1 to"),
        ({"wait_s": 1000}, "wait_s 1000"),
        ({"after": "x"}, "Expected `int | null`, got `str`"),
        ({"befor": 1}, "unknown field `befor`"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(LimpetError, match=words):
        asked_of(arguments)


def test_a_verb_may_say_node_for_what_it_is_about() -> None:
    assert asked_of({"node": "n1", "before": None}).about == ("n1",)
