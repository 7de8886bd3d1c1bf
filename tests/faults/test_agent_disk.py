"""A real agent on a disk that is full, or that takes no writes any more."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from limpet.lab.world.node import DEFAULT_CONF, LabNode
from tests.conftest import SEGMENTS, NodeFactory

_ON_ITS_OWN_DISK = 'mount -t tmpfs -o size=1m limpet-test "$0" && exec "$@"'

_READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


@pytest.fixture
def disk_node(make_node: NodeFactory) -> LabNode:
    """A node whose record is on a disk of 1 MiB, mounted for the agent alone."""
    node = make_node(segments=SEGMENTS, rest_s=0)
    node.data_dir.mkdir(parents=True)
    node.agent_prefix = [
        "unshare",
        "-m",
        "--propagation",
        "slave",
        "sh",
        "-c",
        _ON_ITS_OWN_DISK,
        str(node.data_dir),
    ]
    node.start_agent()
    return node


def on_disk(node: LabNode) -> Path:
    return Path(f"/proc/{node.agent_pid}/root{node.data_dir}")


def test_pods_start_and_stop_while_the_disk_is_full(disk_node: LabNode) -> None:
    node = disk_node
    before = node.pod("before")
    before.add()
    filler = on_disk(node) / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))

    pods = [node.pod(f"p{n}") for n in range(20)]
    for pod in pods:
        pod.add()
    given = {pod.name: pod.addresses for pod in pods}
    for pod in pods:
        pod.delete()
    before.delete()

    filler.unlink()
    again = {name: node.pod(name, container_id=f"{name}-again").add().addresses for name in given}
    assert again == given


def test_a_disk_that_takes_no_writes_is_named_and_nothing_is_lost(node: LabNode) -> None:
    kept, late = node.pod("kept"), node.pod("late")
    kept.add()
    node.stop_agent()
    node.agent_prefix = ["unshare", "-m", "--propagation", "slave", "sh", "-c", _READ_ONLY]
    node.agent_prefix.append(str(node.data_dir))
    node.start_agent()

    answer = node.cni("ADD", late)
    status = node.cni("STATUS", conf={**DEFAULT_CONF, "cniVersion": "1.1.0"})

    assert answer.document["code"] == 103
    assert str(node.data_dir) in json.dumps(answer.document)
    assert "Read-only" in json.dumps(answer.document)
    assert status.document["code"] == 50
    assert "eth0" not in late.run("ip", "-br", "link")
    assert kept.reaches("10.244.7.1")

    node.stop_agent()
    node.agent_prefix = []
    node.start_agent()
    late.add()
    assert late.reaches(kept.addresses[0].ip)
    live = {r["address"] for r in node.ask("ipam.list")["records"] if r["state"] == "live"}
    assert live == {str(a.ip) for pod in (kept, late) for a in pod.addresses}
