"""`make demo`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from limpet.lab.topology import load_topology
from limpet.lab.world.tunnels import tunnel_pid
from limpet.lab.world.wires import namespace_prefix
from limpet.lab.world.worlds import FOLDER

CHECKOUT = Path(__file__).parents[3]
DEMO = [sys.executable, "-m", "limpet", "lab", "demo"]


def left_of_the_demo(pid: int) -> set[str]:
    """Namespaces, folders in /dev/shm and worlds."""
    names = (f"limpet-lab.demo-{pid}", f"demo-{pid}")
    places = [Path("/run/netns"), Path("/dev/shm"), FOLDER]
    return {
        str(each)
        for place in places
        if place.is_dir()
        for each in place.iterdir()
        if each.name.startswith(names)
    }


def tunnels_of_the_demo(pid: int) -> list[int | None]:
    """Processes of the tunnels of its nodes that still run."""
    prefix = namespace_prefix(f"demo-{pid}")
    found = [tunnel_pid(prefix + node.name) for _, node in load_topology("demo").nodes]
    return [each for each in found if each is not None]


def test_the_demo_shows_that_everybody_is_reached_with_and_without_the_cloud() -> None:
    # Without a word of the `make` that runs the tests.
    make = ["make", "--dry-run", "--no-print-directory", "demo"]
    typed = subprocess.check_output(make, cwd=CHECKOUT, text=True)
    assert typed.splitlines()[-1].endswith(" ".join(DEMO[1:]))
    process = subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said, _ = process.communicate()

    assert process.returncode == 0, said
    whens = ("with the cloud (4", "without the cloud (4", "with the cloud again (4")
    assert [f"reaches whom, {when}" in said for when in whens] == [True, True, True]
    for count in (362, 400, 536):
        assert f"{count} of {count} pings answered" in said
    assert said.count("shares no community with") == 3
    assert said.count("only digger-1 and radio-1 need a relay") == 2
    assert "All as it should be" in said
    assert " NO " not in said
    assert left_of_the_demo(process.pid) == set()
    assert tunnels_of_the_demo(process.pid) == []


def test_a_demo_that_is_stopped_leaves_nothing() -> None:
    process = subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "pods are attached" in line:
            process.send_signal(signal.SIGTERM)
            break
    process.communicate()

    assert process.returncode != 0
    assert left_of_the_demo(process.pid) == set()
    assert tunnels_of_the_demo(process.pid) == []
