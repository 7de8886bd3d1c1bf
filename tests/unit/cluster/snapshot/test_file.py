from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.base.bounds.words import SNAPSHOT
from limpet.base.disk import Disk
from limpet.base.errors import StorageError
from limpet.cluster.documents import Known, Source
from limpet.cluster.keys import public_key_of
from limpet.cluster.kinds import POLICY
from limpet.cluster.kinds.policy import SignedPolicy
from limpet.cluster.replica import Replica
from limpet.cluster.seal import seal
from limpet.cluster.snapshot import completeness
from limpet.cluster.snapshot.file import SnapshotFile
from limpet.cluster.snapshot.log import HEADER_BYTES, VERSION
from limpet.cluster.snapshot.writer import read_file
from tests.unit.cluster_values import (
    CLUSTER_KEY,
    NOTHING,
    PINNED,
    documents,
    grant,
    knowledge,
    known_of,
    merged,
    network,
)
from tests.waiting import PATIENCE_S

OWN_UID = grant(1).uid
NAME = "snapshot.log"


class IllDisk(Disk):
    """Refuses what is written to files whose name contains one of `refused`."""

    def __init__(self) -> None:
        self.refused: tuple[str, ...] = ()
        self.error = errno.ENOSPC
        self.unforeseen: Exception | None = None
        self.refusals = threading.Semaphore(0)
        self.renamed = threading.Semaphore(0)
        self._names: dict[int, str] = {}

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._names[fd] = path.name
        return fd

    def write(self, path: Path, content: bytes) -> None:
        self._ask(path.name)
        super().write(path, content)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        if data and fd in self._names:
            self._ask(self._names[fd])
        super().pwrite(fd, data, offset)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.renamed.release()

    def _ask(self, name: str) -> None:
        if any(part in name for part in self.refused):
            self.refusals.release()
            raise self.unforeseen or OSError(self.error, "no space left on device")


@contextmanager
def opened(
    folder: Path, *, disk: Disk | None = None, pinned: bytes = PINNED, **options: float
) -> Iterator[tuple[SnapshotFile, Known, list[str]]]:
    file = SnapshotFile(folder / NAME, own_uid=OWN_UID, disk=disk, **options)  # type: ignore[arg-type]
    try:
        yield file, *file.read(pinned)
    finally:
        file.close()


def put(file: SnapshotFile, snapshot: Known) -> None:
    file.put(snapshot)
    file.durable().result(10)


def write(folder: Path, *parts: Known) -> None:
    """Each is a group of its own."""
    with opened(folder) as (file, _, _):
        for part in parts:
            put(file, part)


def read(folder: Path) -> tuple[Known, list[str]]:
    with opened(folder) as (_, snapshot, problems):
        return snapshot, problems


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(knowledge(), max_size=3), max_size=3), st.sampled_from([0, 1 << 20]))
def test_what_is_read_is_the_merge_of_all_that_was_put(
    tmp_path_factory: pytest.TempPathFactory, starts: list[list[Known]], compact_bytes: int
) -> None:
    folder, expected = tmp_path_factory.mktemp("cluster"), NOTHING
    for parts in starts:
        with opened(folder, compact_bytes=compact_bytes) as (file, found, problems):
            assert found == expected
            assert problems == []
            for part in parts:
                expected = merged(expected, part)
                file.put(part)
    assert read(folder) == (expected, [])


def test_a_node_that_has_heard_nothing_writes_nothing(tmp_path: Path) -> None:
    assert read(tmp_path) == (NOTHING, [])
    assert list(tmp_path.iterdir()) == []


def test_what_the_power_cut_is_cut_off_without_a_word(tmp_path: Path) -> None:
    before, news = known_of(documents(1), documents(2), generation=1), known_of(documents(3))
    write(tmp_path, before, news)
    whole = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(whole[:-40])
    assert read(tmp_path) == (before, [])
    write(tmp_path, news)
    assert read(tmp_path) == (merged(before, news), [])


def test_damage_costs_one_document_and_the_damaged_file_is_kept(tmp_path: Path) -> None:
    parts = [known_of(documents(number)) for number in (2, 3, 4)]
    write(tmp_path, *parts)
    flip(tmp_path / NAME, HEADER_BYTES + 60)
    damaged = (tmp_path / NAME).read_bytes()

    found, problems = read(tmp_path)

    assert found == merged(parts[1], parts[2])
    assert [NAME in text and f"{NAME}.damaged-1" in text for text in problems] == [True]
    assert (tmp_path / f"{NAME}.damaged-1").read_bytes() == damaged
    assert read(tmp_path) == (found, [])


@pytest.mark.parametrize("content", [b"", b"LMSh", b"\0" * 5000, b"{}"])
def test_a_log_that_is_ruined_is_named_and_the_node_goes_on_with_its_own_grant(
    tmp_path: Path, content: bytes
) -> None:
    own = known_of(documents(1), generation=3)
    write(tmp_path, merged(own, known_of(documents(2, sequence=1))))
    (tmp_path / NAME).write_bytes(content)

    found, problems = read(tmp_path)

    assert found == own
    assert len(problems) == 1
    assert read(tmp_path) == (own, [])


def test_the_own_grant_is_taken_over_when_the_log_is_gone(tmp_path: Path) -> None:
    own = known_of(documents(1, generation=7, tombstone=True), generation=3)
    write(tmp_path, own)
    (tmp_path / NAME).unlink()
    assert read(tmp_path) == (own, [])
    (tmp_path / "own.log").unlink()
    assert read(tmp_path) == (own, [])
    assert (tmp_path / "own.log").exists()


def test_a_damaged_copy_of_the_own_grant_is_named_and_made_again(tmp_path: Path) -> None:
    own = known_of(documents(1), generation=3)
    write(tmp_path, own)
    good = (tmp_path / "own.log").read_bytes()
    middle = len(good) // 2
    other = b"A" if good[middle : middle + 1] != b"A" else b"B"
    for bad in (b"{", good[:middle] + other + good[middle + 1 :], good[:-30]):
        (tmp_path / "own.log").write_bytes(bad)
        found, problems = read(tmp_path)
        assert found == own
        assert "own.log" in " ".join(problems)
        assert (tmp_path / "own.log").read_bytes() == good


def test_a_later_format_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpet.cluster.snapshot.log.VERSION", VERSION + 1)
    write(tmp_path, known_of(documents(1)))
    monkeypatch.undo()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StorageError, match=r"read .*snapshot\.log: it has format 2"):
        SnapshotFile(tmp_path / NAME, own_uid=OWN_UID)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_log_that_the_disk_cannot_read_costs_no_more_than_a_damaged_one(tmp_path: Path) -> None:
    own = known_of(documents(1), generation=3)
    write(tmp_path, own)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to("/proc/self/mem")  # whose first page is an I/O error
    found, problems = read(tmp_path)
    assert found == own
    assert len(problems) == 1
    assert not (tmp_path / NAME).is_symlink()
    assert read(tmp_path) == (own, [])


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(StorageError, match=r"read .*snapshot\.log: not a regular file"):
        SnapshotFile(tmp_path / NAME, own_uid=OWN_UID)


def test_documents_of_another_cluster_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, known_of(documents(1), documents(2), generation=1))
    with opened(tmp_path, pinned=public_key_of(bytes(31) + b"\x09")) as (_, found, problems):
        assert list(found) == []
        assert "nobody that this node trusts" in " ".join(problems)


def test_a_log_begins_anew_when_most_of_it_was_replaced(tmp_path: Path) -> None:
    disk = IllDisk()
    with opened(tmp_path, disk=disk, compact_bytes=1_000) as (file, _, _):
        for sequence in range(40):
            put(file, known_of(documents(2, sequence=sequence)))
    assert (tmp_path / NAME).stat().st_size < 4_000
    assert read(tmp_path) == (known_of(documents(2, sequence=39)), [])


def test_what_a_full_disk_refuses_is_kept_and_written_when_there_is_room(tmp_path: Path) -> None:
    first, second = known_of(documents(1), generation=1), known_of(documents(2, sequence=4))
    disk = IllDisk()
    with opened(tmp_path, disk=disk, retry_s=0.01) as (file, _, _):
        put(file, first)
        disk.refused = (NAME,)
        file.put(second).result(10)
        with pytest.raises(StorageError, match=r"snapshot\.log: no space left .*free space"):
            file.durable().result(10)
        assert "no space left" in file.trouble
        assert read(tmp_path)[0] == first
        disk.refused = ()
        file.durable().result(10)
        assert file.trouble == ""
    assert read(tmp_path) == (merged(first, second), [])


@pytest.mark.parametrize("unforeseen", [None, RuntimeError("nobody has foreseen this")])
def test_what_was_refused_is_tried_again_though_nobody_asks(
    tmp_path: Path, unforeseen: Exception | None
) -> None:
    disk = IllDisk()
    disk.refused, disk.unforeseen = (NAME,), unforeseen
    with opened(tmp_path, disk=disk, retry_s=0.01) as (file, _, _):
        file.put(documents(2))
        for _ in range(3):
            assert disk.refusals.acquire(timeout=PATIENCE_S)
        disk.refused = ()
        assert disk.renamed.acquire(timeout=PATIENCE_S)
        file.durable().result(10)
    assert read(tmp_path)[0] == known_of(documents(2))


def test_no_room_to_begin_anew_stops_nothing(tmp_path: Path) -> None:
    disk = IllDisk()
    with opened(tmp_path, disk=disk, compact_bytes=1_000, retry_s=0.01) as (file, _, _):
        put(file, known_of(documents(2, sequence=0)))
        assert disk.renamed.acquire(timeout=PATIENCE_S)
        disk.refused = (".new",)
        for sequence in range(1, 12):
            put(file, known_of(documents(2, sequence=sequence)))
        assert disk.refusals.acquire(timeout=PATIENCE_S)
        assert not (tmp_path / f"{NAME}.new").exists()
        assert read(tmp_path)[0] == known_of(documents(2, sequence=11))
        disk.refused = ()
        assert disk.renamed.acquire(timeout=PATIENCE_S)


def test_no_room_for_the_copy_of_the_own_grant_is_told_and_the_log_counts(tmp_path: Path) -> None:
    disk, own = IllDisk(), known_of(documents(1), generation=1)
    disk.refused = ("own.log",)
    with opened(tmp_path, disk=disk, retry_s=60) as (file, _, _):
        put(file, own)
        assert disk.refusals.acquire(timeout=PATIENCE_S)
        put(file, own)
        assert disk.refusals.acquire(timeout=PATIENCE_S)
    assert "own.log" in file.trouble
    assert read(tmp_path) == (own, [])


def test_what_was_put_before_the_end_is_on_the_disk_after_it(tmp_path: Path) -> None:
    file = SnapshotFile(tmp_path / NAME, own_uid=OWN_UID)
    file.read(PINNED)
    futures = [file.put(documents(number, sequence=1)) for number in (1, 2, 3)]
    file.close()
    assert all(future.done() for future in futures)
    assert set(read(tmp_path)[0].of("presence")) == {grant(number).uid for number in (1, 2, 3)}
    file.put(documents(4))
    with pytest.raises(StorageError, match="closed"):
        file.durable().result(10)


def test_the_highest_network_is_read_back(tmp_path: Path) -> None:
    with opened(tmp_path) as (file, _, _):
        for generation in (1, 2, 3):
            file.put(known_of(generation=generation))
    assert read(tmp_path)[0].value("network", "network") == network(3)


def test_a_file_over_its_bound_is_not_begun_to_read(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.log"
    with path.open("wb") as file:
        file.truncate(SNAPSHOT.most + 1)

    with pytest.raises(OSError, match="too large") as caught:
        read_file(path)

    assert caught.value.errno == errno.EFBIG


def test_policies_and_tombstones_are_kept_twice_and_where_both_copies_are_damaged_it_is_noted(
    tmp_path: Path,
) -> None:
    policy = seal(POLICY, SignedPolicy("NetworkPolicy/shop/web", 5, {}), CLUSTER_KEY)
    precious = [*documents(2, tombstone=True), policy]
    whole = known_of(precious, documents(3), documents(1), generation=1)
    write(tmp_path, whole)
    own = (tmp_path / "own.log").read_bytes()
    one = bytes((tmp_path / NAME).read_bytes())

    for each in precious:
        (tmp_path / NAME).write_bytes(one)
        flip(tmp_path / NAME, one.index(each.sealed.body))
        found, problems = read(tmp_path)
        assert found == whole
        assert "damaged" in problems[0]
        assert not completeness.is_doubted(tmp_path)

    (tmp_path / NAME).write_bytes(one)
    flip(tmp_path / NAME, one.index(policy.sealed.body))
    flip(tmp_path / "own.log", own.index(policy.sealed.body))
    assert read(tmp_path)[0].find(policy.key) is None
    assert completeness.is_doubted(tmp_path)


def test_damage_of_both_copies_is_noted_though_one_may_have_been_written_as_the_power_went(
    tmp_path: Path,
) -> None:
    policy = seal(POLICY, SignedPolicy("NetworkPolicy/shop/web", 5, {}), CLUSTER_KEY)
    begun, later = known_of(documents(1), generation=1), known_of(documents(2))
    write(tmp_path, begun, known_of([policy]), later)
    own = tmp_path / "own.log"
    assert own.read_bytes().index(policy.sealed.body) > own.stat().st_size - 500, "it is its last"
    for path in (tmp_path / NAME, own):
        flip(path, path.read_bytes().index(policy.sealed.body))

    with opened(tmp_path) as (file, found, problems):
        assert found.find(policy.key) is None
        assert "damaged" in problems[0]
        assert file.is_doubted


def test_damage_is_noted_where_the_second_copy_lags_behind(tmp_path: Path) -> None:
    policy, later = (
        seal(POLICY, SignedPolicy(f"NetworkPolicy/shop/{name}", 5, {}), CLUSTER_KEY)
        for name in ("web", "db")
    )
    write(tmp_path, known_of(documents(1), generation=1))
    disk = IllDisk()
    disk.refused = ("own.log",)
    with opened(tmp_path, disk=disk, retry_s=60) as (file, _, _):
        for each in (policy, later):
            put(file, known_of([each]))
        assert disk.refusals.acquire(timeout=PATIENCE_S)
    log = tmp_path / NAME
    flip(log, log.read_bytes().index(policy.sealed.body))

    with opened(tmp_path) as (file, found, _):
        assert (found.find(policy.key), found.find(later.key)) == (None, later)
        assert file.is_doubted
    assert completeness.is_doubted(tmp_path)


@pytest.mark.parametrize("damage", ["", "flip", "unlink", "full"])
def test_that_the_second_copy_lags_behind_is_known_at_the_next_start_and_matters_where_one_is_lost(
    tmp_path: Path, damage: str
) -> None:
    """What a full disk has taken half of was told to nobody: that closes no pods."""
    policy = seal(POLICY, SignedPolicy("NetworkPolicy/shop/web", 5, {}), CLUSTER_KEY)
    write(tmp_path, known_of(documents(1), generation=1))
    disk = IllDisk()
    disk.refused = ("own.log",)
    with opened(tmp_path, disk=disk, retry_s=60) as (file, _, _):
        put(file, known_of([policy]))
        put(file, known_of(documents(2)))
        assert disk.refusals.acquire(timeout=PATIENCE_S)
    log = tmp_path / NAME
    if damage == "flip":
        flip(log, log.read_bytes().index(policy.sealed.body))
    elif damage == "unlink":
        log.unlink()
    elif damage == "full":
        log.write_bytes(log.read_bytes() + log.read_bytes()[-60:])

    is_lost = damage in ("flip", "unlink")
    with opened(tmp_path) as (file, found, _):
        assert file.is_doubted == (found.find(policy.key) is None) == is_lost
        file.durable().result(PATIENCE_S)
    with opened(tmp_path) as (file, _, _):
        assert file.is_doubted == is_lost
    assert not (tmp_path / completeness.LAG_NAME).exists()


@pytest.mark.parametrize("is_joined", [True, False])
def test_that_a_node_has_joined_and_neither_copy_is_there_is_noted_and_told(
    tmp_path: Path, is_joined: bool
) -> None:
    write(tmp_path, known_of(documents(1), generation=1))
    for name in (NAME, "own.log"):
        (tmp_path / name).unlink()
    file = SnapshotFile(tmp_path / NAME, own_uid=OWN_UID, is_joined=is_joined)
    known, problems = file.read(PINNED)
    file.close()
    assert known == NOTHING
    assert ["gone" in problem for problem in problems] == [True] * is_joined
    assert file.is_doubted is completeness.is_doubted(tmp_path) is is_joined


def test_doubt_counts_also_where_the_disk_takes_nothing_and_no_damage_goes_before_it_is_kept(
    tmp_path: Path,
) -> None:
    policy = seal(POLICY, SignedPolicy("NetworkPolicy/shop/web", 5, {}), CLUSTER_KEY)
    write(tmp_path, known_of([policy], documents(1), generation=1))
    for name in (NAME, "own.log"):
        flip(tmp_path / name, (tmp_path / name).read_bytes().index(policy.sealed.body))
    damaged = (tmp_path / NAME).read_bytes()
    in_the_way = tmp_path / f"{completeness.DOUBT_NAME}.new"
    in_the_way.mkdir()

    file = SnapshotFile(tmp_path / NAME, own_uid=OWN_UID)
    replica = Replica(file, PINNED)
    assert not replica.has_heard_all
    with pytest.raises(StorageError, match=completeness.DOUBT_NAME):
        file.durable().result(10)
    assert completeness.DOUBT_NAME in file.trouble
    assert (tmp_path / NAME).read_bytes() == damaged
    in_the_way.rmdir()
    file.durable().result(10)
    assert completeness.is_doubted(tmp_path)
    assert not file.trouble
    assert (tmp_path / NAME).read_bytes() != damaged
    replica.offer([policy.sealed], source=Source.NEIGHBOUR)
    assert not replica.has_heard_all, "a neighbour may lack some too"
    asyncio.run(replica.hear_all())
    assert not completeness.is_doubted(tmp_path)
    file.close()


def test_doubt_ends_where_all_was_told_though_nobody_waits_for_the_disk_or_it_refuses_at_first(
    tmp_path: Path,
) -> None:
    write(tmp_path, known_of(documents(1), generation=1))
    completeness.doubt(tmp_path)
    disk = IllDisk()
    disk.refused = (NAME,)
    with closing(SnapshotFile(tmp_path / NAME, own_uid=OWN_UID, disk=disk, retry_s=60)) as file:
        replica = Replica(file, PINNED)
        replica.offer([each.sealed for each in documents(2)], source=Source.CLOUD)

        async def hear_all_and_be_cut_off() -> None:
            task = asyncio.create_task(replica.hear_all())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))

        asyncio.run(hear_all_and_be_cut_off())
        assert completeness.is_doubted(tmp_path)
        disk.refused = ()
        file.durable().result(PATIENCE_S)
    assert not completeness.is_doubted(tmp_path)
    assert not SnapshotFile(tmp_path / NAME, own_uid=OWN_UID).is_doubted


def test_a_removal_that_was_told_last_outlives_damage_at_the_end_which_is_told(
    tmp_path: Path,
) -> None:
    removal = documents(2, generation=2, tombstone=True)
    write(tmp_path, known_of(documents(1), documents(2), generation=1), known_of(removal))
    path = tmp_path / NAME
    flip(path, path.read_bytes().index(removal[0].sealed.body) + 20)
    damaged = path.read_bytes()

    found, problems = read(tmp_path)

    assert found.find(removal[0].key) == removal[0]
    (told,) = problems
    assert "its end is damaged" in told
    assert (tmp_path / f"{NAME}.damaged-1").read_bytes() == damaged
    assert read(tmp_path) == (found, [])
