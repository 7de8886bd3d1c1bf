"""When the futures of a ledger complete, and what happens meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.base.disk import Disk
from limpet.base.errors import StorageError
from limpet.ipam.ledger import Ledger, read_ledger
from tests.unit.ipam.ledgers import SMALL, V6, pod, ranges, sandbox

WIDE = ranges("10.0.0.0/24")


class SlowDisk(Disk):
    """Syncs the journal when it is let, and counts."""

    def __init__(self) -> None:
        self.syncs = 0
        self.busy = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def fdatasync(self, fd: int) -> None:
        self.busy.set()
        assert self.go_on.wait(10)
        super().fdatasync(fd)
        self.syncs += 1


class BrokenDisk(Disk):
    """Has a bug."""

    def fdatasync(self, fd: int) -> None:
        raise ZeroDivisionError


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def ledger(tmp_path: Path, disk: SlowDisk) -> Iterator[Ledger]:
    ledger = Ledger.open(tmp_path, "net", disk=disk)
    yield ledger
    disk.go_on.set()
    ledger.close()


def test_without_a_change_there_is_nothing_to_wait_for(ledger: Ledger, disk: SlowDisk) -> None:
    disk.go_on.clear()
    assert ledger.durable().done()
    ledger.release(sandbox("unknown"), now_s=0)
    assert ledger.durable().done()


def test_a_future_completes_when_the_disk_has_it_and_not_before(
    ledger: Ledger, disk: SlowDisk, tmp_path: Path
) -> None:
    disk.go_on.clear()
    ledger.reserve(sandbox("s1"), pod("a"), [V6], now_s=0)
    first = ledger.durable()
    assert disk.busy.wait(10)
    second = ledger.durable()
    assert not first.done()
    assert not second.done()
    disk.go_on.set()
    first.result(10)
    second.result(10)
    assert disk.syncs == 1
    assert len(read_ledger(tmp_path).records) == 1


def test_changes_made_while_the_disk_is_busy_share_the_next_sync(
    ledger: Ledger, disk: SlowDisk
) -> None:
    disk.go_on.clear()
    ledger.reserve(sandbox("first"), pod("first"), [WIDE], now_s=0)
    futures = [ledger.durable()]
    assert disk.busy.wait(10)
    for i in range(50):
        ledger.reserve(sandbox(f"s{i}"), pod(f"p{i}"), [WIDE], now_s=0)
        futures.append(ledger.durable())
    disk.go_on.set()
    for future in futures:
        future.result(10)
    assert disk.syncs == 2


def test_who_does_not_wait_any_more_is_no_hindrance(ledger: Ledger, disk: SlowDisk) -> None:
    disk.go_on.clear()
    ledger.reserve(sandbox("s1"), pod("a"), [V6], now_s=0)
    first = ledger.durable()
    assert disk.busy.wait(10)
    ledger.reserve(sandbox("s2"), pod("b"), [V6], now_s=0)
    gone, last = ledger.durable(), ledger.durable()
    assert gone.cancel()
    disk.go_on.set()
    first.result(10)
    last.result(10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_leaves_nobody_waiting_for_ever(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, "net", disk=BrokenDisk(), tuning=SMALL)
    ledger.reserve(sandbox("s1"), pod("a"), [V6], now_s=0)
    with pytest.raises(StorageError):
        ledger.durable().result(10)
    with pytest.raises(StorageError):
        ledger.durable().result(10)
    ledger.close()
