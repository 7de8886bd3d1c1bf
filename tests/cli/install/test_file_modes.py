"""Nobody but root may write what Limpet writes, nor read what is secret: docs/files.md is true."""

from __future__ import annotations

import os
import re
import stat
from fnmatch import fnmatchcase
from pathlib import Path

from tests.cli.install.service_machine import ServiceMachine
from tests.cli.install.test_install import CONFIG, LIMPET, cni

_DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "files.md"
_UNITS = ("limpet-agent", "limpet-controller", "limpet-dns")
_ROOTS = ("etc", "run", "var", "usr/lib/cni", "opt", "root", "dev/shm")
_OF_OTHERS = ("/run/systemd/", "/run/netns/", "/var/tmp/systemd-", "/var/log/")


def modes(machine: ServiceMachine) -> dict[str, str]:
    """By path, as the document writes them, with the owner where that is not root."""
    root = machine.path("/")
    found = {}
    for top in _ROOTS:
        for folder, folders, files in os.walk(root / top):
            for each in (*folders, *files):
                path = Path(folder, each)
                try:
                    info = path.lstat()
                except FileNotFoundError:
                    continue  # it was written beside, and has its place now
                mode = "link" if stat.S_ISLNK(info.st_mode) else f"{stat.S_IMODE(info.st_mode):o}"
                owner = "" if info.st_uid == info.st_gid == 0 else f" {info.st_uid}:{info.st_gid}"
                found[f"/{path.relative_to(root)}"] = mode + owner
    return found


def documented() -> dict[str, str]:
    """Mode by pattern, the closest pattern first."""
    rows = re.findall(r"^\| `(/\S+)` \| (\w+) \|", _DOCUMENT.read_text(encoding="utf-8"), re.M)
    return dict(sorted(rows, key=lambda row: (row[0].count("*"), -len(row[0]))))


def expected(path: str, rows: dict[str, str]) -> str:
    for pattern, mode in rows.items():
        if fnmatchcase(path, pattern) and path.count("/") == pattern.count("/"):
            return mode
    return "not in the document"


def test_every_path_has_the_owner_and_mode_that_the_document_says(machine: ServiceMachine) -> None:
    def limpet(*words: str) -> str:
        return machine.run("sh", "-c", 'umask 0; exec "$@"', "sh", *LIMPET, *words)

    for unit in _UNITS:
        machine.write(f"/etc/systemd/system/{unit}.service.d/umask.conf", "[Service]\nUMask=0\n")
    before = modes(machine)
    limpet("controller", "install", "--pod-cidr", "10.77.0.0/16")
    machine.write(CONFIG, 'dns = "on"\n')
    token = limpet("token", "create").strip()
    limpet("install", "--controller", "127.0.0.1:7470", "--token", token)
    machine.run("ip", "netns", "add", "web-0")
    cni(machine, "ADD", "web-0")
    limpet("controller", "backup", "/root/backup")

    rows = documented()
    written = {
        path: mode
        for path, mode in modes(machine).items()
        if path not in before and not path.startswith(_OF_OTHERS)
    }
    del written[CONFIG]  # the test's own
    assert "/var/lib/limpet/cluster/node.key" in written
    assert {path: (mode, expected(path, rows)) for path, mode in written.items()} == {
        path: (expected(path, rows), expected(path, rows)) for path in written
    }
    for path in ("/etc", "/run", "/var", "/var/lib"):
        assert not machine.path(path).stat().st_mode & 0o022
