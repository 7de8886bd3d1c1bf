"""Whether programs that set networks up are told to leave Limpet's links alone, as they read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet.cli.doctor.machine.network_daemons import NETWORK_DAEMONS

MANAGER, NETWORKD = NETWORK_DAEMONS
BOTH = "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules = false\n"
LISTED = "[keyfile]\nunmanaged-devices=interface-name:docker0;interface-name:lim*\n"
_FROM_PACKAGE, _OF_BOOT = "usr/lib/NetworkManager/conf.d", "run/NetworkManager/conf.d"
_OWN = "etc/NetworkManager"
_EMPTY = "[keyfile]\nunmanaged-devices=\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "is_told"),
    [
        ({}, False),
        ({"etc/systemd/networkd.conf": BOTH}, True),
        ({"etc/systemd/networkd.conf.d/50-x.conf": BOTH}, True),
        ({"run/systemd/networkd.conf.d/50-x.conf": BOTH}, True),
        ({"usr/lib/systemd/networkd.conf.d/50-x.conf": BOTH}, True),
        ({"usr/local/lib/systemd/networkd.conf.d/50-x.conf": BOTH}, True),
        # What the file of Debian's package has: each setting as it is by itself, in a comment.
        ({"etc/systemd/networkd.conf": BOTH.replace("Manage", "#Manage")}, False),
        ({"etc/systemd/networkd.conf": BOTH.replace("Manage", "; Manage")}, False),
        ({"etc/systemd/networkd.conf": "[Network]\nManageForeignRoutes=no\n"}, False),
        ({"etc/systemd/networkd.conf": BOTH.replace("false", "yes")}, False),
        ({"etc/systemd/networkd.conf": BOTH.replace("Network", "DHCPv4")}, False),
        ({"etc/systemd/network/50-x.network": BOTH}, False),
        ({"etc/systemd/system.conf": BOTH}, False),
        # The last one counts, and of one name that in /etc.
        (
            {
                "usr/lib/systemd/networkd.conf.d/50-x.conf": BOTH,
                "etc/systemd/networkd.conf.d/60-y.conf": BOTH.replace("false", "true"),
            },
            False,
        ),
        (
            {
                "usr/lib/systemd/networkd.conf.d/50-x.conf": BOTH.replace("false", "true"),
                "etc/systemd/networkd.conf.d/50-x.conf": BOTH,
            },
            True,
        ),
        ({"usr/lib/systemd/networkd.conf": BOTH, "etc/systemd/networkd.conf": ""}, False),
    ],
)
def test_networkd_is_told_where_all_that_it_reads_says_both(
    files: dict[str, str], is_told: bool, tmp_path: Path
) -> None:
    assert NETWORKD.is_told(write(tmp_path, files), "limpet0") is is_told


@pytest.mark.parametrize(
    ("files", "is_told"),
    [
        ({}, False),
        ({f"{_OWN}/NetworkManager.conf": LISTED}, True),
        ({f"{_OWN}/conf.d/x.conf": LISTED}, True),
        ({f"{_OF_BOOT}/x.conf": LISTED}, True),
        ({f"{_FROM_PACKAGE}/x.conf": LISTED}, True),
        ({f"{_OWN}/conf.d/x.conf": LISTED.replace("unmanaged", "#unmanaged")}, False),
        ({f"{_OWN}/conf.d/x.conf": LISTED.replace(";", ",")}, True),
        ({f"{_OWN}/conf.d/x.conf": LISTED.replace("interface", "except:interface")}, False),
        # Each later one is read in place of what came before, or adds to it.
        (
            {f"{_FROM_PACKAGE}/z.conf": LISTED, f"{_OWN}/NetworkManager.conf": _EMPTY},
            False,
        ),
        (
            {f"{_OWN}/NetworkManager.conf": _EMPTY, f"{_OWN}/conf.d/a.conf": LISTED},
            True,
        ),
        (
            {
                f"{_OWN}/conf.d/a.conf": LISTED,
                f"{_OWN}/conf.d/b.conf": "[keyfile]\nunmanaged-devices+=mac:00:11:22:33:44:55\n",
            },
            True,
        ),
        ({f"{_FROM_PACKAGE}/x.conf": LISTED, f"{_OWN}/conf.d/x.conf": ""}, False),
        (
            {f"{_OWN}/conf.d/x.conf": "[device-l]\nmatch-device=interface-name:lim*\nmanaged=0\n"},
            True,
        ),
        (
            {f"{_OWN}/conf.d/x.conf": "[device-l]\nmatch-device=interface-name:lim*\nmanaged=1\n"},
            False,
        ),
    ],
)
def test_networkmanager_is_told_where_all_that_it_reads_leaves_our_links_out(
    files: dict[str, str], is_told: bool, tmp_path: Path
) -> None:
    assert MANAGER.is_told(write(tmp_path, files), "limpet0") is is_told


def test_networkmanager_is_told_of_a_bridge_that_has_another_name(tmp_path: Path) -> None:
    write(tmp_path, {f"{_OWN}/conf.d/x.conf": LISTED})
    assert not MANAGER.is_told(tmp_path, "cni0")

    write(tmp_path, {f"{_OWN}/conf.d/x.conf": MANAGER.text("cni0")})
    assert MANAGER.is_told(tmp_path, "cni0")


def test_what_doctor_writes_tells_each_of_them(tmp_path: Path) -> None:
    for each in NETWORK_DAEMONS:
        assert each.is_told(write(tmp_path, {each.file[1:]: each.text("br7")}), "br7")


def test_files_that_cannot_be_read_as_text_tell_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"etc/systemd/networkd.conf": "no section\n=\n[\n"})
    (tmp_path / "etc/systemd/networkd.conf.d" / "x.conf").mkdir(parents=True)

    assert not NETWORKD.is_told(tmp_path, "limpet0")
