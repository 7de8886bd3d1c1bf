"""`make demo`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from limpet.lab.worlds import FOLDER

DEMO = [sys.executable, "-m", "limpet", "lab", "demo"]


def worlds_of_demos() -> set[str]:
    """Namespaces, folders in /dev/shm and worlds."""
    places = [Path("/run/netns"), Path("/dev/shm"), FOLDER]
    return {
        str(each)
        for place in places
        if place.is_dir()
        for each in place.iterdir()
        if each.name.startswith(("limpet-lab.demo-", "demo-"))
    }


def test_the_demo_shows_that_everybody_is_reached_before_during_and_after_the_cut() -> None:
    before = worlds_of_demos()

    done = subprocess.run(DEMO, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [
        when in done.stdout for when in ("reaches whom, before", "whom, during", "whom, after")
    ] == [True, True, True]
    assert "338 of 338 pings answered" in done.stdout
    assert done.stdout.count("512 of 512 pings answered") == 2
    assert "All as it should be" in done.stdout
    assert " NO " not in done.stdout
    assert worlds_of_demos() == before


def test_a_demo_that_is_stopped_leaves_nothing() -> None:
    before = worlds_of_demos()
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
    assert worlds_of_demos() == before
