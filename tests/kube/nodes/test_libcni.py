"""CRI-O's way of calling plugins: its libcni, a Go library, takes the newest version of the
conflist and asks STATUS, by which it hears of a dead agent."""

from __future__ import annotations

import json
import os
import subprocess
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest

from limpet.cni.conflist import CONFLIST, conflist_text
from limpet.cni.shim_binary import shim_path
from limpet.lab.kube.programs import find_programs
from limpet.lab.world.node import LabNode
from limpet.lab.world.pod import LabPod
from tests.waiting import PATIENCE_S


class LibCni:
    """A configuration folder and a plugin folder, as `limpet install` leaves them."""

    def __init__(self, node: LabNode, folder: Path) -> None:
        self._node = node
        self._program = find_programs("libcni-caller") / "libcni-caller"
        self._folders = [folder / name for name in ("net.d", "bin", "cache")]
        conf, plugins, _ = self._folders
        for each in self._folders:
            each.mkdir()
        (conf / CONFLIST).write_bytes(conflist_text("limpet"))
        (plugins / "limpet").symlink_to(shim_path())

    def call(self, verb: str, pod: LabPod | None = None) -> dict[str, Any]:
        """What ADD answers. Raises: CalledProcessError with the plugin's words."""
        about = [] if pod is None else [pod.container_id, pod.netns_path]
        done = subprocess.run(
            [self._program, verb, *self._folders, *about],
            env={**os.environ, "LIMPET_SOCKET": str(self._node.socket)},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )
        return json.loads(done.stdout) if done.stdout else {}

    def cached(self, pod: LabPod) -> list[Path]:
        """Where it keeps what it was answered."""
        return list(self._folders[2].rglob(f"*{pod.container_id}*"))


@pytest.fixture
def libcni(node: LabNode, tmp_path: Path) -> LibCni:
    return LibCni(node, tmp_path)


def test_it_adds_checks_and_deletes_by_the_newest_version(node: LabNode, libcni: LibCni) -> None:
    pod = node.pod("first")

    libcni.call("STATUS")
    result = libcni.call("ADD", pod)
    libcni.call("CHECK", pod)

    assert result["cniVersion"] == "1.1.0"
    for each in result["ips"]:
        assert str(ip_interface(each["address"]).ip) in pod.run("ip", "-brief", "address")
    libcni.call("DEL", pod)
    assert "eth0" not in pod.run("ip", "-brief", "link")


def test_what_it_does_not_know_any_more_is_collected(node: LabNode, libcni: LibCni) -> None:
    """By GC, also where libcni itself has forgotten it and asks for no DEL."""
    kept, gone = node.pod("kept"), node.pod("gone")
    for each in (kept, gone):
        libcni.call("ADD", each)
    for record in libcni.cached(gone):
        record.unlink()
    assert "eth0" in gone.run("ip", "-brief", "link")

    libcni.call("GC", kept)

    libcni.call("CHECK", kept)
    assert "eth0" not in gone.run("ip", "-brief", "link")


def test_it_hears_of_a_dead_agent(
    node: LabNode, libcni: LibCni, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMPET_WAIT_S", "1")
    node.stop_agent()

    with pytest.raises(subprocess.CalledProcessError) as refused:
        libcni.call("STATUS")

    assert "agent" in refused.value.stderr
