"""`limpet lab up kube`, as a person runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from limpet.lab.kube.cgroups import groups
from limpet.lab.kube.image import IMAGE
from limpet.lab.world.wires import existing_namespaces, namespace_prefix
from limpet.lab.world.worlds import FOLDER, take_down
from tests.docs.worlds import on_this_machine
from tests.kube.installed.page_worlds import blocks_of
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)  # kubelets start, twice

NAME = f"lku{os.getpid()}"
_SECONDS = f"1000{os.getpid()}"
"""That a container sleeps: so it is known by its command line."""


def lab(*words: str) -> str:
    """What the command says on stdout and stderr; it succeeds."""
    command = [sys.executable, "-m", "limpet", "lab", words[0], "--name", NAME, *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def told() -> Iterator[str]:
    """What `up` said; the world goes in the end, whatever happens."""
    try:
        yield lab("up", "kube")
    finally:
        take_down(NAME)


def processes() -> list[str]:
    """Command lines that name the world or its folder, or of the container."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(word in line for word in (namespace_prefix(NAME), str(FOLDER / NAME), _SECONDS)):
            found.append(line)
    return found


def node_names(text: str) -> set[str]:
    return {node["metadata"]["name"] for node in json.loads(text)["items"]}


def test_kubectl_is_ready_to_type_inside_and_outside(told: str, tmp_path: Path) -> None:
    nodes = {"crane-1", "crane-2", "digger-1"}
    hint = re.search(r"export KUBECONFIG=(\S+); (\S+) get nodes", told)
    assert hint is not None, told

    outside = subprocess.check_output(
        [hint[2], "get", "nodes", "-o", "json"],
        env={"KUBECONFIG": hint[1], "HOME": str(tmp_path)},
        text=True,
    )
    assert node_names(outside) == nodes
    for place in ("cloud", "digger-1"):
        assert (
            node_names(lab("shell", place, "--", "kubectl", "get", "nodes", "-o", "json")) == nodes
        )


def test_a_shell_on_a_node_is_in_its_own_root(told: str) -> None:
    images = lab("shell", "crane-1", "--", "ctr", "-n", "k8s.io", "images", "list", "-q")

    assert "lct.test/busybox:1" in images
    assert lab("shell", "crane-1", "--", "hostname").strip() == "crane-1"
    findings = json.loads(lab("shell", "crane-1", "--", "limpet", "doctor", "--output", "json"))
    assert [each for each in findings["findings"] if each["level"] == "error"] == []


def test_down_removes_all_of_it(told: str) -> None:
    prefix = namespace_prefix(NAME)
    words = f"run waits --image={IMAGE} --restart=Never --command -- sleep {_SECONDS}".split()
    lab("shell", "cloud", "--", "kubectl", *words)
    wait_until(lambda: any(_SECONDS in line for line in processes()), "a container runs")
    assert list(groups(prefix)) != []

    lab("down")

    assert processes() == []
    assert list(groups(prefix)) == []
    assert existing_namespaces(NAME) == []
    assert not (FOLDER / NAME).exists()
    assert NAME not in Path("/proc/self/mounts").read_text(encoding="utf-8")


def test_what_the_page_says_of_it_works(tmp_path: Path) -> None:
    with on_this_machine(tmp_path) as player:
        for found in blocks_of("kube", "lab").values():
            player.play_all(found)
