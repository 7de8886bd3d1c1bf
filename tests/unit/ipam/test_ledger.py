"""Reservations, bindings and their order, one case each."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from ipaddress import ip_interface
from pathlib import Path

import pytest

from limpet.base.errors import ExhaustedError, StorageError, UnavailableError
from limpet.ipam.leases import AddressState, Holder, PodKey, Usage
from limpet.ipam.ledger import Ledger, read_ledger
from limpet.ipam.store import Tuning
from tests.unit.ipam.ledgers import (
    SMALL,
    V4,
    V6,
    address_files,
    ip,
    open_ledger,
    pod,
    ranges,
    sandbox,
    texts,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "networks" / "net"


@pytest.fixture
def ledger(folder: Path) -> Iterator[Ledger]:
    ledger = open_ledger(folder)
    yield ledger
    ledger.close()


# Giving and keeping.


def test_a_lease_has_the_length_of_its_subnet_and_its_gateway(ledger: Ledger) -> None:
    given = ledger.reserve(sandbox("s1"), pod("a"), [V4, V6], now_s=0)
    assert [(str(lease.address), str(lease.gateway)) for lease in given.leases] == [
        ("10.0.0.2/29", "10.0.0.1"),
        ("fd00::2/125", "fd00::1"),
    ]
    assert given.leases[0].address == ip_interface("10.0.0.2/29")
    assert not given.restored


def test_a_pod_that_comes_back_gets_both_its_addresses(ledger: Ledger) -> None:
    first = ledger.reserve(sandbox("s1"), pod("a"), [V4, V6], now_s=0)
    assert ledger.release(sandbox("s1"), now_s=1) == (ip("10.0.0.2"), ip("fd00::2"))
    ledger.reserve(sandbox("s2"), pod("b"), [V4, V6], now_s=2)
    again = ledger.reserve(sandbox("s3"), pod("a"), [V4, V6], now_s=3)
    assert again.leases == first.leases
    assert again.restored
    assert again.evicted == ()


def test_a_pod_is_another_one_in_another_namespace_and_on_another_interface(
    ledger: Ledger,
) -> None:
    keys = [pod("a"), pod("a", "other"), pod("a", ifname="net1"), PodKey("", "a", "eth0")]
    given = [
        texts(ledger.reserve(Holder(f"s{i}", key.ifname), key, [V4], now_s=0))
        for i, key in enumerate(keys)
    ]
    assert given == [["10.0.0.2"], ["10.0.0.3"], ["10.0.0.4"], ["10.0.0.5"]]


def test_the_same_holder_again_gets_the_same_addresses(ledger: Ledger) -> None:
    first = ledger.reserve(sandbox("s1"), pod("a"), [V4, V6], now_s=0)
    again = ledger.reserve(sandbox("s1"), pod("a"), [V4, V6], now_s=1)
    assert again.leases == first.leases
    assert again.restored
    assert again.evicted == ()
    nameless = ledger.reserve(sandbox("s2"), PodKey("", "", "eth0"), [V4], now_s=2)
    assert ledger.reserve(sandbox("s2"), PodKey("", "", "eth0"), [V4], now_s=3).leases == (
        nameless.leases
    )


def test_nothing_is_kept_for_a_pod_without_a_name(ledger: Ledger) -> None:
    ledger.reserve(sandbox("s1"), PodKey("", "", "eth0"), [V4], now_s=0)
    assert ledger.bindings() == {}
    ledger.release(sandbox("s1"), now_s=1)
    assert texts(ledger.reserve(sandbox("s2"), PodKey("", "", "eth0"), [V4], now_s=2)) == [
        "10.0.0.3"
    ]


def test_two_range_sets_of_one_family_keep_an_address_each(folder: Path) -> None:
    sets = [ranges("10.0.0.0/29"), ranges("10.0.1.0/29")]
    ledger = open_ledger(folder)
    first = ledger.reserve(sandbox("s1"), pod("a"), sets, now_s=0)
    ledger.release(sandbox("s1"), now_s=1)
    ledger.close()
    ledger = open_ledger(folder)
    assert ledger.reserve(sandbox("s2"), pod("a"), sets, now_s=2).leases == first.leases
    assert ledger.findings == []
    ledger.close()


def test_what_is_kept_outside_todays_ranges_is_replaced(ledger: Ledger) -> None:
    ledger.reserve(sandbox("s1"), pod("a"), [V4, V6], now_s=0)
    ledger.release(sandbox("s1"), now_s=1)
    moved = ranges("10.0.9.0/29")
    assert texts(ledger.reserve(sandbox("s2"), pod("a"), [moved, V6], now_s=2)) == [
        "10.0.9.2",
        "fd00::2",
    ]
    assert set(ledger.bindings()) == {ip("10.0.9.2"), ip("fd00::2")}


def test_what_is_kept_of_a_family_that_is_not_asked_for_stays(ledger: Ledger) -> None:
    ledger.reserve(sandbox("s1"), pod("a"), [V4, V6], now_s=0)
    ledger.release(sandbox("s1"), now_s=1)
    ledger.reserve(sandbox("s2"), pod("a"), [V4], now_s=2)
    assert set(ledger.bindings()) == {ip("10.0.0.2"), ip("fd00::2")}


def test_without_ranges_the_error_says_what_to_add(ledger: Ledger) -> None:
    for nothing in ([], [()]):
        with pytest.raises(ExhaustedError, match="`segments`"):
            ledger.reserve(sandbox("s1"), pod("a"), nothing, now_s=0)


# The same pod twice.


def test_the_newest_add_of_a_pod_wins_and_the_late_del_changes_nothing(ledger: Ledger) -> None:
    first = ledger.reserve(sandbox("old"), pod("a"), [V4, V6], now_s=0)
    second = ledger.reserve(sandbox("new"), pod("a"), [V4, V6], now_s=1)
    assert second.leases == first.leases
    assert second.evicted == (sandbox("old"),)
    before = ledger.records(now_s=2)
    assert ledger.release(sandbox("old"), now_s=2) == ()
    assert ledger.records(now_s=2) == before
    assert ledger.addresses_of(sandbox("new")) == (ip("10.0.0.2"), ip("fd00::2"))


def test_a_container_without_an_id_holds_and_releases_nothing(ledger: Ledger) -> None:
    ledger.reserve(sandbox("s1"), pod("a"), [V4], now_s=0)
    assert ledger.release(Holder("", ""), now_s=1) == ()
    assert ledger.release(Holder("", "eth0"), now_s=1) == ()
    assert ledger.addresses_of(Holder("", "")) == ()
    assert ledger.release(Holder("s1", "net1"), now_s=1) == ()
    assert len(ledger.holders()) == 1


# All or nothing.


def test_if_one_family_is_exhausted_nothing_is_given_of_the_other(ledger: Ledger) -> None:
    few = ranges("fd00::/126")
    for name in ("a", "b"):
        ledger.reserve(sandbox(name), pod(name), [few], now_s=0)
    before = ledger.records(now_s=0)
    with pytest.raises(ExhaustedError):
        ledger.reserve(sandbox("c"), pod("c"), [V4, few], now_s=0)
    assert ledger.records(now_s=0) == before
    assert texts(ledger.reserve(sandbox("d"), pod("d"), [V4], now_s=0)) == ["10.0.0.2"]


def test_if_an_address_asked_for_is_refused_nothing_is_given(ledger: Ledger) -> None:
    ledger.reserve(sandbox("s1"), pod("a"), [V4], now_s=0)
    before = ledger.records(now_s=0)
    with pytest.raises(UnavailableError, match="container s1 holds it"):
        ledger.reserve(sandbox("s2"), pod("b"), [V4, V6], requested=[ip("10.0.0.2")], now_s=0)
    assert ledger.records(now_s=0) == before


# Asking for an address.


def test_asking_moves_what_is_kept_for_the_pod(ledger: Ledger) -> None:
    ledger.reserve(sandbox("s1"), pod("a"), [V4], now_s=0)
    ledger.release(sandbox("s1"), now_s=1)
    asked = ledger.reserve(sandbox("s2"), pod("a"), [V4], requested=[ip("10.0.0.6")], now_s=2)
    assert texts(asked) == ["10.0.0.6"]
    assert set(ledger.bindings()) == {ip("10.0.0.6")}


def test_asking_takes_over_what_is_kept_for_an_absent_pod(ledger: Ledger) -> None:
    ledger.reserve(sandbox("s1"), pod("a"), [V4], now_s=0)
    ledger.release(sandbox("s1"), now_s=1)
    ledger.reserve(sandbox("s2"), pod("b"), [V4], requested=[ip("10.0.0.2")], now_s=2)
    assert {str(a): b.key.pod for a, b in ledger.bindings().items()} == {"10.0.0.2": "b"}


def test_the_same_holder_asking_for_another_address_gives_up_the_former(ledger: Ledger) -> None:
    ledger.reserve(sandbox("s1"), pod("a"), [V4, V6], now_s=0)
    ledger.reserve(sandbox("s1"), pod("a"), [V4, V6], requested=[ip("10.0.0.5")], now_s=1)
    assert set(ledger.holders()) == {ip("10.0.0.5"), ip("fd00::2")}
    assert set(ledger.bindings()) == {ip("10.0.0.5"), ip("fd00::2")}


def test_asking_for_the_pods_own_address_evicts_its_older_sandbox(ledger: Ledger) -> None:
    ledger.reserve(sandbox("old"), pod("a"), [V4], now_s=0)
    given = ledger.reserve(sandbox("new"), pod("a"), [V4], requested=[ip("10.0.0.2")], now_s=1)
    assert given.evicted == (sandbox("old"),)


# As late as possible.


def test_addresses_are_used_in_turn_and_rest_after_their_release(ledger: Ledger) -> None:
    nobody = PodKey("", "", "eth0")
    turn = []
    for i in range(7):
        turn += texts(ledger.reserve(sandbox(f"s{i}"), nobody, [V4], now_s=i))
        ledger.release(sandbox(f"s{i}"), now_s=i)
    # From the sixth on all rest: the one that has done so for longest is given first.
    assert turn == [f"10.0.0.{i}" for i in (2, 3, 4, 5, 6, 2, 3)]
    assert texts(ledger.reserve(sandbox("x"), nobody, [V4], now_s=100)) == ["10.0.0.4"]


def test_a_free_address_is_given_before_one_that_rests(ledger: Ledger) -> None:
    nobody = PodKey("", "", "eth0")
    for i in range(5):
        ledger.reserve(sandbox(f"s{i}"), nobody, [V4], now_s=0)
    ledger.release(sandbox("s3"), now_s=0)
    ledger.release(sandbox("s1"), now_s=20)
    assert texts(ledger.reserve(sandbox("x"), nobody, [V4], now_s=31)) == ["10.0.0.5"]
    assert texts(ledger.reserve(sandbox("y"), nobody, [V4], now_s=31)) == ["10.0.0.3"]


def test_the_turn_goes_on_after_a_restart(folder: Path) -> None:
    nobody = PodKey("", "", "eth0")
    ledger = open_ledger(folder)
    ledger.reserve(sandbox("s1"), nobody, [V4, V6], now_s=0)
    ledger.release(sandbox("s1"), now_s=0)
    ledger.close()
    assert (folder / "last_reserved_ip.0").read_text() == "10.0.0.2"
    assert (folder / "last_reserved_ip.1").read_text() == "fd00::2"
    ledger = open_ledger(folder)
    assert texts(ledger.reserve(sandbox("s2"), nobody, [V4, V6], now_s=0)) == [
        "10.0.0.3",
        "fd00::3",
    ]
    ledger.close()


def test_the_pod_that_is_absent_for_longest_loses_its_address_first(ledger: Ledger) -> None:
    for name in "abcde":
        ledger.reserve(sandbox(name), pod(name), [V4], now_s=0)
    for name in "cab":
        ledger.release(sandbox(name), now_s=1)
    assert texts(ledger.reserve(sandbox("x"), pod("x"), [V4], now_s=2)) == ["10.0.0.4"]
    assert texts(ledger.reserve(sandbox("y"), pod("y"), [V4], now_s=2)) == ["10.0.0.2"]
    assert texts(ledger.reserve(sandbox("b"), pod("b"), [V4], now_s=2)) == ["10.0.0.3"]
    with pytest.raises(ExhaustedError, match="5 live"):
        ledger.reserve(sandbox("z"), pod("z"), [V4], now_s=2)
    assert sorted(b.key.pod for b in ledger.bindings().values()) == ["b", "d", "e", "x", "y"]


def test_a_wide_range_does_not_keep_addresses_for_ever_more_pods(folder: Path) -> None:
    tuning = Tuning(journal_bytes=16 * 1024, absent_pods=3)
    ledger = open_ledger(folder, tuning=tuning)
    wide = ranges("fd00::/64")
    for i in range(8):
        ledger.reserve(sandbox(f"s{i}"), pod(f"p{i}"), [wide], now_s=i)
        ledger.release(sandbox(f"s{i}"), now_s=i)
    assert sorted(b.key.pod for b in ledger.bindings().values()) == ["p4", "p5", "p6", "p7"]
    ledger.close()


# What a person does.


def test_an_address_can_be_released_and_forgotten_by_hand(ledger: Ledger) -> None:
    ledger.reserve(sandbox("s1"), pod("a"), [V4, V6], now_s=0)
    assert ledger.release_address(ip("10.0.0.2"), now_s=1) == sandbox("s1")
    assert ledger.release_address(ip("10.0.0.2"), now_s=1) is None
    assert ledger.addresses_of(sandbox("s1")) == (ip("fd00::2"),)
    assert ledger.forget(ip("10.0.0.2"), now_s=1) == (ip("10.0.0.2"),)
    assert ledger.forget(ip("10.0.0.2"), now_s=1) == ()
    assert ledger.forget(pod("a"), now_s=1) == (ip("fd00::2"),)
    assert ledger.bindings() == {}
    assert ledger.addresses_of(sandbox("s1")) == (ip("fd00::2"),)


def test_a_pod_is_forgotten_on_all_its_interfaces(ledger: Ledger) -> None:
    for ifname in ("eth0", "net1"):
        ledger.reserve(Holder("s1", ifname), pod("a", ifname=ifname), [V4], now_s=0)
    assert ledger.forget(pod("a", ifname=""), now_s=1) == (ip("10.0.0.2"), ip("10.0.0.3"))


def test_records_say_what_each_address_is(ledger: Ledger) -> None:
    for name, key in (("s1", pod("a")), ("s2", pod("b")), ("s3", PodKey("", "", "eth0"))):
        ledger.reserve(sandbox(name), key, [V4], now_s=0)
    ledger.release(sandbox("s2"), now_s=1)
    ledger.release(sandbox("s3"), now_s=1)
    assert [(str(r.address), r.state, r.holder, r.key) for r in ledger.records(now_s=2)] == [
        ("10.0.0.2", AddressState.LIVE, sandbox("s1"), pod("a")),
        ("10.0.0.3", AddressState.BOUND, None, pod("b")),
        ("10.0.0.4", AddressState.RESTING, None, None),
    ]
    assert ledger.usage([V4], now_s=2) == (Usage(total=5, live=1, resting=1, bound=1),)
    assert len(ledger.records(now_s=40)) == 2
    assert ledger.usage([V4], now_s=40)[0].resting == 0


# The folder.


def test_the_files_are_host_locals(folder: Path) -> None:
    ledger = open_ledger(folder)
    ledger.reserve(sandbox("c0ffee"), pod("a"), [V4, V6], now_s=0)
    ledger.close()
    files = address_files(folder)
    assert set(files) == {"10.0.0.2", "10.0.0.2_default_a", "fd00::2", "fd00::2_default_a"}
    assert files["10.0.0.2"] == b"c0ffee\r\neth0"
    assert json.loads(files["fd00::2_default_a"]) == {
        "network": "net",
        "namespace": "default",
        "pod": "a",
        "ifname": "eth0",
        "family": 6,
        "order": 1,
        "container_id": "c0ffee",
    }


def test_files_go_with_what_they_say(folder: Path) -> None:
    ledger = open_ledger(folder)
    ledger.reserve(sandbox("s1"), pod("a"), [V4], now_s=0)
    ledger.reserve(sandbox("s2"), pod("b" * 253), [V4], now_s=0)
    ledger.release(sandbox("s1"), now_s=0)
    ledger.forget(pod("b" * 253), now_s=0)
    ledger.close()
    assert set(address_files(folder)) == {"10.0.0.2_default_a", "10.0.0.3"}


def test_a_file_that_becomes_shorter_holds_nothing_of_what_it_was(folder: Path) -> None:
    ledger = open_ledger(folder)
    ledger.reserve(sandbox("long" * 16), pod("a"), [V4], now_s=0)
    ledger.durable().result(10)
    ledger.close()
    ledger = open_ledger(folder)
    ledger.reserve(sandbox("s2"), pod("a"), [V4], now_s=0)
    ledger.close()
    files = address_files(folder)
    assert files["10.0.0.2"] == b"s2\r\neth0"
    assert json.loads(files["10.0.0.2_default_a"])["container_id"] == "s2"


def test_a_second_process_is_told_who_has_the_folder(ledger: Ledger, folder: Path) -> None:
    with pytest.raises(StorageError, match=r"lock .*/lock: another process .*fuser"):
        open_ledger(folder)
    ledger.close()
    open_ledger(folder).close()


def test_the_folder_can_be_read_while_a_ledger_has_it(ledger: Ledger, folder: Path) -> None:
    ledger.reserve(sandbox("s1"), pod("a"), [V4], now_s=0)
    ledger.durable().result(10)
    listed = {p.name: p.stat().st_mtime_ns for p in folder.iterdir() if p.name == "lock"}
    view = read_ledger(folder)
    assert [(str(r.address), r.holder) for r in view.records] == [("10.0.0.2", sandbox("s1"))]
    assert listed == {p.name: p.stat().st_mtime_ns for p in folder.iterdir() if p.name == "lock"}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=str(tmp_path / "none")):
        read_ledger(tmp_path / "none")


def test_a_closed_ledger_refuses_changes_and_is_closed_again_for_nothing(folder: Path) -> None:
    ledger = open_ledger(folder)
    ledger.close()
    ledger.close()
    with pytest.raises(StorageError, match="closed"):
        ledger.reserve(sandbox("s1"), pod("a"), [V4], now_s=0)
    assert ledger.durable().result(0) is None


def test_names_too_long_for_the_journal_are_refused(ledger: Ledger) -> None:
    with pytest.raises(StorageError, match="names of the pod"):
        ledger.reserve(sandbox("s1"), pod("x" * 100_000), [V4], now_s=0)
    assert ledger.records(now_s=0) == ()


def test_ledgers_leave_no_descriptor_and_no_thread_behind(folder: Path) -> None:
    open_ledger(folder).close()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(5):
        ledger = open_ledger(folder)
        with pytest.raises(StorageError):
            open_ledger(folder, tuning=Tuning(lock_wait_s=0))
        ledger.reserve(sandbox("s1"), pod("a"), [V4], now_s=0)
        ledger.close()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_many_changes_go_through_a_small_journal(folder: Path) -> None:
    """More than the journal holds several times over, with nothing but the last base to go by."""
    ledger = open_ledger(folder)
    for i in range(400):
        ledger.reserve(sandbox(f"s{i}"), pod(f"p{i % 4}"), [V4, V6], now_s=i)
        if i % 3 == 0:
            ledger.release(sandbox(f"s{i}"), now_s=i)
        if i % 7 == 0:
            ledger.durable().result(10)
    ledger.durable().result(10)
    assert (folder / "limpet.journal").stat().st_size == SMALL.journal_bytes
    before = ledger.holders(), ledger.bindings()
    ledger.close()
    ledger = open_ledger(folder)
    assert (ledger.holders(), ledger.bindings()) == before
    assert ledger.findings == []
    ledger.close()
