"""The page of the first ten minutes, played as it stands: two fresh Debians, and the package."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from release.checkout import say

from tests.docs.pages import blocks
from tests.docs.worlds import Player
from tests.packages.roots import PACKAGES, SUITES, RootMachine

pytestmark = pytest.mark.timeout(1500)

PAGE = "docs/first-ten-minutes.md"
MOST_S = 300.0
"""Of commands, from nothing to pods that reach each other, and away again: on a machine that has
nothing else to do. What others take of this one is measured by work between the commands."""
_WORK_CPU_S = 0.1
_AS_A_PERSON = {"HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
# What `ctr` keeps of a pod that it has not been told to take off the network is containerd's.
_OF_OTHERS = (
    PACKAGES,
    "/var/lib/cni/results/",
    "/var/lib/dpkg/",
    "/var/cache/",
    "/run/",
    "/root/.",
)
ADDRESSES = {"one": "203.0.113.10", "two": "203.0.113.11"}


class Machines:
    """`one` and `two` on one LAN; which of them a block is for is said by its fence."""

    def __init__(self, machines: dict[str, RootMachine]) -> None:
        self._machines = machines
        self.took_s = self.took_alone_s = 0.0

    def __call__(
        self, words: str, marker: Mapping[str, str], pasted: str
    ) -> subprocess.CompletedProcess[str]:
        where = marker["deb"]
        done = None
        for name in self._machines if where == "both" else [where]:
            done = self._type(self._machines[name], words, pasted)
            if done.returncode:
                break
        assert done is not None
        return done

    def _type(
        self, machine: RootMachine, words: str, pasted: str
    ) -> subprocess.CompletedProcess[str]:
        if words.startswith("apt-get install"):
            # What a mirror takes to answer is not Limpet's.
            machine.download(words)
        slow = slowness()
        began_s = time.monotonic()
        done = machine.try_run(
            "sh", "-euc", f"cd {PACKAGES}\n{words}", stdin=pasted, env=_AS_A_PERSON
        )
        took_s = time.monotonic() - began_s
        self.took_s += took_s
        self.took_alone_s += took_s / max(1.0, (slow + slowness()) / 2)
        return done


def slowness() -> float:
    """How many times as long work takes now as it does alone: 1 on a quiet machine."""
    began_s, end_cpu_s = time.monotonic(), time.thread_time() + _WORK_CPU_S
    while time.thread_time() < end_cpu_s:
        hash(range(1000))
    return (time.monotonic() - began_s) / _WORK_CPU_S


@pytest.fixture(params=SUITES)
def machines(
    request: pytest.FixtureRequest, deb: Path, tmp_path: Path
) -> Iterator[dict[str, RootMachine]]:
    """Fresh, with the package's file and a LAN between them."""
    shutil.copy(deb, tmp_path)
    with lan(request.param, tmp_path) as found:
        yield found


@contextmanager
def lan(suite: str, folder: Path) -> Iterator[dict[str, RootMachine]]:
    """`one` and `two`, which see each other and what is in the folder, and nobody else."""
    with RootMachine(suite, folder) as one, RootMachine(suite, folder) as two:
        found = {"one": one, "two": two}
        join(one, two)
        for name, machine in found.items():
            machine.run("hostname", name)
            machine.run("ip", "address", "add", f"{ADDRESSES[name]}/24", "dev", "eth0")
            machine.run("ip", "link", "set", "eth0", "up")
            machine.run("ip", "route", "add", "default", "via", "203.0.113.1")
        yield found


def join(one: RootMachine, two: RootMachine) -> None:
    """A cable from `eth0` to `eth0`."""
    words = ("ip", "link", "add", "eth0", "netns", str(one.pid), "type", "veth")
    subprocess.run([*words, "peer", "name", "eth0", "netns", str(two.pid)], check=True)


def test_two_machines_reach_each_other_in_five_minutes(machines: dict[str, RootMachine]) -> None:
    typed = Machines(machines)
    player = Player(typed, {})

    for block in blocks(PAGE):
        if "deb" in block.marker:
            player.play(block)

    say(f"{PAGE}: {typed.took_s:.0f} s of commands; alone {typed.took_alone_s:.0f} s")
    assert typed.took_alone_s < MOST_S
    for machine in machines.values():
        named = machine.run("find", "/", "-xdev", "-name", "*limpet*").splitlines()
        assert [path for path in named if not path.startswith(_OF_OTHERS)] == []
        assert "limpet0" not in machine.run("ip", "link")
