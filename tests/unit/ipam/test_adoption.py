"""Folders that others leave: host-local, its patched variants, and damage of all kinds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from limpet.base.errors import StorageError
from limpet.ipam.leases import Holder, PodKey
from limpet.ipam.ledger import Ledger, read_ledger
from limpet.ipam.store import Tuning
from tests.unit.ipam.ledgers import (
    V4,
    V6,
    address_files,
    ip,
    open_ledger,
    pod,
    sandbox,
    texts,
    write_files,
)

C1, C2 = "c" * 64, "d" * 64


def back(ledger: Ledger, name: str, namespace: str = "default", new: str = "new") -> list[str]:
    """The addresses that a pod gets when it comes back."""
    return texts(ledger.reserve(sandbox(new), pod(name, namespace), [V4, V6], now_s=0))


def problems(ledger: Ledger) -> dict[str, str]:
    return {Path(f.path).name: f.problem for f in ledger.findings}


# host-local, and the patched one.


def test_live_containers_of_host_local_keep_their_addresses(tmp_path: Path) -> None:
    files = {
        "10.0.0.2": f"{C1}\r\neth0",
        "fd00::2": f"{C1}\r\neth0",
        "10.0.0.3": C2,
        "10.0.0.4": f"{C2}\n",
        "last_reserved_ip.0": "10.0.0.4",
        "last_reserved_ip.1": "fd00::2",
        "lock": "",
    }
    write_files(tmp_path, files)
    ledger = open_ledger(tmp_path)
    assert ledger.findings == []
    assert {str(a): h for a, h in ledger.holders().items()} == {
        "10.0.0.2": Holder(C1, "eth0"),
        "fd00::2": Holder(C1, "eth0"),
        "10.0.0.3": Holder(C2, ""),
        "10.0.0.4": Holder(C2, ""),
    }
    assert back(ledger, "a") == ["10.0.0.5", "fd00::3"]
    assert ledger.release(Holder(C1, "eth0"), now_s=0) == (ip("10.0.0.2"), ip("fd00::2"))
    assert ledger.release(Holder(C2, "eth0"), now_s=0) == (ip("10.0.0.3"), ip("10.0.0.4"))
    ledger.close()


def test_opening_and_closing_changes_nothing_of_anothers_folder(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "10.0.0.2": f"{C1}\r\neth0",
        "10.0.0.2_default_web-0": "",
        "10.0.0.3": C2,
        "10.0.0.4-default-web-1": "",
        "fd00::2_default_web-0": "",
        "last_reserved_ip.0": "10.0.0.4",
        "lock": "",
        "README": "mine",
    }
    write_files(tmp_path, files)
    open_ledger(tmp_path).close()
    left = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name != "limpet.journal"}
    assert left == {name: str(content).encode() for name, content in files.items()}


@pytest.mark.parametrize(
    "files",
    [
        {"10.0.0.5_default_web-0": "", "fd00::5_default_web-0": ""},
        {"10.0.0.5-default-web-0": "", "fd00::5-default-web-0": ""},
        {"10.0.0.5_default_web-0": "", "fd00::5-default-web-0": ""},
    ],
)
def test_a_returning_pod_finds_its_addresses_of_both_families_in_either_spelling(
    tmp_path: Path, files: dict[str, str | bytes]
) -> None:
    write_files(tmp_path, files)
    ledger = open_ledger(tmp_path)
    given = ledger.reserve(sandbox("new"), pod("web-0"), [V4, V6], now_s=0)
    assert texts(given) == ["10.0.0.5", "fd00::5"]
    assert given.restored
    ledger.close()
    assert set(address_files(tmp_path)) == {
        *("10.0.0.5", "10.0.0.5_default_web-0", "fd00::5", "fd00::5_default_web-0"),
    }
    assert b'"ifname": "eth0"' in address_files(tmp_path)["10.0.0.5_default_web-0"]


def test_a_dash_spelling_is_matched_by_whoever_spells_the_same(tmp_path: Path) -> None:
    write_files(tmp_path, {"10.0.0.5-kube-system-dns-0": "", "10.0.0.6-a-b": ""})
    ledger = open_ledger(tmp_path)
    assert back(ledger, "system-dns-0", "other", "s1")[0] == "10.0.0.2"
    assert back(ledger, "dns-0", "kube-system", "s2")[0] == "10.0.0.5"
    assert back(ledger, "b", "a", "s3")[0] == "10.0.0.6"
    ledger.close()


def test_the_second_interface_of_an_adopted_pod_gets_an_address_of_its_own(
    tmp_path: Path,
) -> None:
    write_files(tmp_path, {"10.0.0.5_default_web-0": ""})
    ledger = open_ledger(tmp_path)
    for ifname, address in (("eth0", "10.0.0.5"), ("net1", "10.0.0.2")):
        key = pod("web-0", ifname=ifname)
        assert texts(ledger.reserve(Holder("s", ifname), key, [V4], now_s=0)) == [address]
    ledger.close()


def test_an_adopted_pods_absence_is_remembered(tmp_path: Path) -> None:
    """A database that ran for a year does not lose its address to a job while it restarts."""
    write_files(
        tmp_path,
        {f"10.0.0.{i}_default_old-{i}": "" for i in (3, 4, 5, 6)}
        | {"10.0.0.2_default_db-0": "", "10.0.0.2": f"{C1}\r\neth0"},
    )
    ledger = open_ledger(tmp_path)
    ledger.release(Holder(C1, "eth0"), now_s=0)
    assert back(ledger, "job")[0] == "10.0.0.3"
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert back(ledger, "job-2", new="n2")[0] == "10.0.0.4"
    assert back(ledger, "db-0", new="n3")[0] == "10.0.0.2"
    ledger.close()


def test_an_adopted_address_is_not_taken_from_a_container_that_may_be_another_pod(
    tmp_path: Path,
) -> None:
    """A plain host-local gave the absent pod's address to another container meanwhile."""
    write_files(tmp_path, {"10.0.0.5_default_web-0": "", "10.0.0.5": f"{C1}\r\neth0"})
    ledger = open_ledger(tmp_path)
    given = ledger.reserve(sandbox("new"), pod("web-0"), [V4], now_s=0)
    assert texts(given) == ["10.0.0.2"]
    assert given.evicted == ()
    assert ledger.addresses_of(Holder(C1, "eth0")) == (ip("10.0.0.5"),)
    ledger.close()


def test_an_adopted_address_goes_back_to_its_pod_when_its_container_is_gone(
    tmp_path: Path,
) -> None:
    """After a reboot the old sandboxes are still in the folder."""
    write_files(tmp_path, {"10.0.0.5_default_web-0": "", "10.0.0.5": f"{C1}\r\neth0"})
    ledger = open_ledger(tmp_path)
    asked = []

    def is_alive(address: object, holder: object) -> bool:
        asked.append((str(address), holder))
        return False

    given = ledger.reserve(sandbox("new"), pod("web-0"), [V4], now_s=0, is_alive=is_alive)
    assert texts(given) == ["10.0.0.5"]
    assert given.evicted == (Holder(C1, "eth0"),)
    assert asked == [("10.0.0.5", Holder(C1, "eth0"))]
    ledger.close()


def test_what_another_container_took_while_we_were_away_is_not_taken_back(tmp_path: Path) -> None:
    """Back to host-local and to us again: it knows nothing of bindings."""
    ledger = open_ledger(tmp_path)
    assert back(ledger, "web-0", new="mine") == ["10.0.0.2", "fd00::2"]
    ledger.release(sandbox("mine"), now_s=0)
    ledger.close()
    write_files(tmp_path, {"10.0.0.2": f"{C1}\r\neth0"})
    ledger = open_ledger(tmp_path)
    assert back(ledger, "web-0") == ["10.0.0.3", "fd00::2"]
    ledger.close()


def test_a_binding_that_a_patched_host_local_renamed_is_the_new_pods(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    back(ledger, "web-0", new="mine")
    ledger.release(sandbox("mine"), now_s=0)
    ledger.close()
    os.rename(tmp_path / "10.0.0.2_default_web-0", tmp_path / "10.0.0.2_default_db-0")
    ledger = open_ledger(tmp_path)
    assert "another pod" in problems(ledger)["10.0.0.2_default_db-0"]
    assert back(ledger, "db-0")[0] == "10.0.0.2"
    ledger.close()


# Contradictions.


def binding(name: str, order: int, ifname: str = "eth0", namespace: str = "default") -> str:
    return (
        f'{{"network": "net", "namespace": "{namespace}", "pod": "{name}", "ifname": "{ifname}", '
        f'"family": 4, "order": {order}, "container_id": ""}}'
    )


def test_of_two_bindings_of_an_address_the_one_used_last_wins(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "10.0.0.5_default_a": binding("a", 3),
            "10.0.0.5_default_b": binding("b", 7),
            "10.0.0.5_default_c": "",
        },
    )
    ledger = open_ledger(tmp_path)
    assert [b.key.pod for b in ledger.bindings().values()] == ["b"]
    assert problems(ledger).keys() == {"10.0.0.5_default_a", "10.0.0.5_default_c"}
    ledger.close()
    assert set(address_files(tmp_path)) == {"10.0.0.5_default_b"}


def test_of_two_addresses_of_a_pod_the_one_used_last_wins(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "10.0.0.3_default_a": binding("a", 3),
            "10.0.0.4_default_a": binding("a", 9),
            "10.0.0.5_default_a": "",
            "10.0.0.6-default-a": "",
        },
    )
    ledger = open_ledger(tmp_path)
    assert [str(a) for a in ledger.bindings()] == ["10.0.0.4"]
    assert len(ledger.findings) == 3
    assert back(ledger, "a")[0] == "10.0.0.4"
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert ledger.findings == []
    ledger.close()


def test_of_two_adopted_addresses_of_a_pod_the_live_one_wins(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "10.0.0.3_default_a": "",
            "10.0.0.4_default_a": "",
            "10.0.0.5-default-a": "",
            "10.0.0.4": C1,
        },
    )
    ledger = open_ledger(tmp_path)
    assert [str(a) for a in ledger.bindings()] == ["10.0.0.4"]
    ledger.close()


def test_interfaces_of_a_pod_do_not_contradict_each_other(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "10.0.0.3_default_a": binding("a", 3, "eth0"),
            "10.0.0.4_default_a": binding("a", 9, "net1"),
            "10.0.0.5_de_a": binding("a", 9, "eth0", "de"),
        },
    )
    ledger = open_ledger(tmp_path)
    assert len(ledger.bindings()) == 3
    assert ledger.findings == []
    ledger.close()


# Damage, and what is not ours.


def test_damaged_and_foreign_files_are_named_and_left_alone(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "10.0.0.2": "",
        "10.0.0.3": b"\xff\xfe\0",
        "10.0.0.5_default_a": "{ half a bind",
        "10.0.0.6_sha256-" + "0" * 64: "",
        "README": "mine",
        "10.0.0.4.bak": C1,
    }
    write_files(tmp_path, files)
    (tmp_path / "10.0.0.4").mkdir()
    os.mkfifo(tmp_path / "fd00::3")
    os.symlink("/nowhere", tmp_path / "fd00::4")
    ledger = open_ledger(tmp_path)
    assert problems(ledger).keys() == {*files, "10.0.0.4", "fd00::3", "fd00::4"}
    assert all(finding.action for finding in ledger.findings)
    # What cannot be read may be held by somebody; what has a name counts by it.
    assert len(ledger.holders()) == 5
    assert back(ledger, "a")[0] == "10.0.0.5"
    ledger.close()
    left = {p.name for p in tmp_path.iterdir()}
    assert files.keys() | {"10.0.0.4", "fd00::3", "fd00::4"} <= left
    assert (tmp_path / "README").read_text() == "mine"


def test_an_address_whose_file_names_nobody_is_free_once_it_is_released(tmp_path: Path) -> None:
    write_files(tmp_path, {f"10.0.0.{i}": "" for i in (2, 3, 4, 5, 6)})
    ledger = open_ledger(tmp_path)
    for address in ledger.holders():
        ledger.release_address(address, now_s=0)
    assert back(ledger, "a")[0] == "10.0.0.2"
    ledger.close()
    assert set(address_files(tmp_path)) == {
        *("10.0.0.2", "10.0.0.2_default_a", "fd00::2", "fd00::2_default_a"),
    }


def test_a_damaged_journal_is_kept_aside_and_all_that_it_says_counts(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, tuning=Tuning(settle_s=60))
    for i in range(3):
        ledger.reserve(sandbox(f"s{i}"), pod(f"p{i}"), [V4], now_s=0)
        ledger.durable().result(10)
    copied = (tmp_path / "limpet.journal").read_bytes()
    ledger.close()

    crashed = tmp_path / "crashed"
    data = bytearray(copied)
    data[data.index(b'"p1"')] ^= 1
    write_files(crashed, {"limpet.journal": bytes(data)})
    ledger = open_ledger(crashed)
    assert "records" in problems(ledger)["limpet.journal"]
    assert "copy" in problems(ledger)["limpet.journal.damaged-1"]
    assert (crashed / "limpet.journal.damaged-1").read_bytes() == data
    assert {str(a): h.container_id for a, h in ledger.holders().items()} == {
        "10.0.0.2": "s0",
        "10.0.0.4": "s2",
    }
    ledger.close()
    ledger = open_ledger(crashed)
    assert problems(ledger).keys() == {"limpet.journal.damaged-1"}
    assert len(ledger.holders()) == 2
    ledger.close()


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b"rubbish" * 999])
def test_a_journal_that_says_nothing_is_replaced_and_reported(tmp_path: Path, data: bytes) -> None:
    write_files(tmp_path, {"limpet.journal": data, "10.0.0.2": C1})
    ledger = open_ledger(tmp_path)
    assert "damaged" in problems(ledger)["limpet.journal"]
    back(ledger, "a")
    ledger.durable().result(10)
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert len(ledger.holders()) == 3
    assert "limpet.journal" not in problems(ledger)
    ledger.close()


def test_a_journal_that_cannot_be_read_is_not_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "limpet.journal").mkdir()
    for attempt in (open_ledger, read_ledger):
        with pytest.raises(StorageError, match=r"read .*/limpet\.journal: not a regular file"):
            attempt(tmp_path)
    assert (tmp_path / "limpet.journal").is_dir()


def test_a_read_only_view_has_the_same_findings_and_changes_nothing(tmp_path: Path) -> None:
    write_files(tmp_path / "net", {"10.0.0.2": "", "x": "", "10.0.0.3_ns_p": ""})
    view = read_ledger(tmp_path / "net")
    assert [(str(r.address), r.key) for r in view.records] == [
        ("10.0.0.2", None),
        ("10.0.0.3", PodKey("ns", "p", "")),
    ]
    assert len(view.findings) == 2
    assert {p.name for p in (tmp_path / "net").iterdir()} == {"10.0.0.2", "x", "10.0.0.3_ns_p"}
