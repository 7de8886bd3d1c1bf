"""Power loss at any instant loses no acknowledged document of the snapshot and invents none.

The disk and its model are those of `test_power_loss`: every file operation of a seeded workload is
recorded, the power is cut after each, and what the disk may hold then is opened and compared.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from limpet.cluster.documents import Document, Known
from limpet.cluster.snapshot.file import SnapshotFile
from tests.faults.test_power_loss import (
    SAMPLES,
    ModelDisk,
    Operation,
    RecordingDisk,
    folder,
)
from tests.unit.cluster_values import NOTHING, PINNED, documents, grant, known_of, merged
from tests.unit.ipam.ledgers import write_files

__all__ = ["folder"]

NODES = range(1, 6)
OWN_UID = grant(1).uid


@dataclass
class Run:
    """What was put, what the disk did, and what was said to be on it."""

    operations: list[Operation] = field(default_factory=list)
    put: list[tuple[int, Known]] = field(default_factory=list)
    """(operations done before, all that was put until then)."""
    acknowledged: list[tuple[int, Known]] = field(default_factory=list)
    """(operations done, what was durable then)."""

    def add(self, news: Known) -> None:
        self.put.append((len(self.operations), merged(self.all, news)))

    @property
    def all(self) -> Known:
        return self.put[-1][1] if self.put else NOTHING

    def ask(self, file: SnapshotFile) -> Future[None]:
        known, future = self.all, file.durable()

        def told(future: Future[None]) -> None:
            if future.exception() is None:
                self.acknowledged.append((len(self.operations), known))

        future.add_done_callback(told)
        return future

    def bounds(self, cut: int) -> tuple[Known, Known]:
        """What must be found, and what may be, when the power goes after `cut` operations."""
        least, most = NOTHING, NOTHING
        for done, known in self.acknowledged:
            least = merged(least, known) if done <= cut else least
        for done, known in self.put:
            most = known if done <= cut else most
        return least, most


def run_workload(path: Path, seed: int, *, steps: int, forgotten: str = "") -> Run:
    """Nodes come and change and go; the agent restarts and is killed; the disk is ill."""
    choice, run = random.Random(seed), Run()
    path.parent.mkdir()
    disk = RecordingDisk(run.operations)
    file = opened(path, disk)
    file.read(PINNED)
    disk.forgotten = forgotten
    for step in range(steps):
        disk.full = choice.random() < (0.7 if disk.full else 0.1)
        disk.sick = choice.random() < (0.7 if disk.sick else 0.2)
        news = news_of(choice, step)
        run.add(news)
        file.put(news)
        future = run.ask(file)
        if choice.random() < 0.6:
            future.exception(10)
        action = choice.random()
        if action < 0.18 and not forgotten:
            disk.killed = action < 0.12
            file.close()
            disk = RecordingDisk(run.operations)
            file = opened(path, disk)
            found, problems = file.read(PINNED)
            assert problems == []
            run.put.append((len(run.operations), found))
            assert_between(found, *run.bounds(len(run.operations)))
            run.ask(file)
    disk.full = disk.sick = False
    run.ask(file)
    file.close()
    return run


def opened(path: Path, disk: RecordingDisk | None = None) -> SnapshotFile:
    return SnapshotFile(path, own_uid=OWN_UID, disk=disk, retry_s=0.03, compact_bytes=2_000)


def news_of(choice: random.Random, step: int) -> Known:
    nodes: dict[int, list[Document]] = {}
    for number in choice.sample(NODES, choice.randint(1, 3)):
        generation = step // 4 + choice.randint(0, 1)
        tombstone = number == 5 and step > 20
        sequence = None if tombstone else step
        nodes[number] = documents(
            number, sequence=sequence, generation=generation, tombstone=tombstone
        )
    network = step // 6 + 1 if choice.random() < 0.2 else None
    return known_of(*nodes.values(), generation=network)


def assert_between(found: Known, least: Known, most: Known) -> None:
    assert merged(least, found) == found, "something acknowledged is lost"
    assert merged(found, most) == most, "something is found that nobody put"


def judge(run: Run, cut: int, files: Mapping[str, bytes], path: Path) -> str:
    """What is wrong with what is made of these files; empty: nothing."""
    write_files(path.parent, files)
    try:
        with reading(path) as (found, problems):
            pass
        with reading(path) as (again, problems_again):
            pass
    finally:
        shutil.rmtree(path.parent)
    if problems or problems_again:
        return f"cut {cut}: {[*problems, *problems_again]}"
    if again != found:
        return f"cut {cut}: opened and closed, it says something else"
    try:
        assert_between(found, *run.bounds(cut))
    except AssertionError as error:
        return f"cut {cut} of {len(run.operations)}: {error}"
    return ""


@contextmanager
def reading(path: Path) -> Iterator[tuple[Known, list[str]]]:
    file = opened(path)
    try:
        yield file.read(PINNED)
    finally:
        file.close()


def outcomes(run: Run, samples: int, seed: int) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Every cut with the oldest, the newest and some more states that the disk may have then."""
    choice, disk = random.Random(seed), ModelDisk()
    for cut in range(len(run.operations) + 1):
        if cut:
            disk.apply(run.operations[cut - 1])
        found = [disk.oldest(), disk.newest(), *(disk.sample(choice) for _ in range(samples))]
        different = {tuple(sorted(files.items())): files for files in found}
        for files in different.values():
            yield cut, files


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_acknowledged_document_is_lost_and_none_is_invented(folder: Path, seed: int) -> None:
    run = run_workload(folder / "cluster" / "snapshot.log", seed, steps=45)
    kinds = [operation.kind for operation in run.operations if operation.target != "own.log"]
    assert kinds.count("rename") > 2
    for cut, files in outcomes(run, samples=SAMPLES, seed=seed):
        assert judge(run, cut, files, folder / "cut" / "snapshot.log") == ""


@pytest.mark.parametrize("forgotten", ["fdatasync", "fsync_folder"])
def test_the_check_notices_when_a_sync_is_left_out(folder: Path, forgotten: str) -> None:
    path = folder / "cluster" / "snapshot.log"
    run = run_workload(path, 1, steps=30, forgotten=forgotten)
    faults = (
        judge(run, cut, files, folder / "cut" / "snapshot.log")
        for cut, files in outcomes(run, samples=4, seed=1)
    )
    assert any(faults)
