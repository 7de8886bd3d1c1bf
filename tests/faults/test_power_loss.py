"""Power loss at any instant loses no acknowledged change and gives no address twice.

A seeded workload runs on a real ledger in a real folder while every file operation is recorded.
Then the power is cut after each operation, and what a disk may hold at that moment is built in a
folder of its own, opened, and compared with what the ledger had acknowledged.

The model of the disk, worse than any file system that we know:

- A folder maps names to files. Until the folder is synced each name on its own shows any of the
  states that it had since the last sync: missing, this file, that file. Syncing a file does not
  sync its name.
- A file consists of sectors of 512 bytes. Until the file is synced each sector on its own, and the
  length, shows any of the states since the last sync. So a write may be lost, torn, or on the disk
  before an earlier one to the same or another file. What lies beyond the written sectors is zero.
- What is synced stays, and writing a sector again does not damage what does not change in it.

Every cut is tried; of the states at each cut the oldest, the newest and a seeded sample.
"""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from limpet.base.addresses import Address
from limpet.base.disk import Disk
from limpet.base.errors import StorageError
from limpet.ipam.leases import Entry, Holder, PodKey
from limpet.ipam.ledger import Ledger, read_ledger
from limpet.ipam.store import Tuning
from tests.effort import effort
from tests.unit.ipam.ledgers import ranges, write_files

SECTOR_BYTES = 512
SAMPLES = effort(1, 3)
"""Of the states that a disk may have at a cut, beside the oldest and the newest."""
TUNING = Tuning(journal_bytes=8 * 1024, settle_s=0.0, retry_s=0.03)
SETS = [ranges("10.0.0.0/28"), ranges("fd00::/64")]
ADOPTED: dict[str, str] = {
    "10.0.0.5": "aaaa\r\neth0",
    "10.0.0.5_ns_pod-1": "",
    "10.0.0.6": "bbbb",
    "10.0.0.7-ns-pod-2": "",
    "fd00::7_ns_pod-2": "",
    "last_reserved_ip.0": "10.0.0.6",
}

State = dict[Address, Entry]
Picker = Callable[[int], int]
"""Which of so many states, the oldest first, the disk shows."""


@dataclass(frozen=True)
class Operation:
    kind: str
    name: str = ""
    data: bytes = b""
    offset: int = 0
    target: str = ""


class RecordingDisk(Disk):
    """Does everything, and writes down what can matter when the power goes."""

    def __init__(self, operations: list[Operation]) -> None:
        self.operations = operations
        self.forgotten = ""
        """A kind of operation that is done but, as far as the disk is concerned, was left out."""
        self.killed = False
        self.full = False
        """No room for what is written to the files of addresses; half of it gets there."""
        self.sick = False
        """Some syncs of the journal and the folder fail; what they were for may be on the disk."""
        self._fails = random.Random(len(operations))
        self._names: dict[int, str] = {}

    def note(self, operation: Operation) -> None:
        if operation.kind != self.forgotten:
            self.operations.append(operation)

    def live(self, *, sync: bool = False) -> None:
        """A killed process does nothing to its files any more."""
        if self.killed or (sync and self.sick and self._fails.random() < 0.5):
            raise OSError(errno.EIO, "killed or sick")

    def write(self, path: Path, content: bytes) -> None:
        self.live()
        full = self.full  # the workload changes it at any time
        content = content[: len(content) // 2] if full else content
        super().write(path, content)
        self.note(Operation("write", path.name, content))
        if full:
            raise OSError(errno.ENOSPC, "full")

    def fsync(self, path: Path) -> None:
        self.live()
        super().fsync(path)
        self.note(Operation("fsync", path.name))

    def fsync_folder(self, folder: Path) -> None:
        self.live(sync=True)
        Disk.fsync(self, folder)
        self.note(Operation("fsync_folder"))

    def rename(self, source: Path, target: Path) -> None:
        self.live()
        super().rename(source, target)
        self.note(Operation("rename", source.name, target=target.name))

    def unlink(self, path: Path) -> None:
        self.live()
        super().unlink(path)
        self.note(Operation("unlink", path.name))

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._names[fd] = path.name
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self.live()
        super().pwrite(fd, data, offset)
        if fd in self._names:
            self.note(Operation("pwrite", self._names[fd], data, offset))

    def fdatasync(self, fd: int) -> None:
        self.live(sync=True)
        super().fdatasync(fd)
        self.note(Operation("fdatasync", self._names[fd]))

    def close(self, fd: int) -> None:
        self._names.pop(fd, None)
        super().close(fd)


class Inode:
    """A file's states since it was synced last, the synced one first."""

    def __init__(self, content: bytes = b"") -> None:
        self.states = [content]

    def change(self, content: bytes) -> None:
        self.states.append(content)

    def sync(self) -> None:
        self.states = self.states[-1:]


@dataclass
class ModelDisk:
    """A folder's names, each with its states since the folder was synced last."""

    names: dict[str, list[Inode | None]] = field(default_factory=dict)

    def apply(self, operation: Operation) -> None:
        if operation.kind == "fsync_folder":
            self.names = {name: states[-1:] for name, states in self.names.items()}
            return
        states = self.names.setdefault(operation.name, [None])
        inode = states[-1]
        if operation.kind == "unlink":
            states.append(None)
        elif operation.kind == "rename":
            self.names.setdefault(operation.target, [None]).append(inode)
            states.append(None)
        elif operation.kind in ("fsync", "fdatasync"):
            assert inode is not None
            inode.sync()
        else:
            if inode is None:
                inode = Inode()
                states.append(inode)
            content, end = inode.states[-1], operation.offset + len(operation.data)
            if operation.kind == "pwrite":
                inode.change(content[: operation.offset] + operation.data + content[end:])
            else:
                inode.change(operation.data)

    def oldest(self) -> dict[str, bytes]:
        return self.pick(lambda count: 0)

    def newest(self) -> dict[str, bytes]:
        return self.pick(lambda count: count - 1)

    def sample(self, choice: random.Random) -> dict[str, bytes]:
        """Mostly all old, or all new, with exceptions; or any mixture."""
        bias = choice.choice([0.1, 0.5, 0.9])

        def one(count: int) -> int:
            if choice.random() < 0.3:
                return choice.randrange(count)
            return count - 1 if choice.random() < bias else 0

        return self.pick(one)

    def pick(self, one: Picker) -> dict[str, bytes]:
        files = {}
        for name, states in self.names.items():
            inode = states[one(len(states))]
            if inode is not None:
                files[name] = pick_content(inode.states, one)
        return files


def pick_content(states: list[bytes], one: Picker) -> bytes:
    """Each sector, and the length, out of any of the states."""
    if len(states) == 1:
        return states[0]
    length = len(states[one(len(states))])
    content = b""
    for start in range(0, length, SECTOR_BYTES):
        sector = states[one(len(states))][start : start + SECTOR_BYTES]
        content += sector.ljust(SECTOR_BYTES, b"\0")
    return content[:length]


@dataclass
class Run:
    """What a workload did to the disk, and what it was told."""

    operations: list[Operation] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    """The state after each change."""
    submitted: list[int] = field(default_factory=list)
    """How many operations were done before each change: the ledger's thread may be quick."""
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    """(operations done, index of the state that was durable then)."""

    def note(self, ledger: Ledger, done: int) -> None:
        self.states.append(state_of(ledger))
        self.submitted.append(done)

    def ask(self, ledger: Ledger) -> Future[None]:
        index = len(self.states) - 1
        future = ledger.durable()

        def told(future: Future[None]) -> None:
            if future.exception() is None:
                self.acknowledged.append((len(self.operations), index))

        future.add_done_callback(told)
        return future

    def possible(self, cut: int) -> list[State]:
        """The states that may be found when the power goes after `cut` operations."""
        low = max((index for done, index in self.acknowledged if done <= cut), default=0)
        high = max((i for i, done in enumerate(self.submitted) if done <= cut), default=0)
        return self.states[low : high + 1]


def state_of(ledger: Ledger) -> State:
    holders, bindings = ledger.holders(), ledger.bindings()
    return {a: Entry(holders.get(a), bindings.get(a)) for a in {*holders, *bindings}}


def run_workload(folder: Path, seed: int, *, steps: int, forgotten: str = "") -> Run:
    """Pods come, go, come back, come twice; the agent restarts and is killed; the disk is ill."""
    choice, run = random.Random(seed), Run()
    disk = RecordingDisk(run.operations)
    ledger = Ledger.open(folder, "net", disk=disk, tuning=TUNING)
    run.note(ledger, len(run.operations))
    disk.forgotten = forgotten
    living: list[Holder] = []
    for step in range(steps):
        action, done = choice.random(), len(run.operations)
        disk.full = choice.random() < (0.8 if disk.full else 0.1)
        disk.sick = choice.random() < (0.6 if disk.sick else 0.2)
        if action < 0.55:
            holder = Holder(f"sandbox-{step}", "eth0")
            key = PodKey("ns", f"pod-{choice.randrange(9)}", "eth0")
            sets = choice.choice([SETS, SETS, SETS[:1]])
            with contextlib.suppress(StorageError):
                ledger.reserve(holder, key, sets, now_s=step, is_alive=lambda a, h: False)
                living.append(holder)
        elif action < 0.85 and living:
            ledger.release(living.pop(choice.randrange(len(living))), now_s=step)
        elif action < 0.88:
            ledger.forget(PodKey("ns", f"pod-{choice.randrange(9)}", "eth0"), now_s=step)
        elif action < 0.94:
            last = run.ask(ledger)
            ledger.close()
            disk.sick = False
            ledger = Ledger.open(folder, "net", disk=disk, tuning=TUNING)
            if last.exception():
                forget_what_was_lost(run, state_of(ledger))
        elif not forgotten:
            disk.killed = True
            ledger.close()
            disk = RecordingDisk(run.operations)
            ledger = Ledger.open(folder, "net", disk=disk, tuning=TUNING)
            forget_what_was_lost(run, state_of(ledger))
        run.note(ledger, done)
        future = run.ask(ledger)
        if choice.random() < 0.6:
            future.exception(10)
    run.ask(ledger)
    ledger.close()
    return run


def forget_what_was_lost(run: Run, state: State) -> None:
    """What a killed process had not written never was; it had acknowledged nothing of that."""
    found = max((i for i, known in enumerate(run.states) if known == state), default=-1)
    assert found >= max((index for _, index in run.acknowledged), default=0)
    del run.states[found + 1 :], run.submitted[found + 1 :]


def outcomes(
    run: Run, start: Mapping[str, bytes], samples: int, seed: int
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Every cut with the oldest, the newest and some more states that the disk may have then."""
    choice = random.Random(seed)
    disk = ModelDisk({name: [Inode(content)] for name, content in start.items()})
    for cut in range(len(run.operations) + 1):
        if cut:
            disk.apply(run.operations[cut - 1])
        found = [disk.oldest(), disk.newest(), *(disk.sample(choice) for _ in range(samples))]
        different = {tuple(sorted(files.items())): files for files in found}
        for files in different.values():
            yield cut, files


def judge(run: Run, cut: int, files: Mapping[str, bytes], folder: Path) -> str:
    """What is wrong with what a ledger makes of these files; empty: nothing."""
    write_files(folder, files)
    try:
        ledger = Ledger.open(folder, "net", tuning=TUNING)
        state, findings = state_of(ledger), ledger.findings
        ledger.close()
        again = {r.address: r.holder for r in read_ledger(folder).records}
    finally:
        shutil.rmtree(folder)
    if findings:
        return f"cut {cut}: {findings[0]}"
    if again != {address: entry.holder for address, entry in state.items()}:
        return f"cut {cut}: opened and closed, it says something else"
    if state not in run.possible(cut):
        return f"cut {cut} of {len(run.operations)}: {state} is not a state acknowledged or later"
    owners = [(b.key, a.version) for a, (_, b) in state.items() if b is not None]
    return "" if len(owners) == len(set(owners)) else f"cut {cut}: a pod has two addresses"


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory: what is synced is decided by the model, and there are thousands."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="limpet-power-", dir=memory if memory.is_dir() else None))
    yield path
    shutil.rmtree(path)


@pytest.mark.soak
@pytest.mark.parametrize(("seed", "start"), [(1, {}), (2, ADOPTED), (3, {})])
def test_no_acknowledged_change_is_lost_and_no_address_is_given_twice(
    folder: Path, seed: int, start: dict[str, str]
) -> None:
    write_files(folder / "net", start)
    run = run_workload(folder / "net", seed, steps=50)
    assert sum(operation.kind == "fsync_folder" for operation in run.operations) > 3
    contents = {name: content.encode() for name, content in start.items()}
    for cut, files in outcomes(run, contents, samples=SAMPLES, seed=seed):
        assert judge(run, cut, files, folder / "cut") == ""


@pytest.mark.parametrize("forgotten", ["fdatasync", "fsync", "fsync_folder"])
def test_the_check_notices_when_a_sync_is_left_out(folder: Path, forgotten: str) -> None:
    run = run_workload(folder / "net", 1, steps=40, forgotten=forgotten)
    faults = (
        judge(run, cut, files, folder / "cut")
        for cut, files in outcomes(run, {}, samples=4, seed=1)
    )
    assert any(faults)
