"""Full, read-only, dying and damaged disks: a clear error that names the file, and nothing lost.

What needs a disk of its own runs in a process of its own (`unshare -m`), which mounts a small file
system on the test's folder; nobody else sees the mount, and it goes with the process.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from limpet.base.addresses import Address
from limpet.base.disk import Disk
from limpet.base.errors import StorageError
from limpet.ipam.leases import Entry, Holder
from limpet.ipam.ledger import Ledger, read_ledger
from limpet.ipam.store import Tuning
from tests.unit.ipam.ledgers import address_files, pod, ranges, sandbox, write_files
from tests.waiting import PATIENCE_S, wait_until

SETS = [ranges("10.0.0.0/24"), ranges("fd00::/64")]
QUICK = Tuning(journal_bytes=128 * 1024, settle_s=0.0, retry_s=0.02)
ROOT = Path(__file__).parents[2]


def state_of(ledger: Ledger) -> dict[Address, Entry]:
    holders, bindings = ledger.holders(), ledger.bindings()
    return {a: Entry(holders.get(a), bindings.get(a)) for a in {*holders, *bindings}}


def opened(folder: Path, disk: Disk | None = None, tuning: Tuning = QUICK) -> Ledger:
    return Ledger.open(folder, "net", disk=disk, tuning=tuning)


def add(ledger: Ledger, name: str) -> None:
    ledger.reserve(sandbox(f"sandbox-{name}"), pod(name), SETS, now_s=0)


def add_all(ledger: Ledger, names: list[str]) -> None:
    for name in names:
        add(ledger, name)


def remove(ledger: Ledger, name: str) -> None:
    ledger.release(sandbox(f"sandbox-{name}"), now_s=0)


def refusal_of(act: Callable[[], object]) -> str:
    try:
        act()
    except StorageError as error:
        return str(error)
    raise AssertionError("nothing was refused")


# In a mount namespace of its own.


def fill(folder: Path) -> None:
    """Leave no room for a single byte, and no inode."""
    with (folder / "filler").open("wb", buffering=0) as filler:
        for size in (65536, 4096, 512, 1):
            until_full(partial(filler.write, bytes(size)))
        os.sync()
    numbers = itertools.count()
    until_full(lambda: (folder / f"filler-{next(numbers)}").touch())


def until_full(act: Callable[[], object]) -> None:
    try:
        while True:
            act()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def free(folder: Path) -> None:
    for filler in folder.glob("filler*"):
        filler.unlink()


def full_disk(disk: Path) -> None:
    folder = disk / "net"
    ledger = opened(folder)
    for i in range(5):
        add(ledger, f"early-{i}")
    ledger.durable().result(PATIENCE_S)
    fill(disk)
    # More than the journal holds, several times over: pods come and go as if nothing were wrong.
    for i in range(600):
        add(ledger, f"pod-{i % 40}")
        ledger.durable().result(PATIENCE_S)
        remove(ledger, f"pod-{i % 40}" if i % 5 else f"early-{i % 4}")
        ledger.durable().result(PATIENCE_S)
    (refused,) = ledger.findings
    assert refused.problem.startswith("No space left on device, and for ")
    assert "nothing is lost, the journal has it" in refused.action
    state = state_of(ledger)
    ledger.close()
    ledger = opened(folder)
    assert state_of(ledger) == state
    add(ledger, "after-restart")
    ledger.durable().result(PATIENCE_S)

    wait_until(lambda: bool(ledger.findings))
    free(disk)
    wait_until(lambda: not ledger.findings)
    state = state_of(ledger)
    ledger.close()
    (folder / "limpet.journal").unlink()  # the files alone say everything again
    ledger = opened(folder)
    assert state_of(ledger) == state
    assert ledger.findings == []
    ledger.close()


def full_from_the_start(disk: Path) -> None:
    folder = disk / "net"
    write_files(folder, {"10.0.0.2": "c0ffee\r\neth0", "lock": ""})
    fill(disk)
    text = refusal_of(lambda: opened(folder))
    assert "limpet.journal.new: No space left on device (free space on this file system" in text
    assert len(read_ledger(folder).records) == 1
    free(disk)
    ledger = opened(folder)
    assert ledger.addresses_of(Holder("c0ffee", "eth0"))
    assert ledger.findings == []
    ledger.close()


def read_only_from_the_start(disk: Path) -> None:
    folder = disk / "net"
    ledger = opened(folder)
    add(ledger, "a")
    state = state_of(ledger)
    ledger.close()
    mount("-o", "remount,ro", str(disk))
    text = refusal_of(lambda: opened(folder))
    assert text.startswith(f"open {folder}/limpet.journal: Read-only file system (")
    assert refusal_of(lambda: opened(disk / "new")).startswith(f"make folder {disk}/new: Read-only")
    assert {r.address: r.holder for r in read_ledger(folder).records} == {
        address: entry.holder for address, entry in state.items()
    }
    mount("-o", "remount,rw", str(disk))
    ledger = opened(folder)
    assert state_of(ledger) == state
    ledger.close()


def read_only_in_the_middle(disk: Path) -> None:
    """As a worn SD card does it: the file system finds an error and goes read-only."""
    folder = disk / "net"
    ledger = opened(folder)
    add(ledger, "a")
    add(ledger, "b")
    ledger.durable().result(PATIENCE_S)
    acknowledged = state_of(ledger)
    mounts = map(str.split, Path("/proc/mounts").read_text().splitlines())
    device = next(fields[0] for fields in mounts if fields[1] == str(disk))
    Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("1")

    add(ledger, "c")
    future = ledger.durable()
    assert f"write {folder}/limpet.journal: Read-only file system" in refusal_of(future.result)
    before = state_of(ledger)
    assert "Read-only file system" in refusal_of(lambda: add(ledger, "d"))
    assert state_of(ledger) == before
    remove(ledger, "c")  # as the runtime does after a failed ADD
    remove(ledger, "a")
    assert "Read-only file system" in refusal_of(ledger.durable().result)
    assert any(f.path == f"{folder}/limpet.journal" for f in ledger.findings)
    ledger.close()

    subprocess.run(["umount", str(disk)], check=True)
    subprocess.run(["fsck.ext4", "-p", disk.parent / "image"], check=False, capture_output=True)
    mount("-o", "loop", str(disk.parent / "image"), str(disk))
    ledger = opened(folder)
    assert state_of(ledger) == acknowledged
    assert ledger.findings == []
    ledger.close()


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def with_tmpfs(disk: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=2m,nr_inodes=400", "tmpfs", str(disk))


def with_ext4(disk: Path) -> None:
    image = disk.parent / "image"
    with image.open("wb") as file:
        file.truncate(4 * 1024 * 1024)
    quiet = ["mkfs.ext4", "-q", "-b", "1024", "-N", "400", "-m", "0", str(image)]
    subprocess.run(quiet, check=True)
    mount("-o", "loop,errors=remount-ro", str(image), str(disk))


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        full_disk,
        full_from_the_start,
        read_only_from_the_start,
        read_only_in_the_middle,
    )
}


def run_on(kind: str, scenario: Callable[[Path], None], folder: Path) -> None:
    """Run a scenario on a file system of that kind, in a process that alone sees it."""
    if kind == "ext4" and not Path("/dev/loop-control").exists():
        pytest.skip("no loop devices on this machine")
    (folder / "disk").mkdir()
    command = ["unshare", "-m", "--propagation", "private", sys.executable, "-m", __name__]
    done = subprocess.run(
        [*command, kind, scenario.__name__, str(folder / "disk")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_disk_stops_no_pod_and_everything_is_written_when_there_is_room_again(
    kind: str, tmp_path: Path
) -> None:
    run_on(kind, full_disk, tmp_path)


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_disk_without_room_for_a_journal_is_named_and_loses_nothing(
    kind: str, tmp_path: Path
) -> None:
    run_on(kind, full_from_the_start, tmp_path)


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_read_only_disk_is_named_and_can_still_be_read(kind: str, tmp_path: Path) -> None:
    run_on(kind, read_only_from_the_start, tmp_path)


def test_a_disk_that_turns_read_only_refuses_adds_and_keeps_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    run_on("ext4", read_only_in_the_middle, tmp_path)


# On the test's own disk, with single operations refused.


class RefusingDisk(Disk):
    """Refuses some operations, as a disk does; all others are done."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}
        """Operation -> errno."""

    def ask(self, operation: str) -> None:
        if number := self.refused.get(operation):
            raise OSError(number, os.strerror(number))

    def write(self, path: Path, content: bytes) -> None:
        self.ask("write")
        super().write(path, content)

    def unlink(self, path: Path) -> None:
        self.ask("unlink")
        super().unlink(path)

    def fsync(self, path: Path) -> None:
        self.ask("fsync")
        super().fsync(path)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self.ask("pwrite")
        super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self.ask("fdatasync")
        super().fdatasync(fd)


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_change_that_the_journal_refused_is_written_when_it_takes_it(
    tmp_path: Path, operation: str
) -> None:
    disk = RefusingDisk()
    ledger = opened(tmp_path, disk, Tuning(retry_s=60.0))
    add(ledger, "a")
    ledger.durable().result(PATIENCE_S)
    disk.refused[operation] = errno.EIO
    add(ledger, "b")
    for _ in range(2):
        text = refusal_of(ledger.durable().result)
        assert text.startswith(f"write {tmp_path}/limpet.journal: Input/output error (")
    assert "Input/output error" in refusal_of(lambda: add(ledger, "c"))
    remove(ledger, "a")
    assert "Input/output error" in refusal_of(ledger.durable().result)
    disk.refused.clear()
    ledger.durable().result(PATIENCE_S)
    add(ledger, "c")
    state = state_of(ledger)
    assert sorted(h.container_id for h in set(ledger.holders().values())) == [
        "sandbox-b",
        "sandbox-c",
    ]
    ledger.close()
    ledger = opened(tmp_path)
    assert state_of(ledger) == state
    assert ledger.findings == []
    ledger.close()


def test_a_refused_change_is_written_without_being_asked_for(tmp_path: Path) -> None:
    disk = RefusingDisk()
    ledger = opened(tmp_path, disk)
    disk.refused["fdatasync"] = errno.EIO
    add(ledger, "a")
    refusal_of(ledger.durable().result)
    disk.refused.clear()
    wait_until(lambda: not ledger.findings)
    assert len(read_ledger(tmp_path).records) == 2
    ledger.close()


@pytest.mark.parametrize("operation", ["write", "fsync", "unlink"])
def test_a_full_journal_refuses_adds_and_keeps_room_for_dels(
    tmp_path: Path, operation: str
) -> None:
    """Files cannot be written, and there are too many for the journal to carry them on."""
    disk = RefusingDisk()
    tiny = Tuning(journal_bytes=32 * 1024, settle_s=0.0, retry_s=60.0)
    ledger = opened(tmp_path, disk, tiny)
    for i in range(60):
        add(ledger, f"early-{i}")
        ledger.durable().result(PATIENCE_S)
    disk.refused[operation] = errno.ENOSPC
    refused, i = "", 0
    while not refused:
        try:
            add(ledger, f"pod-{i}")
            ledger.durable().result(PATIENCE_S)
            remove(ledger, f"early-{i % 60}")
            ledger.durable().result(PATIENCE_S)
        except StorageError as error:
            refused = str(error)
        i += 1
        assert i < 200
    assert "limpet.journal: too little room for" in refused or "No space left" in refused
    for holder in sorted({*ledger.holders().values()}, key=lambda h: h.container_id)[:10]:
        ledger.release(holder, now_s=0)
        ledger.durable().result(PATIENCE_S)
    state = state_of(ledger)
    disk.refused.clear()
    ledger.close()
    ledger = opened(tmp_path)
    assert state_of(ledger) == state
    ledger.close()


def test_files_that_were_refused_are_written_without_being_asked_for(tmp_path: Path) -> None:
    disk = RefusingDisk()
    ledger = opened(tmp_path, disk)
    disk.refused["write"] = errno.EDQUOT
    add(ledger, "a")
    ledger.durable().result(PATIENCE_S)
    wait_until(lambda: "and for 3 more" in str(ledger.findings))  # two addresses, two marks
    disk.refused.clear()
    wait_until(lambda: not ledger.findings)
    assert len(address_files(tmp_path)) == 4
    assert (tmp_path / "last_reserved_ip.1").read_text() == "fd00::2"
    ledger.close()


def test_adds_in_one_go_leave_the_room_that_is_kept_for_dels(tmp_path: Path) -> None:
    disk = RefusingDisk()
    tiny = Tuning(journal_bytes=32 * 1024, settle_s=0.0, retry_s=60.0)
    ledger = opened(tmp_path, disk, tiny)
    disk.refused["fsync"] = errno.EIO
    names = [f"pod-{i}" for i in range(120)]
    while str(tmp_path) not in [finding.path for finding in ledger.findings]:
        add(ledger, names.pop())
        ledger.durable().result(PATIENCE_S)
    assert "sync folder" in refusal_of(lambda: add_all(ledger, names))
    ledger.durable().result(PATIENCE_S)
    for holder in sorted({*ledger.holders().values()}, key=lambda h: h.container_id)[:10]:
        ledger.release(holder, now_s=0)
    ledger.durable().result(PATIENCE_S)
    ledger.close()


def test_what_the_disk_refuses_at_the_end_is_in_the_journal(tmp_path: Path) -> None:
    disk = RefusingDisk()
    ledger = opened(tmp_path, disk)
    disk.refused["write"] = errno.EDQUOT
    add(ledger, "a")
    ledger.durable().result(PATIENCE_S)
    state = state_of(ledger)
    ledger.close()
    assert address_files(tmp_path) == {}
    ledger = opened(tmp_path)
    assert state_of(ledger) == state
    ledger.close()
    assert len(address_files(tmp_path)) == 4


@pytest.mark.parametrize("seed", range(40))
def test_damage_to_some_files_harms_no_other_address(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    ledger = opened(tmp_path)
    for i in range(10):
        add(ledger, f"pod-{i}")
        if i % 2:
            remove(ledger, f"pod-{i}")
    state = state_of(ledger)
    ledger.close()

    hurt = set()
    foreign = {"README": b"mine", "10.0.0.9~": b"mine too", "limpet.journal.old": b"and this"}
    write_files(tmp_path, foreign)
    for name in choice.sample(sorted(address_files(tmp_path).keys() - foreign.keys()), 4):
        content = (tmp_path / name).read_bytes()
        rubbish = choice.randbytes(len(content))
        damaged = choice.choice([b"", content[: len(content) // 2], rubbish, bytes(len(content))])
        (tmp_path / name).write_bytes(damaged)
        hurt.add(name.split("_")[0])
    if seed % 3 == 0:
        (tmp_path / "limpet.journal").write_bytes(choice.randbytes(9999))

    ledger = opened(tmp_path)
    found = state_of(ledger)
    for address, entry in state.items():
        if str(address) not in hurt:
            assert found[address] == entry
        elif entry.holder is not None:
            assert found[address].holder is not None, "a live address has become free"
    names = {Path(finding.path).name for finding in ledger.findings}
    assert foreign.keys() <= names
    ledger.close()
    assert {name: (tmp_path / name).read_bytes() for name in foreign} == foreign


if __name__ == "__main__":
    kind, scenario, mount_point = sys.argv[1], SCENARIOS[sys.argv[2]], Path(sys.argv[3])
    {"tmpfs": with_tmpfs, "ext4": with_ext4}[kind](mount_point)
    scenario(mount_point)
