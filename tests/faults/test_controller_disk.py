"""A real controller on a disk that is full, and its database after a cut of the power."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import subprocess
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.base.errors import LimpetError
from limpet.cluster.api import Code, InterfaceAddresses
from limpet.cluster.kinds import GRANT
from limpet.controller.store.database import connect, make_database
from limpet.controller.store.interface import Delete, Item, StorePut
from limpet.controller.store.sqlite import SqliteStore
from tests.controller.machines import (
    Controller,
    Node,
    Refusal,
    join_all,
    of_kind,
    own_grant,
    until_bookmark,
)
from tests.effort import examples

_DISK = 'mount -t tmpfs -o size=4m limpet-test "$0" && echo up && exec cat'


@dataclass(frozen=True)
class OnDisk:
    """A controller, and the process that holds the disk: there for them alone."""

    controller: Controller
    holder: int

    @property
    def filler(self) -> Path:
        return Path(f"/proc/{self.holder}/root{self.controller.database.parent}/filler")

    def fill(self) -> None:
        with open(self.filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[OnDisk]:
    """Its database is on a disk of 4 MiB, which goes when the test ends."""
    controller = Controller(tmp_path / "c")
    state_dir = controller.database.parent
    state_dir.mkdir(parents=True)
    with subprocess.Popen(
        ["unshare", "-m", "--propagation", "slave", "sh", "-c", _DISK, str(state_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:  # ends when the pipe to it is closed
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        controller.prefix = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--"]
        controller.start()
        yield OnDisk(controller, holder.pid)
        controller.stop()


async def refused(work: Awaitable[Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await work
    return caught.value


def test_on_a_full_disk_what_cannot_be_written_is_refused_and_the_rest_goes_on(
    on_disk: OnDisk,
) -> None:
    controller = on_disk.controller

    async def body() -> None:
        token = controller.token()
        a, b = await join_all(controller, "a", "b")
        await b.publish()
        async with a.watch() as lines:
            before = await until_bookmark(lines)
            on_disk.fill()

            # The log of the database has some room of its own: until that is used up.
            refusal: Refusal | None = None
            segments = len(a.grant.segments)
            for sequence in range(1, 5000):
                try:
                    await b.publish(sequence=sequence + 1)
                except Refusal as error:
                    refusal = error
                    acknowledged = sequence
                    break
            assert refusal is not None
            assert (refusal.status, refusal.code) == (503, Code.TRY_AGAIN)
            assert str(controller.database) in refusal.refused.error
            assert "make room" in refusal.refused.error
            pods = [InterfaceAddresses("n", "default", "p" * 200, "eth0", ("10.0.0.1",))]
            for work in (
                a.request_segments(4),
                a.report(1, pods * 200, None),
                Node(controller.url, "c").join(token),
            ):
                assert (await refused(work)).code is Code.TRY_AGAIN
            with pytest.raises(LimpetError, match="make room"):
                controller.ask("node.label", node="a", add={"site": "north"})

            assert own_grant((await a.hello()).documents) == a.sealed
            shown = {each["name"]: each for each in controller.ask("node.list")["nodes"]}
            assert set(shown) == {"a", "b"}
            assert shown["b"]["presence_sequence"] == acknowledged
            assert shown["a"]["labels"] == {}
            assert len(shown["a"]["segments"]) == segments
            async with b.watch() as other:
                assert len(await until_bookmark(other)) == len(before)

            on_disk.filler.unlink()
            assert len((await a.request_segments(4)).segments) == segments + 1
            assert await b.publish(sequence=acknowledged + 1) == acknowledged + 1
            await Node(controller.url, "c").join(token)
            names = set()
            async for line in lines:  # the same watch, all the time
                if (sealed := of_kind(line, GRANT)) is not None:
                    names.add(a.open(sealed).name)
                if "c" in names:
                    break
        await asyncio.gather(a.close(), b.close())

    asyncio.run(body())
    assert "Traceback" not in controller.log.read_text()


def test_a_controller_that_is_started_on_a_full_disk_tells_what_it_knows(on_disk: OnDisk) -> None:
    controller = on_disk.controller

    async def body() -> None:
        a, b = await join_all(controller, "a", "b")
        on_disk.fill()
        await asyncio.to_thread(controller.kill)
        await asyncio.to_thread(controller.start)
        await asyncio.gather(a.close(), b.close())

        assert own_grant((await a.hello()).documents) == a.sealed
        async with b.watch() as lines:
            found = [
                a.open(sealed).name
                for line in await until_bookmark(lines)
                if (sealed := of_kind(line, GRANT)) is not None
            ]
        assert sorted(found) == ["a", "b"]
        on_disk.filler.unlink()
        await a.request_segments(4)
        await asyncio.gather(a.close(), b.close())

    asyncio.run(body())


# The power is cut while the database is written.

_SECTOR = 512
_LOG_HEADER_BYTES = 32


@dataclass(frozen=True)
class Moment:
    """What is on the disk when a write has been answered, and what the store holds then."""

    database: bytes
    log: bytes
    items: dict[str, bytes]


Recording = list[Moment]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Large writes, so that the log is taken into the database and begun anew several times."""
    path = tmp_path_factory.mktemp("recorded") / "controller.db"
    return asyncio.run(_record(path))


async def _record(path: Path) -> Recording:
    draw = random.Random(5)
    store = SqliteStore(path, kept_deletions=4, log_pages=60)
    versions: dict[str, str] = {}
    items: dict[str, bytes] = {}
    moments = [_moment(path, items)]
    for number in range(120):
        name = f"n{draw.randrange(12)}"
        value = draw.randbytes(draw.choice((40, 3_000, 60_000)))
        if name not in versions:
            (versions[name],) = await store.write([StorePut("a", name, value)])
            items[name] = value
        elif number % 7 == 0:
            await store.write([Delete("a", name, versions.pop(name))])
            del items[name]
        else:
            (versions[name],) = await store.write([StorePut("a", name, value, versions[name])])
            items[name] = value
        moments.append(_moment(path, items))
    await store.close()
    return moments


def _moment(path: Path, items: dict[str, bytes]) -> Moment:
    log = Path(f"{path}-wal")
    return Moment(path.read_bytes(), log.read_bytes() if log.exists() else b"", dict(items))


def _torn(before: bytes, after: bytes, draw: random.Random) -> bytes:
    """Some sectors are written, some are not; the file has some length between the two."""
    length = draw.choice(
        (len(before), len(after), draw.randint(*sorted((len(before), len(after)))))
    )
    found = bytearray(length)
    keep = draw.choice((0.0, 0.05, 0.5, 0.95, 1.0))
    for start in range(0, length, _SECTOR):
        source = after if draw.random() < keep else before
        part = source[start : min(start + _SECTOR, length)]
        found[start : start + len(part)] = part
    return bytes(found)


async def _read(path: Path) -> dict[str, bytes]:
    """As the next controller finds it; and it can write."""
    store = SqliteStore(path, kept_deletions=4)
    try:
        items = (await store.listing("a")).items
        (version,) = await store.write([StorePut("b", "x", b"1")])
        assert await store.get("b", "x") == Item("b", "x", b"1", version)
    finally:
        await store.close()
    return {item.name: item.value for item in items}


def _found(folder: Path, database: bytes, log: bytes) -> dict[str, bytes]:
    path = folder / "controller.db"
    for old in folder.glob("controller.db*"):
        old.unlink()
    path.write_bytes(database)
    Path(f"{path}-wal").write_bytes(log)
    return asyncio.run(_read(path))


def test_the_recording_has_the_log_taken_in_and_begun_anew(recording: Recording) -> None:
    pairs = list(itertools.pairwise(recording))
    assert sum(before.database != after.database for before, after in pairs) >= 3
    assert sum(before.log[:32] != after.log[:32] for before, after in pairs[1:]) >= 2


@settings(max_examples=examples(150), deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), seed=st.integers(0, 1 << 32), late=st.booleans())
def test_after_a_cut_of_the_power_all_that_was_answered_is_there(
    recording: Recording,
    tmp_path_factory: pytest.TempPathFactory,
    place: float,
    seed: int,
    late: bool,
) -> None:
    number = int(place * (len(recording) - 1))
    before, after = recording[number], recording[number + 1]
    draw = random.Random(seed)
    folder = tmp_path_factory.getbasetemp() / "cut"
    folder.mkdir(exist_ok=True)

    if late:
        # SQLite syncs the log, then takes it into the database.
        # Source: sqlite.org/wal.html, 'Checkpointing'.
        found = _found(folder, _torn(before.database, after.database, draw), after.log)
        assert found == after.items
    else:
        # A log that is begun anew has its header synced before anything else of it is written.
        # Source: sqlite3 wal.c, walFrames, syncHeader.
        begun = after.log[:_LOG_HEADER_BYTES] + before.log[_LOG_HEADER_BYTES:]
        found = _found(folder, before.database, _torn(begun, after.log, draw))
        assert found in (before.items, after.items)


def test_commits_wait_for_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "controller.db"
    make_database(path)
    with contextlib.closing(connect(path)) as connection:
        full = 2  # Source: sqlite.org/pragma.html#pragma_synchronous
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (full,)
