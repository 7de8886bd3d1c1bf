"""The MAC of a VXLAN device is decided once."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.cluster.topology.vtep_mac import derived_vtep_mac
from limpet.datapath.overlay.vtep import keep_vtep_macs

UID = "a" * 24


def test_without_a_record_or_a_device_it_is_made_of_the_uid(tmp_path: Path) -> None:
    macs = keep_vtep_macs(tmp_path / "vtep.json", UID, recorded={}, existing={})

    assert macs == {4: derived_vtep_mac(UID, 4), 6: derived_vtep_mac(UID, 6)}
    assert macs[4] != macs[6]
    assert all(int(mac[:2], 16) & 0x03 == 0x02 for mac in macs.values())


def test_the_cluster_s_record_goes_before_the_device_s(tmp_path: Path) -> None:
    recorded, existing = {4: "02:00:00:00:00:01"}, {4: "02:00:00:00:00:02", 6: "02:00:00:00:00:06"}

    macs = keep_vtep_macs(tmp_path / "vtep.json", UID, recorded=recorded, existing=existing)

    assert macs == {4: "02:00:00:00:00:01", 6: "02:00:00:00:00:06"}


def test_a_copy_with_an_identity_of_its_own_does_not_keep_the_original_s(tmp_path: Path) -> None:
    others = "b" * 24
    existing = {version: derived_vtep_mac(others, version) for version in (4, 6)}

    macs = keep_vtep_macs(tmp_path / "vtep.json", UID, recorded={}, existing=existing)

    assert macs == {version: derived_vtep_mac(UID, version) for version in (4, 6)}


def test_what_was_decided_is_never_changed_by_a_later_record(tmp_path: Path) -> None:
    path = tmp_path / "vtep.json"
    decided = keep_vtep_macs(path, UID, recorded={}, existing={})

    later = keep_vtep_macs(path, UID, recorded={4: "02:00:00:00:00:01"}, existing={})

    assert later == decided


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"4": "02:00:00:00:00:07"}',
        b'{"version": 1, "macs": {"4": "02:0',
        b'{"version": 1, "macs": {"4": "\xff\xfe"}}',
        b'{"version": 1, "macs": {"4": "none"}}',
        b'{"version": 1, "macs": {"4": "03:00:00:00:00:01"}}',
        b'{"version": 1, "macs": {"4": "00:00:00:00:00:00"}}',
    ],
)
def test_a_damaged_file_is_made_anew_from_the_record(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "vtep.json"
    path.write_bytes(text)

    macs = keep_vtep_macs(path, UID, recorded={4: "02:00:00:00:00:01"}, existing={})

    assert macs[4] == "02:00:00:00:00:01"
    assert keep_vtep_macs(path, UID, recorded={}, existing={}) == macs


def test_a_disk_that_takes_nothing_does_not_keep_the_devices_from_having_one() -> None:
    recorded = {4: "02:00:00:00:00:01"}
    macs = keep_vtep_macs(Path("/proc/sys/vtep.json"), UID, recorded=recorded, existing={})

    assert macs == {**recorded, 6: derived_vtep_mac(UID, 6)}
